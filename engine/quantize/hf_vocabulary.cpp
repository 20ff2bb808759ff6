// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/hf_vocabulary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/core/log.h"
#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/files/pretokenizer_names.h"
#include "engine/tokenizer/pipeline/end_tokens.h"
#include "engine/tokenizer/pipeline/token_pipeline.h"
#include "engine/tokenizer/text/utf8.h"
#include "engine/weights/gguf_parse.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";
constexpr int kMaxLevels = 16;

// Samples: scripts, numbers, spaces, code, combining marks, multi-code-point characters.
constexpr const char* kTexts[] = {
    "",
    " ",
    "Hello, world! It's I'M we'LL they've you'd 'S 't don't",
    "  leading and trailing  ",
    "a  b   c    d\n\n\n e\t\tf \r\n g",
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 \xC2\xBD \xE2\x85\xA7 \xD9\xA3\xD9\xA4",
    "def f(x):\n    return x ** 2  # square\n\tif (a&&b)||!c{ d[0]->e; }",
    "http://www.example.org/a?b=c&d=%20#e foo_bar fooBar FOOBar --flag=\"x\"",
    "...!!!? ?---___===+++***///\\\\\\|||~~~```$$$@@@###",
    "Zurich Z\xC3\xBCrich Zu\xCC\x88rich na\xC3\xAFve fa\xC3\xA7"
    "ade \xC5\x93uvre Stra\xC3\x9F"
    "e",
    "\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C\xE3\x80\x82",
    "\xE3\x81\x93\xE3\x82\x93\xE3\x81\xAB\xE3\x81\xA1\xE3\x81\xAF \xE3\x82\xAB\xE3\x82\xBF",
    "\xEC\x95\x88\xEB\x85\x95\xED\x95\x98\xEC\x84\xB8\xEC\x9A\x94",
    "\xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82, \xD0\xBC\xD0\xB8\xD1\x80",
    "\xD9\x85\xD8\xB1\xD8\xAD\xD8\xA8\xD8\xA7 \xD7\xA9\xD7\x9C\xD7\x95\xD7\x9D",
    "\xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D\xE0\xA4\xA4\xE0\xA5\x87",
    "\xE0\xB8\xAA\xE0\xB8\xA7\xE0\xB8\xB1\xE0\xB8\xAA\xE0\xB8\x94\xE0\xB8\xB5",
    "\xCE\x93\xCE\xB5\xCE\xB9\xCE\xAC \xCF\x83\xCE\xBF\xCF\x85",
    "\xF0\x9F\x98\x80 \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB "
    "\xF0\x9F\x87\xA9\xF0\x9F\x87\xAA",
    "\xC2\xA0nbsp\xE2\x80\x89thin\xE3\x80\x80wide\xEF\xBB\xBF"
    "bom",
    "\xEF\xBD\x86\xEF\xBD\x95\xEF\xBD\x8C\xEF\xBD\x8C \xEF\xAC\x81 \xE2\x84\xAB \xC5\xBF",
    "x\xCC\x81\xCC\xA7 \xE1\xB8\x97 e\xCC\x84\xCC\x81",
    "\xE2\x96\x81symbol \xE2\x96\x81\xE2\x96\x81two",
    "<0x41> <unk> <s> </s> <pad>",
};

// Reads fields that the tokenizer's own reader has checked; null counts as absent.
std::string text_of(const Json& object, const char* key, const char* fallback) {
  return json_string_or(object, key, {}, fallback).value_or(fallback);
}

bool flag_of(const Json& object, const char* key, bool fallback) {
  return json_bool_or(object, key, {}, fallback).value_or(fallback);
}

Json list_of(const Json& object, const char* key) {
  const Json* list = json_field(object, key);
  return list == nullptr || !list->is_array() ? Json::array() : *list;
}

class Reader {
 public:
  Reader(const Json& json, const Tokenizer& tokenizer, int64_t num_rows, std::string file)
      : json_(json), tokenizer_(tokenizer), num_rows_(num_rows), file_(std::move(file)) {
    result_.file = file_;
  }

  Expected<Vocabulary> run() {
    const Json* model = json_field(json_, "model");
    if (model == nullptr || !model->is_object()) return refuse("model", "none", "BPE");
    const bool is_list = model->contains("vocab") && (*model)["vocab"].is_array();
    const std::string type = text_of(*model, "type", is_list ? "Unigram" : "BPE");
    if (type != "BPE") return refuse("model", type, "BPE");
    model_ = *model;
    SLUICE_TRY_VOID(read_tokens());
    if (spells_bytes(section("pre_tokenizer"), 0)) {
      SLUICE_TRY_VOID(read_bytes_model());
    } else {
      SLUICE_TRY_VOID(read_scored_model());
    }
    SLUICE_TRY_VOID(read_special());
    SLUICE_TRY_VOID(compare());
    return std::move(result_);
  }

