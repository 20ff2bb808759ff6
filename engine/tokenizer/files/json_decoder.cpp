// SPDX-License-Identifier: Apache-2.0
// Reads decoder and post_processor of a tokenizer.json.
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/pipeline/token_pipeline.h"
#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kDecoders =
    "Sequence, ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip, WordPiece";
constexpr std::string_view kPostProcessors =
    "Sequence, ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing";

void strip(std::string_view content, size_t left, size_t right, std::string& text) {
  size_t begin = 0;
  for (; left > 0 && std::string_view(text).substr(begin).starts_with(content); --left) {
    begin += content.size();
  }
  size_t end = text.size();
  for (; right > 0 && std::string_view(text).substr(begin, end - begin).ends_with(content);
       --right) {
    end -= content.size();
  }
  text = text.substr(begin, end - begin);
}

Expected<TokenId> read_token_id(const Json& value, size_t num_tokens, std::string_view where) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
      value.get<int64_t>() >= static_cast<int64_t>(num_tokens)) {
    return json_error(where, "a token id is no integer below " + std::to_string(num_tokens));
  }
  return static_cast<TokenId>(value.get<int64_t>());
}

class PostProcessorReader {
 public:
  explicit PostProcessorReader(size_t num_tokens) : num_tokens_(num_tokens) {}

  Expected<void> add(const Json& section, int level) {
    if (level > kMaxJsonLevels) return json_error(kWhere, "too many levels");
    SLUICE_TRY(const std::string type, json_string(section, "type", kWhere));
    if (type == "ByteLevel") return {};  // moves offsets only
    if (type == "TemplateProcessing") return add_template(section);
    if (type == "Sequence") {
      const Json* list = json_field(section, "processors");
      if (list == nullptr || !list->is_array()) {
        return json_error(kWhere, "\"processors\" has to be a list");
      }
      for (const Json& part : *list) SLUICE_TRY_VOID(add(part, level + 1));
      return {};
    }
    if (type == "BertProcessing" || type == "RobertaProcessing") {
      SLUICE_TRY(const TokenId begin, named_id(section, "cls"));
      SLUICE_TRY(const TokenId end, named_id(section, "sep"));
      wrap({begin}, {end});
      result_.between.assign(type == "BertProcessing" ? 1 : 2, end);
      return {};
    }
    return json_unsupported(kWhere, type, kPostProcessors);
  }

  PostProcessor take() { return std::move(result_); }

 private:
  static constexpr std::string_view kWhere = "post_processor";

  // Reads the id of a pair such as ["[CLS]", 101].
  Expected<TokenId> named_id(const Json& section, std::string_view key) const {
    const Json* pair = json_field(section, key);
    if (pair == nullptr || !pair->is_array() || pair->size() != 2) {
      return json_error(kWhere, "\"" + std::string(key) + "\" has to be a name and an id");
    }
    return read_token_id((*pair)[1], num_tokens_, kWhere);
  }

  Expected<void> add_ids(const Json& section, const Json& item, std::vector<TokenId>& out) const {
    SLUICE_TRY(const std::string name, json_string(item, "id", kWhere));
    const Json* specials = json_field(section, "special_tokens");
    const Json* special = specials == nullptr ? nullptr : json_field(*specials, name);
    const Json* ids = special == nullptr ? nullptr : json_field(*special, "ids");
    if (ids == nullptr || !ids->is_array()) {
      return json_error(kWhere, "special token \"" + name.substr(0, 64) + "\" has no ids");
    }
    for (const Json& id : *ids) {
      SLUICE_TRY(const TokenId token, read_token_id(id, num_tokens_, kWhere));
      out.push_back(token);
    }
    return {};
  }

  Expected<void> add_template(const Json& section) {
    const Json* single = json_field(section, "single");
    if (single == nullptr || !single->is_array()) {
      return json_error(kWhere, "\"single\" has to be a list");
    }
    std::vector<TokenId> before;
    std::vector<TokenId> behind;
    int num_sequences = 0;
    for (const Json& item : *single) {
      if (json_field(item, "Sequence") != nullptr) {
        ++num_sequences;
      } else if (const Json* special = json_field(item, "SpecialToken")) {
        SLUICE_TRY_VOID(add_ids(section, *special, num_sequences == 0 ? before : behind));
      } else {
        return json_error(kWhere, "an item of \"single\" is no Sequence and no SpecialToken");
      }
    }
    if (num_sequences != 1) return json_error(kWhere, "\"single\" needs one Sequence");
    wrap(before, behind);
    return add_pair(section);
  }

