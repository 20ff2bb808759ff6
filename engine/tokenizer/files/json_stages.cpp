// SPDX-License-Identifier: Apache-2.0
// Reads normalizer and pre_tokenizer of a tokenizer.json.
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/tokenizer/files/bert_stages.h"
#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/files/pretokenizer_names.h"
#include "engine/tokenizer/text/base64.h"
#include "engine/tokenizer/text/unicode_data.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kNormalizers =
    "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, "
    "Precompiled, Nmt, BertNormalizer, ByteLevel";
constexpr std::string_view kPretokenizers =
    "Sequence, ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
    "CharDelimiterSplit, FixedLength, BertPreTokenizer";
constexpr std::string_view kBehaviors =
    "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous";
constexpr std::string_view kGpt2Words =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// Applies SentencePiece's nmt rules for control characters and unusual spaces.
Expected<void> add_nmt(std::vector<NormalizerStep>& steps) {
  SLUICE_TRY(Regex removed,
             Regex::compile("[\\x{1}-\\x{8}\\x{b}\\x{e}-\\x{1f}\\x{7f}\\x{8f}\\x{9f}]"));
  SLUICE_TRY(Regex spaces,
             Regex::compile("[\\t\\n\\x{c}\\r\\x{1680}\\x{200b}-\\x{200f}\\x{2028}\\x{2029}"
                            "\\x{2581}\\x{feff}\\x{fffd}]"));
  steps.emplace_back(ReplaceStep{std::move(removed), ""});
  steps.emplace_back(ReplaceStep{std::move(spaces), " "});
  return {};
}

Expected<void> add_precompiled(const Json& section, std::vector<NormalizerStep>& steps) {
  constexpr std::string_view kWhere = "normalizer Precompiled";
  SLUICE_TRY(const std::string text, json_string_or(section, "precompiled_charsmap", kWhere, ""));
  const auto blob = decode_base64(text);
  if (!blob) return json_error(kWhere, "\"precompiled_charsmap\" is no base64");
  SLUICE_TRY(const bool by_grapheme, json_bool_or(section, "by_grapheme", kWhere, true));
  SLUICE_TRY(Charsmap map, Charsmap::parse(*blob));
  steps.emplace_back(CharsmapStep{std::move(map), by_grapheme});
  return {};
}

Expected<void> add_bert(const Json& section, std::vector<NormalizerStep>& steps) {
  constexpr std::string_view kWhere = "normalizer BertNormalizer";
  SLUICE_TRY(const bool clean, json_bool_or(section, "clean_text", kWhere, true));
  SLUICE_TRY(const bool pad, json_bool_or(section, "handle_chinese_chars", kWhere, true));
  SLUICE_TRY(const bool lowercase, json_bool_or(section, "lowercase", kWhere, true));
  SLUICE_TRY(const bool strip, json_bool_or(section, "strip_accents", kWhere, lowercase));
  return add_bert_steps({clean, pad, lowercase, strip}, steps);
}