 private:
  [[nodiscard]] tl::unexpected<Error> refuse(const std::string& part,
                                             const std::string& found,
                                             const std::string& expected) const {
    return make_error(ErrorCode::kUnsupported,
                      file_ + ": " + part + ": found " + found + ", expected " + expected +
                          ", which GGUF can say",
                      "to");
  }

  [[nodiscard]] Json section(const char* key) const {
    const Json* found = json_field(json_, key);
    return found == nullptr ? Json() : *found;
  }

  static std::string shown(const Json& json) {
    constexpr size_t kMaxShown = 100;
    return json.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, kMaxShown);
  }

  // Returns the parts of a sequence, or the single part.
  static std::vector<Json> parts_of(const Json& section, const char* list, int level) {
    if (!section.is_object()) return {};
    if (text_of(section, "type", "") != "Sequence" || level > kMaxLevels) return {section};
    std::vector<Json> parts;
    for (const Json& part : list_of(section, list)) {
      for (Json& inner : parts_of(part, list, level + 1)) parts.push_back(std::move(inner));
    }
    return parts;
  }

  static bool spells_bytes(const Json& section, int level) {
    return std::ranges::any_of(parts_of(section, "pretokenizers", level), [](const Json& part) {
      return text_of(part, "type", "") == "ByteLevel";
    });
  }

  Expected<void> read_tokens() {
    const auto count = static_cast<size_t>(num_rows_);
    result_.tokens.resize(count);
    result_.token_types.assign(count, TokenType::kUnused);
    const bool has_bytes =
        !spells_bytes(section("pre_tokenizer"), 0) && flag_of(model_, "byte_fallback", false);
    for (size_t id = 0; id < count; ++id) {
      const std::string_view name = tokenizer_.token_name(static_cast<TokenId>(id));
      if (name.empty()) {
        result_.tokens[id] = "[PAD" + std::to_string(id) + "]";
        continue;
      }
      result_.tokens[id] = name;
      result_.token_types[id] =
          has_bytes && byte_of_name(name) >= 0 ? TokenType::kByte : TokenType::kNormal;
    }
    if (tokenizer_.vocab_size() > num_rows_) {
      return refuse("vocabulary",
                    std::to_string(tokenizer_.vocab_size()) + " tokens",
                    "at most the " + std::to_string(num_rows_) + " rows of the embedding");
    }
    for (const Json& item : section("added_tokens")) {
      const int64_t id = json_integer_or(item, "id", {}, -1).value_or(-1);
      if (id < 0 || id >= num_rows_) continue;  // several models may share the tokenizer
      TokenType& type = result_.token_types[static_cast<size_t>(id)];
      type = flag_of(item, "special", false) ? TokenType::kControl : TokenType::kUserDefined;
      strips_right_ = strips_right_ || flag_of(item, "rstrip", false);
    }
    const std::string unknown = text_of(model_, "unk_token", "");
    if (!unknown.empty()) {
      result_.unknown = tokenizer_.find_token(unknown);
      if (result_.unknown != kInvalidToken && has_bytes) {
        result_.token_types[static_cast<size_t>(result_.unknown)] = TokenType::kUnknown;
      }
    }
    return {};
  }

  // Returns the expressions that split text; none: a part is something else.
  std::optional<std::vector<std::string>> split_patterns() {
    std::vector<std::string> patterns;
    for (const Json& part : parts_of(section("pre_tokenizer"), "pretokenizers", 0)) {
      const std::string type = text_of(part, "type", "");
      if (type == "ByteLevel") {
        if (flag_of(part, "add_prefix_space", true)) return std::nullopt;
        if (!flag_of(part, "use_regex", true)) continue;
        const auto words = pretokenizer_by_name("gpt-2");
        if (!words) return std::nullopt;
        patterns.emplace_back(words->patterns.front());
      } else if (type == "Digits" && flag_of(part, "individual_digits", false)) {
        patterns.emplace_back("\\p{N}");
      } else if (type == "Split") {
        const std::string behavior = text_of(part, "behavior", "");
        const bool is_inverted = flag_of(part, "invert", false);
        const Json* form = json_field(part, "pattern");
        const std::string pattern = form == nullptr ? "" : text_of(*form, "Regex", "");
        const bool isolates =
            (behavior == "Isolated" && !is_inverted) || (behavior == "Removed" && is_inverted);
        if (!isolates || pattern.empty()) return std::nullopt;
        patterns.emplace_back(linear_expression(pattern));
      } else {
        return std::nullopt;
      }
    }
    return patterns;
  }

  Expected<void> read_bytes_model() {
    result_.model = "gpt2";
    const std::vector<Json> steps = parts_of(section("normalizer"), "normalizers", 0);
    const bool nfc = steps.size() == 1 && text_of(steps.front(), "type", "") == "NFC";
    if (!steps.empty() && !nfc) return refuse("normalizer", shown(section("normalizer")), "NFC");
    const auto patterns = split_patterns();
    if (patterns) {
      result_.pre = name_of_pretokenizer(*patterns, flag_of(model_, "ignore_merges", false), nfc);
    }
    if (result_.pre.empty()) {
      return refuse("pre_tokenizer", shown(section("pre_tokenizer")), "one with a name");
    }
    for (const Json& merge : list_of(model_, "merges")) {
      result_.merges.push_back(merge.is_string() ? merge.get<std::string>()
                                                 : merge[0].get<std::string>() + " " +
                                                       merge[1].get<std::string>());
    }
    return {};
  }

  // Reads SentencePiece's BPE, which ranks merges by the result's score and allows every pair.
  Expected<void> read_scored_model() {
    result_.model = "llama";
    result_.pre = strips_right_ ? "phi-3" : "default";
    for (const Json& step : parts_of(section("normalizer"), "normalizers", 0)) {
      const std::string type = text_of(step, "type", "");
      if (type == "Prepend") {
        result_.add_space_prefix = true;
      } else if (type != "Replace" || text_of(step, "content", "") != kSpaceSymbol) {
        return refuse("normalizer", shown(step), "spaces that become symbols");
      }
    }
    for (const Json& part : parts_of(section("pre_tokenizer"), "pretokenizers", 0)) {
      if (text_of(part, "type", "") != "Metaspace") continue;
      result_.add_space_prefix = text_of(part, "prepend_scheme", "always") != "never";
    }
    result_.scores.assign(result_.tokens.size(), 0);
    std::unordered_map<std::string_view, size_t> ids;
    for (size_t id = 0; id < result_.tokens.size(); ++id) {
      if (result_.token_types[id] == TokenType::kNormal) ids.emplace(result_.tokens[id], id);
    }
    return read_scores(ids);
  }

  Expected<void> read_scores(const std::unordered_map<std::string_view, size_t>& ids) {
    std::vector<size_t> num_merges(result_.tokens.size());
    const std::string* last = nullptr;
    for (const Json& merge : list_of(model_, "merges")) {
      std::string whole;
      if (merge.is_string()) {
        whole = merge.get<std::string>();
        const size_t space = whole.find(' ');
        if (space != std::string::npos) whole.erase(space, 1);
      } else {
        whole = merge[0].get<std::string>() + merge[1].get<std::string>();
      }
      const auto found = ids.find(whole);
      if (found == ids.end()) continue;  // an added token, which merging never produces
      const std::string& token = result_.tokens[found->second];
      ++num_merges[found->second];
      if (last == &token) continue;
      float& score = result_.scores[found->second];
      if (score != 0) {
        return refuse("merges",
                      "pairs that make " + sluice::in_quotes(token) + " at two places",
                      "those of scores");
      }
      score = static_cast<float>(--num_scores_);
      last = &token;
    }
    for (const auto& [text, id] : ids) {
      size_t num_pairs = 0;
      for (size_t at = 1; at < text.size(); ++at) {
        const bool is_start = (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U;
        num_pairs +=
            is_start && ids.contains(text.substr(0, at)) && ids.contains(text.substr(at)) ? 1 : 0;
      }
      if (num_pairs <= num_merges[id]) continue;
      return refuse("merges",
                    std::to_string(num_merges[id]) + " pairs that make " + sluice::in_quotes(text),
                    "all " + std::to_string(num_pairs));
    }
    return {};
  }

  [[nodiscard]] TokenId named(std::string_view name) const {
    for (const NamedToken& token : tokenizer_.named_tokens()) {
      if (token.name == name) return tokenizer_.find_token(token.text);
    }
    return kInvalidToken;
  }

  // GGUF has two keys for ends beside eos: they go first to tokens that are not known by name.
  void place_ends(std::vector<TokenId> ends) {
    const std::vector<TokenId> known = find_end_tokens({}, tokenizer_);
    std::erase(ends, result_.eos);
    const auto rest = std::ranges::stable_partition(
        ends, [&](TokenId id) { return !std::ranges::binary_search(known, id); });
    const auto num_unnamed = rest.begin() - ends.begin();
    if (!ends.empty()) result_.eot = ends[0];
    if (ends.size() > 1) result_.eom = ends[1];
    if (num_unnamed <= 2) return;
    warn_of_file(file_,
                 "eos_token_id",
                 std::to_string(num_unnamed) + " ends that no key of GGUF names",
                 "the first two");
  }

  Expected<void> read_special() {
    result_.bos = tokenizer_.bos();
    result_.eos = named("eos_token");
    result_.padding = named("pad_token");
    if (result_.unknown == kInvalidToken) result_.unknown = named("unk_token");
    const std::vector<TokenId>& ends = tokenizer_.end_tokens();
    if (result_.eos == kInvalidToken && !ends.empty()) result_.eos = ends.front();
    place_ends(ends);
    const std::vector<TokenId> prefix = tokenizer_.prefix_tokens();
    const std::vector<TokenId> suffix = tokenizer_.suffix_tokens();
    result_.add_bos = prefix == std::vector<TokenId>{result_.bos};
    result_.add_eos = suffix == std::vector<TokenId>{result_.eos};
    if ((!prefix.empty() && !result_.add_bos) || (!suffix.empty() && !result_.add_eos)) {
      return refuse("post_processor", shown(section("post_processor")), "bos or eos around texts");
    }
    return {};
  }

  // Returns a difference on one text; empty: none.
  [[nodiscard]] std::string difference(const Tokenizer& other, std::string_view text) const {
    for (const SpecialText special : {SpecialText::kText, SpecialText::kParse}) {
      std::vector<TokenId> expected;
      std::vector<TokenId> found;
      const bool are_whole = tokenizer_.encode(text, special, expected).has_value() &&
                             other.encode(text, special, found).has_value();
      if (!are_whole || found != expected) {
        return "other tokens for " + sluice::in_quotes(text) + " where GGUF calls its splits \"" +
               result_.pre + "\"";
      }
    }
    return {};
  }

  Expected<void> compare() const {
    SLUICE_TRY(const auto other, create_tokenizer(result_));
    const auto check = [&](std::string_view text) -> Expected<void> {
      const std::string found = difference(*other, text);
      if (found.empty()) return {};
      return refuse("tokenizer", found, "the same");
    };
    for (const char* text : kTexts) SLUICE_TRY_VOID(check(text));
    for (TokenId id = 0; id < tokenizer_.vocab_size(); ++id) {
      const std::string_view bytes = tokenizer_.token_bytes(id);
      const bool is_special = tokenizer_.is_special(id);
      const TokenType type = result_.token_types[static_cast<size_t>(id)];
      if (type == TokenType::kUnused) continue;
      if (other->token_bytes(id) != bytes ||
          other->is_special(id) != (is_special || id == result_.unknown)) {
        return refuse("token " + std::to_string(id),
                      sluice::in_quotes(bytes),
                      sluice::in_quotes(other->token_bytes(id)));
      }
      // Invalid UTF-8 cannot be a text for a JSON tokenizer.
      if (find_invalid_utf8(bytes, 0) != bytes.size()) continue;
      const bool is_added = type != TokenType::kNormal && type != TokenType::kByte;
      const std::string text(bytes);
      SLUICE_TRY_VOID(check(is_added ? "a " + text + " b" + text + "c" : text));
    }
    return {};
  }

  const Json& json_;
  const Tokenizer& tokenizer_;
  int64_t num_rows_;
  std::string file_;
  Json model_;
  bool strips_right_ = false;
  int32_t num_scores_ = 0;
  Vocabulary result_;
};

}  // namespace

Expected<Vocabulary> read_hf_vocabulary(const std::string& tokenizer_json,
                                        const Tokenizer& tokenizer,
                                        int64_t num_rows,
                                        const std::string& file) {
  const Json json = Json::parse(tokenizer_json, nullptr, false);
  if (!json.is_object()) {
    return make_error(ErrorCode::kDataLoss, file + ": file: found no JSON object, expected one");
  }
  return Reader(json, tokenizer, num_rows, file).run();
}

}  // namespace sluice
