// SPDX-License-Identifier: Apache-2.0
// The sections of a tokenizer.json, each read into our own types. A piece that is not known is
// kUnsupported and named, with those that are; a field of the wrong kind is kDataLoss.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pretokenizer.h"

namespace sluice {

// Sequences may hold sequences, up to this many levels.
inline constexpr int kMaxJsonLevels = 16;

// Fields of an object; `where` names it in messages. A missing one, or null, is the fallback.
Expected<std::string> json_string(const nlohmann::json& object,
                                  std::string_view key,
                                  std::string_view where);  // must be there
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
// An integer, also as a float without a fraction; none: it is something else.
std::optional<int64_t> json_whole_number(const nlohmann::json& value);
// Python writes NaN, Infinity and -Infinity, which are no JSON: each becomes null, with one warning
// about `file`. An empty `file`: another reader of it warns.
std::string json_without_nan(std::string_view text, std::string_view file);
// nullptr: missing or null.
const nlohmann::json* json_field(const nlohmann::json& object, std::string_view key);
tl::unexpected<Error> json_error(std::string_view where, const std::string& what);
tl::unexpected<Error> json_unsupported(std::string_view where,
                                       std::string_view found,
                                       std::string_view supported);

// {"String": ".."} or {"Regex": ".."}
using JsonPattern = std::variant<Regex, std::string>;
Expected<JsonPattern> read_pattern(const nlohmann::json& object, std::string_view where);

Expected<std::vector<NormalizerStep>> read_normalizer(const nlohmann::json& section);

struct JsonPretokenizer {
  std::vector<PretokenizerStage> stages;
  bool is_byte_level = false;
  bool is_spelled = false;  // a stage spells the bytes already
};

Expected<JsonPretokenizer> read_pretokenizer(const nlohmann::json& section);

// What decoders make of one token, and of a text's first.
class TokenDecoder {
 public:
  static Expected<TokenDecoder> read(const nlohmann::json& section);

  [[nodiscard]] std::string decode(const std::string& token) const;

  // Added tokens are no spelling of bytes.
  [[nodiscard]] std::string decode_added(const std::string& token) const;

  [[nodiscard]] bool strips_first_space() const { return strips_first_space_; }

 private:
  enum class Kind : uint8_t { kByteLevel, kByteFallback, kReplace, kStrip, kWordPiece };

  struct Step {
    Kind kind = Kind::kByteLevel;
    JsonPattern pattern = std::string();
    std::string content;
    size_t left = 0;  // at most so many `content` go from a token's ends
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
  bool joins_with_space_ = false;  // without any decoder tokens stand apart
  bool strips_first_space_ = false;
};

struct PostProcessor {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};

Expected<PostProcessor> read_post_processor(const nlohmann::json& section, size_t num_tokens);

// The number that `tokenizers` makes of a score in a file: its reader rounds the digits and their
// division by a power of ten one after the other, and is often one unit off. Sums of such scores
// decide between segmentations that are otherwise equal. The digits are the shortest that give
// `score`, as files have them.
double score_as_written(double score);

}  // namespace sluice
