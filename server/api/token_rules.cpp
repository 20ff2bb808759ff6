// SPDX-License-Identifier: Apache-2.0
#include "server/api/token_rules.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxStopTokenIds = 1024;
constexpr size_t kMaxBadWordBytes = 1024;
constexpr double kMaxBias = 100;

Expected<void> check_count(const std::string& name, size_t count, size_t most) {
  if (count <= most) return {};
  return invalid(name + " may have at most " + std::to_string(most) + " entries, got " +
                     std::to_string(count) + ".",
                 name);
}

// The decimal form of an id, as JSON's keys have to be text.
std::optional<TokenId> parse_id(const std::string& text, int32_t vocab_size) {
  TokenId id = kInvalidToken;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, id);
  const bool whole = parsed.ec == std::errc{} && parsed.ptr == end;
  if (!whole || id < 0 || id >= vocab_size || std::to_string(id) != text) return std::nullopt;
  return id;
}

Expected<std::vector<LogitBias>> read_logit_bias(const ValidationContext& context,
                                                 const Json& body) {
  std::vector<LogitBias> entries;
  const Json* given = find_field(body, "logit_bias");
  if (given == nullptr) return entries;
  if (!given->is_object()) {
    return invalid("logit_bias must be an object of token ids, got " + show_value(*given) + ".",
                   "logit_bias");
  }
  SLUICE_TRY_VOID(
      check_count("logit_bias", given->size(), static_cast<size_t>(context.config.max_logit_bias)));
  for (const auto& [key, value] : given->items()) {
    const std::optional<TokenId> id = parse_id(key, context.model.vocab_size);
    if (!id) {
      return invalid("logit_bias keys must be token ids in [0, " +
                         std::to_string(context.model.vocab_size - 1) + "], got \"" +
                         show_text(key) + "\".",
                     "logit_bias");
    }
    if (!value.is_number() || !(std::abs(value.get<double>()) <= kMaxBias)) {
      return invalid(
          "logit_bias values must be numbers in [-100, 100], got " + show_value(value) + ".",
          "logit_bias");
    }
    entries.push_back({*id, static_cast<float>(value.get<double>())});
  }
  return entries;
}

Expected<std::vector<TokenId>> read_allowed(const ValidationContext& context, const Json& body) {
  std::vector<TokenId> ids;
  const Json* given = find_field(body, "allowed_token_ids");
  if (given == nullptr) return ids;
  SLUICE_TRY(ids, to_token_ids(*given, "allowed_token_ids", context.model.vocab_size));
  if (ids.empty()) return invalid("allowed_token_ids must not be empty.", "allowed_token_ids");
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
  return ids;
}

// A word matches at the beginning of a text and after a space. Both forms are banned; the second
// only if the space changes the tokens without adding any. The name of a control token is that
// token. A word that the vocabulary has no tokens for is never generated.
Expected<void> add_bad_word(const Tokenizer& tokenizer,
                            const std::string& word,
                            std::vector<std::vector<TokenId>>& sequences) {
  std::vector<TokenId> bare;
  SLUICE_TRY_VOID(tokenizer.encode(word, SpecialText::kParse, bare));
  if (bare.empty()) return {};
  std::vector<TokenId> after_space;
  SLUICE_TRY_VOID(tokenizer.encode(" " + word, SpecialText::kParse, after_space));
  const bool differs = after_space.size() == bare.size() && after_space.front() != bare.front();
  sequences.push_back(std::move(bare));
  if (differs) sequences.push_back(std::move(after_space));
  return {};
}

Expected<std::vector<std::vector<TokenId>>> read_bad_words(const ValidationContext& context,
                                                           const Json& body) {
  std::vector<std::vector<TokenId>> sequences;
  const Json* given = find_field(body, "bad_words");
  if (given == nullptr) return sequences;
  if (!given->is_array()) {
    return invalid("bad_words must be an array of strings, got " + show_value(*given) + ".",
                   "bad_words");
  }
  SLUICE_TRY_VOID(
      check_count("bad_words", given->size(), static_cast<size_t>(context.config.max_bad_words)));
  for (const Json& item : *given) {
    std::string word = item.is_string() ? item.get<std::string>() : std::string();
    word.erase(0, std::min(word.find_first_not_of(' '), word.size()));
    if (word.empty() || word.size() > kMaxBadWordBytes) {
      return invalid("bad_words must be strings of 1 to " + std::to_string(kMaxBadWordBytes) +
                         " bytes, got " + show_value(item) + ".",
                     "bad_words");
    }
    SLUICE_TRY_VOID(add_bad_word(context.tokenizer, word, sequences));
  }
  return sequences;
}

}  // namespace

Expected<void> read_token_rules(const ValidationContext& context,
                                const Json& body,
                                SamplingParams& sampling) {
  if (const Json* ids = find_field(body, "stop_token_ids")) {
    SLUICE_TRY(sampling.stop_token_ids,
               to_token_ids(*ids, "stop_token_ids", context.model.vocab_size));
    SLUICE_TRY_VOID(
        check_count("stop_token_ids", sampling.stop_token_ids.size(), kMaxStopTokenIds));
  }
  SLUICE_TRY(sampling.logit_bias, read_logit_bias(context, body));
  SLUICE_TRY(sampling.allowed_token_ids, read_allowed(context, body));
  SLUICE_TRY(sampling.bad_words, read_bad_words(context, body));
  return {};
}

}  // namespace sluice