  // Takes what the template of a pair has between the two texts; without one, it is none.
  Expected<void> add_pair(const Json& section) {
    const Json* pair = json_field(section, "pair");
    if (pair == nullptr || !pair->is_array()) return {};
    std::vector<TokenId> between;
    int num_sequences = 0;
    for (const Json& item : *pair) {
      const Json* special = json_field(item, "SpecialToken");
      if (special == nullptr) {
        ++num_sequences;
      } else if (num_sequences == 1) {
        SLUICE_TRY_VOID(add_ids(section, *special, between));
      }
    }
    result_.between = std::move(between);
    return {};
  }

  void wrap(const std::vector<TokenId>& before, const std::vector<TokenId>& behind) {
    result_.prefix.insert(result_.prefix.begin(), before.begin(), before.end());
    result_.suffix.insert(result_.suffix.end(), behind.begin(), behind.end());
  }

  size_t num_tokens_;
  PostProcessor result_;
};

// Decodes a WordPiece token that follows another: a continuation, or a word with a space before it.
std::string word_of(const std::string& prefix, bool cleans_up, const std::string& token) {
  std::string text = token.starts_with(prefix) ? token.substr(prefix.size()) : " " + token;
  if (!cleans_up) return text;
  constexpr std::pair<std::string_view, std::string_view> kContractions[] = {{" .", "."},
                                                                             {" ?", "?"},
                                                                             {" !", "!"},
                                                                             {" ,", ","},
                                                                             {" ' ", "'"},
                                                                             {" n't", "n't"},
                                                                             {" 'm", "'m"},
                                                                             {" do not", " don't"},
                                                                             {" 's", "'s"},
                                                                             {" 've", "'ve"},
                                                                             {" 're", "'re"}};
  for (const auto& [apart, together] : kContractions) text = replace_all(text, apart, together);
  return text;
}

}  // namespace

Expected<TokenDecoder> TokenDecoder::read(const Json& section) {
  TokenDecoder decoder;
  if (section.is_null()) {
    decoder.joins_with_space_ = true;
    decoder.strips_first_space_ = true;
    return decoder;
  }
  SLUICE_TRY_VOID(decoder.add(section, 0));
  return decoder;
}

Expected<void> TokenDecoder::add(const Json& section, int level) {
  constexpr std::string_view kWhere = "decoder";
  if (level > kMaxJsonLevels) return json_error(kWhere, "too many levels");
  SLUICE_TRY(const std::string type, json_string(section, "type", kWhere));
  if (type == "Sequence") {
    const Json* list = json_field(section, "decoders");
    if (list == nullptr || !list->is_array()) {
      return json_error(kWhere, "\"decoders\" has to be a list");
    }
    for (const Json& part : *list) SLUICE_TRY_VOID(add(part, level + 1));
  } else if (type == "ByteLevel") {
    steps_.push_back({Kind::kByteLevel, std::string(), {}, 0, 0});
  } else if (type == "ByteFallback") {
    steps_.push_back({Kind::kByteFallback, std::string(), {}, 0, 0});
  } else if (type == "Fuse") {
    is_fused_ = true;
  } else if (type == "Metaspace") {
    SLUICE_TRY_VOID(add_metaspace(section));
  } else if (type == "Replace") {
    SLUICE_TRY_VOID(add_replace(section));
  } else if (type == "Strip") {
    SLUICE_TRY_VOID(add_strip(section));
  } else if (type == "WordPiece") {
    SLUICE_TRY_VOID(add_word_piece(section));
  } else {
    return json_unsupported(kWhere, type, kDecoders);
  }
  return {};
}

Expected<void> TokenDecoder::add_metaspace(const Json& section) {
  constexpr std::string_view kWhere = "decoder";
  SLUICE_TRY(std::string replacement, json_string(section, "replacement", kWhere));
  SLUICE_TRY(const bool prefix, json_bool_or(section, "add_prefix_space", kWhere, true));
  SLUICE_TRY(const std::string scheme,
             json_string_or(section, "prepend_scheme", kWhere, prefix ? "always" : "never"));
  if (replacement.empty()) return json_error(kWhere, "\"replacement\" is empty");
  steps_.push_back({Kind::kReplace, std::move(replacement), " ", 0, 0});
  strips_first_space_ |= scheme != "never";
  return {};
}

