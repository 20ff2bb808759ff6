// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/tiktoken.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/files/pretokenizer_names.h"
#include "engine/tokenizer/files/tekken.h"
#include "engine/tokenizer/text/base64.h"
#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFile = "tiktoken.model";
constexpr std::string_view kConfig = "tokenizer_config.json";
constexpr std::string_view kPretokenizer = "kimi-k2";
constexpr size_t kMaxTokenBytes = 256;  // each cut of a token is looked up
constexpr size_t kNumReserved = 256;  // ids after the vocabulary, with a name or without

tl::unexpected<Error> bad_line(size_t number, const std::string& what) {
  return json_error(kFile, "line " + std::to_string(number) + ": " + what);
}

std::optional<size_t> number_in(std::string_view text) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole && number < size_t{kMaxTokenIds} ? std::optional(number) : std::nullopt;
}

// Returns ids by the spelling of bytes.
Expected<Json> read_vocabulary(std::string_view text) {
  Json vocab = Json::object();
  for (size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) return bad_line(number, "found no space, expected one");
    const std::optional<std::string> bytes = decode_base64(line.substr(0, space));
    const std::optional<size_t> id = number_in(line.substr(space + 1));
    if (!bytes || bytes->empty() || bytes->size() > kMaxTokenBytes) {
      return bad_line(number, "expected 1 to " + std::to_string(kMaxTokenBytes) +
                                  " bytes in base64 in front of the space");
    }
    if (!id) {
      return bad_line(number, "expected an id below " + std::to_string(kMaxTokenIds) + " behind it");
    }
    if (vocab.size() == size_t{kMaxTokenIds}) return bad_line(number, "too many tokens");
    const auto [place, is_new] = vocab.emplace(spell_bytes(*bytes), *id);
    if (!is_new) return bad_line(number, "the token comes again");
  }
  if (vocab.empty()) return json_error(kFile, "found no token");
  return vocab;
}

// Returns the tokens of added_tokens_decoder, and names for the ids after the vocabulary that it
// leaves out. An id that comes twice there is no error: ids are keys of an object.
Expected<Json> read_added(const Json& config, size_t num_tokens) {
  Json added = Json::array();
  std::vector<bool> is_named(kNumReserved);
  const Json* listed = json_field(config, "added_tokens_decoder");
  if (listed != nullptr && !listed->is_object()) {
    return json_error(kConfig, "\"added_tokens_decoder\" has to be an object");
  }
  if (listed != nullptr) {
    for (const auto& [key, token] : listed->items()) {
      const std::optional<size_t> id = number_in(key);
      if (!id || !token.is_object()) {
        return json_error(kConfig, "\"added_tokens_decoder\": expected ids and their tokens");
      }
      added.push_back(token);
      added.back()["id"] = *id;
      added.back()["normalized"] = false;
      if (*id >= num_tokens && *id - num_tokens < kNumReserved) is_named[*id - num_tokens] = true;
    }
  }
  for (size_t i = 0; i < kNumReserved; ++i) {
    if (is_named[i]) continue;
    const size_t id = num_tokens + i;
    added.push_back({{"id", id},
                     {"content", "<|reserved_token_" + std::to_string(id) + "|>"},
                     {"special", true}});
  }
  return added;
}

// Returns the pairs of tokens that are a third together, by its id.
Json list_merges(const Json& vocab) {
  std::vector<std::pair<size_t, std::string_view>> by_id;
  for (const auto& [name, id] : vocab.items()) by_id.emplace_back(id.get<size_t>(), name);
  std::ranges::sort(by_id);
  Json merges = Json::array();
  for (const auto& [id, name] : by_id) {
    for (size_t cut = next_utf8_part(name, 0).length; cut < name.size();
         cut += next_utf8_part(name, cut).length) {
      if (!vocab.contains(name.substr(0, cut)) || !vocab.contains(name.substr(cut))) continue;
      merges.push_back({name.substr(0, cut), name.substr(cut)});
    }
  }
  return merges;
}

}  // namespace

Expected<std::string> tiktoken_as_json(std::string_view text, std::string_view config) {
  const Json fields =
      config.empty() ? Json::object() : Json::parse(json_without_nan(config, ""), nullptr, false);
  if (!fields.is_object()) return json_error(kConfig, "it is no JSON object");
  SLUICE_TRY(Json json, read_tiktoken(text, fields));
  json["model"]["merges"] = list_merges(json["model"]["vocab"]);
  return json.dump();
}

Expected<Json> read_tiktoken(std::string_view text, const Json& config) {
  constexpr std::string_view kClass = "TikTokenTokenizer";
  if (text.starts_with('{')) return read_tekken(text);
  SLUICE_TRY(const std::string name,
             json_string_or(config, "tokenizer_class", kConfig, std::string(kClass)));
  if (name != kClass) return json_unsupported(kConfig, name, kClass);
  SLUICE_TRY(Json vocab, read_vocabulary(text));
  SLUICE_TRY(Json added, read_added(config, vocab.size()));
  SLUICE_TRY(const NamedPretokenizer named, pretokenizer_by_name(kPretokenizer));
  Json stages = split_stages<Json>(named);
  stages.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return Json{{"added_tokens", std::move(added)},
              {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(stages)}}},
              {"decoder", {{"type", "ByteLevel"}}},
              {"model", {{"type", "BPE"}, {"ignore_merges", true}, {"vocab", std::move(vocab)}}}};
}

}  // namespace sluice
