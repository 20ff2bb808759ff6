// SPDX-License-Identifier: Apache-2.0
// Processes text before it is cut into pieces: steps as tokenizer.json names them, in order.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/pipeline/charsmap.h"
#include "engine/tokenizer/text/regex.h"
#include "engine/tokenizer/text/unicode_forms.h"

namespace sluice {

struct PrependStep {
  std::string text;
};

struct ReplaceStep {
  std::variant<Regex, std::string> pattern;  // a string is matched literally
  std::string content;
  bool spares_ascii = false;  // the pattern, an expression, matches nothing in ASCII text
  bool keeps_match = false;   // `content` surrounds the match, for expressions
};

// Replaces bytes by their spelling (byte_level.h).
struct SpellBytesStep {};

struct UnicodeFormStep {
  UnicodeForm form = UnicodeForm::kNfc;
};

struct LowercaseStep {};

struct OmitStep {
  OmittedCharacters characters = OmittedCharacters::kMarks;
};

struct StripStep {
  bool left = true;
  bool right = true;
};

struct CharsmapStep {
  Charsmap map;
  bool by_grapheme = false;  // like the `tokenizers` package; false: like SentencePiece
};

using NormalizerStep = std::variant<PrependStep,
                                    ReplaceStep,
                                    SpellBytesStep,
                                    UnicodeFormStep,
                                    LowercaseStep,
                                    OmitStep,
                                    StripStep,
                                    CharsmapStep>;

class Normalizer {
 public:
  Normalizer() = default;

  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  [[nodiscard]] bool empty() const { return steps_.empty(); }

  // Returns true if `text` changes, with the result in `out`. Invalid UTF-8 stays. `continues`:
  // text comes before, so nothing is put in front.
  bool normalize(std::string_view text,
                 Regex::Scanner& scanner,
                 std::string& out,
                 bool continues = false) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace sluice