Expected<void> TokenDecoder::add_replace(const Json& section) {
  constexpr std::string_view kWhere = "decoder";
  SLUICE_TRY(JsonPattern pattern, read_pattern(section, kWhere));
  SLUICE_TRY(std::string content, json_string(section, "content", kWhere));
  const auto* text = std::get_if<std::string>(&pattern);
  if (text != nullptr && text->empty()) return {};
  // After Fuse a match may cross tokens, so only single characters are supported.
  const bool is_character = text != nullptr && next_utf8_part(*text, 0).length == text->size();
  if (is_fused_ && !is_character) {
    return json_unsupported(kWhere, "Replace", "behind Fuse, Replace of one character");
  }
  steps_.push_back({Kind::kReplace, std::move(pattern), std::move(content), 0, 0});
  return {};
}

Expected<void> TokenDecoder::add_strip(const Json& section) {
  constexpr std::string_view kWhere = "decoder Strip";
  SLUICE_TRY(std::string content, json_string(section, "content", kWhere));
  SLUICE_TRY(const int64_t start, json_integer_or(section, "start", kWhere, 0));
  SLUICE_TRY(const int64_t stop, json_integer_or(section, "stop", kWhere, 0));
  if (start < 0 || stop < 0 || content.empty()) {
    return json_error(kWhere, "\"content\" is empty, or \"start\" or \"stop\" below 0");
  }
  if (start == 0 && stop == 0) return {};
  if (!is_fused_) {
    steps_.push_back({Kind::kStrip,
                      std::string(),
                      std::move(content),
                      static_cast<size_t>(start),
                      static_cast<size_t>(stop)});
    return {};
  }
  if (content != " " || start != 1 || stop != 0) {
    return json_unsupported("decoder", "Strip", "behind Fuse, Strip of one leading space");
  }
  strips_first_space_ = true;
  return {};
}

Expected<void> TokenDecoder::add_word_piece(const Json& section) {
  constexpr std::string_view kWhere = "decoder WordPiece";
  if (!steps_.empty() || is_fused_) return json_unsupported("decoder", "WordPiece", "it alone");
  Step step{Kind::kWordPiece, std::string(), {}, 0, 0};
  SLUICE_TRY(step.content, json_string_or(section, "prefix", kWhere, "##"));
  SLUICE_TRY(step.cleans_up, json_bool_or(section, "cleanup", kWhere, true));
  steps_.push_back(std::move(step));
  strips_first_space_ = true;
  return {};
}

std::string TokenDecoder::replaced(const Step& step, const std::string& text) {
  if (const auto* literal = std::get_if<std::string>(&step.pattern)) {
    return replace_all(text, *literal, step.content);
  }
  Regex::Scanner scanner;
  return std::get<Regex>(step.pattern).replaced(text, step.content, /*keeps_match=*/false, scanner);
}

std::string TokenDecoder::decode(const std::string& token) const {
  std::string text = joins_with_space_ ? " " + token : token;
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kByteLevel:
        if (auto bytes = unspell_bytes(text)) text = std::move(*bytes);
        break;
      case Kind::kByteFallback:
        if (const int byte = byte_of_name(text); byte >= 0) {
          return std::string(1, static_cast<char>(byte));
        }
        break;
      case Kind::kReplace:
        text = replaced(step, text);
        break;
      case Kind::kStrip:
        strip(step.content, step.left, step.right, text);
        break;
      case Kind::kWordPiece:
        text = word_of(step.content, step.cleans_up, text);
        break;
    }
  }
  return text;
}

std::string TokenDecoder::decode_added(const std::string& token) const {
  std::string text = joins_with_space_ ? " " + token : token;
  for (const Step& step : steps_) {
    if (step.kind == Kind::kReplace) text = replaced(step, text);
    if (step.kind == Kind::kStrip) strip(step.content, step.left, step.right, text);
    if (step.kind == Kind::kWordPiece) text = word_of(step.content, step.cleans_up, text);
  }
  return text;
}

Expected<PostProcessor> read_post_processor(const Json& section, size_t num_tokens) {
  PostProcessorReader reader(num_tokens);
  if (!section.is_null()) SLUICE_TRY_VOID(reader.add(section, 0));
  return reader.take();
}

}  // namespace sluice
