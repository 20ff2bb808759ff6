// SPDX-License-Identifier: Apache-2.0
// Reads the sections of a tokenizer.json into our own types. An unknown piece is kUnsupported,
// named with the known ones; a field of the wrong type is kDataLoss.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/tokenizer/pipeline/normalizer.h"
#include "engine/tokenizer/pipeline/pretokenizer.h"

namespace sluice {

// The deepest nesting of sequences.
inline constexpr int kMaxJsonLevels = 16;
// That of values in a file, in which a sequence takes two.
inline constexpr int kMaxFileLevels = 64;
// Ids of a vocabulary are below it.
inline constexpr int64_t kMaxTokenIds = 1 << 22;

// Whether values lie inside more than `levels` others: copies and texts of such values are made by
// recursion. The parser's own callback would look at all members of an object again after each.
bool is_deeper_json(std::string_view text, int levels);

// Reads the object that a file beside tokenizer.json is; an empty text: one without members.
Expected<nlohmann::json> json_object_in(const std::string& text, const char* file);

// Reads a field of an object, which `where` names. Missing or null: the fallback.
Expected<std::string> json_string(const nlohmann::json& object,
                                  std::string_view key,
                                  std::string_view where);  // required
Expected<std::string> json_string_or(const nlohmann::json& object,
                                     std::string_view key,
                                     std::string_view where,
                                     std::string fallback);
Expected<bool> json_bool_or(const nlohmann::json& object,
                            std::string_view key,
                            std::string_view where,
                            bool fallback);
Expected<int64_t> json_integer_or(const nlohmann::json& object,
                                  std::string_view key,
                                  std::string_view where,
                                  int64_t fallback);
// Reads an integer, also from a float without a fraction; none: it is something else.
std::optional<int64_t> json_whole_number(const nlohmann::json& value);
// Replaces NaN, Infinity and -Infinity, which Python writes but JSON lacks, by null, with one
// warning about `file`. An empty `file`: another reader of it warns.
std::string json_without_nan(std::string_view text, std::string_view file);
// Returns nullptr for a missing or null field.
const nlohmann::json* json_field(const nlohmann::json& object, std::string_view key);
// The objects of a config.json that hold the text model's keys of a wrapper, "llm_config" being
// InternVL's; the first that is there counts.
inline constexpr const char* kTextConfigs[] = {"text_config", "llm_config"};
// Returns that one; nullptr: the model is no wrapper.
const nlohmann::json* text_config_of(const nlohmann::json& config);
tl::unexpected<Error> json_error(std::string_view where, const std::string& what);
tl::unexpected<Error> json_unsupported(std::string_view where,
                                       std::string_view found,
                                       std::string_view supported);

// The form {"String": ".."} or {"Regex": ".."}.
using JsonPattern = std::variant<Regex, std::string>;
Expected<JsonPattern> read_pattern(const nlohmann::json& object, std::string_view where);

// Beyond the package's own fields, "by_grapheme": false of a Precompiled applies its rules as the
// sentencepiece package does; sentencepiece_as_json() writes it.
Expected<std::vector<NormalizerStep>> read_normalizer(const nlohmann::json& section);

struct JsonPretokenizer {
  std::vector<PretokenizerStage> stages;
  bool is_byte_level = false;
  bool is_spelled = false;  // a stage already spells the bytes
};

Expected<JsonPretokenizer> read_pretokenizer(const nlohmann::json& section);

// Decodes tokens; the first one of a text is special.
class TokenDecoder {
 public:
  static Expected<TokenDecoder> read(const nlohmann::json& section);

  [[nodiscard]] std::string decode(const std::string& token) const;

  // Decodes an added token, whose text never spells bytes.
  [[nodiscard]] std::string decode_added(const std::string& token) const;

  [[nodiscard]] bool strips_first_space() const { return strips_first_space_; }

 private:
  enum class Kind : uint8_t { kByteLevel, kByteFallback, kReplace, kStrip, kWordPiece };

  struct Step {
    Kind kind = Kind::kByteLevel;
    JsonPattern pattern = std::string();
    std::string content;
    size_t left = 0;  // at most this many `content` are cut from a token's ends
    size_t right = 0;
    bool cleans_up = false;
  };

  Expected<void> add(const nlohmann::json& section, int level);
  Expected<void> add_metaspace(const nlohmann::json& section);
  Expected<void> add_replace(const nlohmann::json& section);
  Expected<void> add_strip(const nlohmann::json& section);
  Expected<void> add_word_piece(const nlohmann::json& section);
  static std::string replaced(const Step& step, const std::string& text);

  std::vector<Step> steps_;
  bool is_fused_ = false;
  bool joins_with_space_ = false;  // without any decoder tokens are separated
  bool strips_first_space_ = false;
};

struct PostProcessor {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  std::vector<TokenId> between;  // the two texts of a pair
};

Expected<PostProcessor> read_post_processor(const nlohmann::json& section, size_t num_tokens);

// Returns the number that `tokenizers` reads for a score in a file: it rounds the digits and then
// their division by a power of ten, and is often one unit off. Sums of such scores decide between
// otherwise equal segmentations. The digits are the shortest that give `score`, as in files.
double score_as_written(double score);

}  // namespace sluice