Expected<void> add_normalizer(const Json& section, int level, std::vector<NormalizerStep>& steps) {
  constexpr std::string_view kWhere = "normalizer";
  if (level > kMaxJsonLevels) return json_error(kWhere, "too many levels");
  SLUICE_TRY(const std::string type, json_string(section, "type", kWhere));
  if (type == "Sequence") {
    const Json* list = json_field(section, "normalizers");
    if (list == nullptr || !list->is_array()) {
      return json_error(kWhere, "\"normalizers\" has to be a list");
    }
    for (const Json& part : *list) SLUICE_TRY_VOID(add_normalizer(part, level + 1, steps));
  } else if (type == "NFC") {
    steps.emplace_back(UnicodeFormStep{UnicodeForm::kNfc});
  } else if (type == "NFD") {
    steps.emplace_back(UnicodeFormStep{UnicodeForm::kNfd});
  } else if (type == "NFKC") {
    steps.emplace_back(UnicodeFormStep{UnicodeForm::kNfkc});
  } else if (type == "NFKD") {
    steps.emplace_back(UnicodeFormStep{UnicodeForm::kNfkd});
  } else if (type == "Lowercase") {
    steps.emplace_back(LowercaseStep{});
  } else if (type == "Strip") {
    SLUICE_TRY(const bool left, json_bool_or(section, "strip_left", kWhere, true));
    SLUICE_TRY(const bool right, json_bool_or(section, "strip_right", kWhere, true));
    steps.emplace_back(StripStep{left, right});
  } else if (type == "StripAccents") {
    steps.emplace_back(OmitStep{OmittedCharacters::kMarks});
  } else if (type == "Replace") {
    SLUICE_TRY(JsonPattern pattern, read_pattern(section, kWhere));
    SLUICE_TRY(std::string content, json_string(section, "content", kWhere));
    steps.emplace_back(ReplaceStep{std::move(pattern), std::move(content)});
  } else if (type == "Prepend") {
    SLUICE_TRY(std::string text, json_string(section, "prepend", kWhere));
    steps.emplace_back(PrependStep{std::move(text)});
  } else if (type == "Precompiled") {
    SLUICE_TRY_VOID(add_precompiled(section, steps));
  } else if (type == "BertNormalizer") {
    SLUICE_TRY_VOID(add_bert(section, steps));
  } else if (type == "ByteLevel") {
    steps.emplace_back(SpellBytesStep{});
  } else if (type == "Nmt") {
    SLUICE_TRY_VOID(add_nmt(steps));
  } else {
    return json_unsupported(kWhere, type, kNormalizers);
  }
  return {};
}

Expected<SplitBehavior> read_behavior(const Json& section, SplitBehavior fallback) {
  constexpr std::string_view kWhere = "pre_tokenizer";
  SLUICE_TRY(const std::string name, json_string_or(section, "behavior", kWhere, ""));
  if (name.empty()) return fallback;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return json_unsupported("pre_tokenizer behavior", name, kBehaviors);
}

class PretokenizerReader {
 public:
  Expected<void> add(const Json& section, int level) {
    if (level > kMaxJsonLevels) return json_error(kWhere, "too many levels");
    SLUICE_TRY(const std::string type, json_string(section, "type", kWhere));
    if (type == "Sequence") return add_sequence(section, level);
    if (result_.is_byte_level && !result_.is_spelled) {
      // Stages after ByteLevel see its spelling.
      result_.stages.emplace_back(SpellBytesStage{});
      result_.is_spelled = true;
    }
    if (type == "ByteLevel") return add_byte_level(section);
    if (type == "Metaspace") return add_metaspace(section);
    if (type == "Split") {
      SLUICE_TRY(JsonPattern pattern, read_pattern(section, kWhere));
      SLUICE_TRY(const SplitBehavior behavior, read_behavior(section, SplitBehavior::kIsolated));
      SLUICE_TRY(const bool invert, json_bool_or(section, "invert", kWhere, false));
      result_.stages.emplace_back(SplitStage{std::move(pattern), behavior, invert});
      return {};
    }
    if (type == "Digits") {
      SLUICE_TRY(const bool alone, json_bool_or(section, "individual_digits", kWhere, false));
      return add_regex("\\p{N}", alone ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
    }
    if (type == "Punctuation") {
      SLUICE_TRY(const SplitBehavior behavior, read_behavior(section, SplitBehavior::kIsolated));
      return add_regex("[" + std::string(kPunctuationMembers) + "]", behavior);
    }
    if (type == "Whitespace") {
      const std::string word(kRustWordClass);
      return add_regex(
          "[" + word + "]+|[^" + word + "\\s]+", SplitBehavior::kRemoved, /*invert=*/true);
    }
    if (type == "FixedLength") {
      SLUICE_TRY(const int64_t length, json_integer_or(section, "length", kWhere, 5));
      // PCRE2's repeat counts end at 65535.
      if (length < 1 || length > 65535) {
        return json_unsupported("FixedLength length", std::to_string(length), "1 to 65535");
      }
      return add_regex("(?s:.){1," + std::to_string(length) + "}", SplitBehavior::kIsolated);
    }
    if (type == "WhitespaceSplit") return add_regex("\\s+", SplitBehavior::kRemoved);
    if (type == "BertPreTokenizer") return add_bert_stages(result_.stages);
    if (type == "CharDelimiterSplit") {
      SLUICE_TRY(std::string delimiter, json_string(section, "delimiter", kWhere));
      result_.stages.emplace_back(SplitStage{std::move(delimiter), SplitBehavior::kRemoved});
      return {};
    }
    return json_unsupported(kWhere, type, kPretokenizers);
  }

  JsonPretokenizer take() { return std::move(result_); }

 private:
  static constexpr std::string_view kWhere = "pre_tokenizer";

  Expected<void> add_sequence(const Json& section, int level) {
    const Json* list = json_field(section, "pretokenizers");
    if (list == nullptr || !list->is_array()) {
      return json_error(kWhere, "\"pretokenizers\" has to be a list");
    }
    for (const Json& part : *list) SLUICE_TRY_VOID(add(part, level + 1));
    return {};
  }

  Expected<void> add_regex(std::string_view pattern, SplitBehavior behavior, bool invert = false) {
    SLUICE_TRY(Regex regex, Regex::compile(pattern));
    result_.stages.emplace_back(SplitStage{std::move(regex), behavior, invert});
    return {};
  }

  Expected<void> add_byte_level(const Json& section) {
    if (result_.is_byte_level) return json_error(kWhere, "ByteLevel is there twice");
    SLUICE_TRY(const bool prefix, json_bool_or(section, "add_prefix_space", kWhere, true));
    SLUICE_TRY(const bool use_regex, json_bool_or(section, "use_regex", kWhere, true));
    if (prefix) result_.stages.emplace_back(PrefixSpaceStage{});
    if (use_regex) SLUICE_TRY_VOID(add_regex(kGpt2Words, SplitBehavior::kIsolated));
    result_.is_byte_level = true;
    return {};
  }

  Expected<void> add_metaspace(const Json& section) {
    MetaspaceStage stage;
    SLUICE_TRY(stage.replacement, json_string(section, "replacement", kWhere));
    SLUICE_TRY(stage.split, json_bool_or(section, "split", kWhere, true));
    // Files without prepend_scheme use the older add_prefix_space.
    SLUICE_TRY(const bool prefix, json_bool_or(section, "add_prefix_space", kWhere, true));
    SLUICE_TRY(const std::string scheme,
               json_string_or(section, "prepend_scheme", kWhere, prefix ? "always" : "never"));
    if (scheme == "always") {
      stage.prepend = MetaspaceStage::Prepend::kAlways;
    } else if (scheme == "first") {
      stage.prepend = MetaspaceStage::Prepend::kFirst;
    } else if (scheme == "never") {
      stage.prepend = MetaspaceStage::Prepend::kNever;
    } else {
      return json_unsupported("Metaspace prepend_scheme", scheme, "always, first, never");
    }
    if (stage.replacement.empty()) return json_error(kWhere, "\"replacement\" is empty");
    result_.stages.emplace_back(std::move(stage));
    return {};
  }

  JsonPretokenizer result_;
};

}  // namespace

Expected<JsonPattern> read_pattern(const Json& object, std::string_view where) {
  const Json* pattern = json_field(object, "pattern");
  if (pattern == nullptr) return json_error(where, "\"pattern\" is missing");
  if (pattern->is_string()) return JsonPattern(pattern->get<std::string>());
  if (json_field(*pattern, "String") != nullptr) {
    SLUICE_TRY(std::string text, json_string(*pattern, "String", where));
    return JsonPattern(std::move(text));
  }
  SLUICE_TRY(const std::string text, json_string(*pattern, "Regex", where));
  SLUICE_TRY(Regex regex, Regex::compile(linear_expression(text)));
  return JsonPattern(std::move(regex));
}

Expected<std::vector<NormalizerStep>> read_normalizer(const Json& section) {
  std::vector<NormalizerStep> steps;
  if (!section.is_null()) SLUICE_TRY_VOID(add_normalizer(section, 0, steps));
  return steps;
}

Expected<JsonPretokenizer> read_pretokenizer(const Json& section) {
  PretokenizerReader reader;
  if (!section.is_null()) SLUICE_TRY_VOID(reader.add(section, 0));
  return reader.take();
}

}  // namespace sluice
