// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/bert_stages.h"

#include <string>
#include <utility>

#include "engine/tokenizer/text/unicode_data.h"

namespace sluice {

Expected<void> add_bert_steps(const BertText& text, std::vector<NormalizerStep>& steps) {
  if (text.cleans) {
    SLUICE_TRY(Regex spaces, Regex::compile("\\s"));
    steps.emplace_back(OmitStep{OmittedCharacters::kBertControls});
    steps.emplace_back(ReplaceStep{std::move(spaces), " "});
  }
  if (text.pads_chinese) {
    SLUICE_TRY(Regex ideographs,
               Regex::compile("[\\x{3400}-\\x{4dbf}\\x{4e00}-\\x{9fff}\\x{f900}-\\x{faff}"
                              "\\x{20000}-\\x{2a6df}\\x{2a700}-\\x{2b81f}"
                              "\\x{2b920}-\\x{2ceaf}\\x{2f800}-\\x{2fa1f}]"));
    steps.emplace_back(ReplaceStep{std::move(ideographs), " ", true, /*keeps_match=*/true});
  }
  if (text.strips_accents) {
    steps.emplace_back(UnicodeFormStep{UnicodeForm::kNfd});
    steps.emplace_back(OmitStep{OmittedCharacters::kBertMarks});
  }
  if (text.lowercases) steps.emplace_back(LowercaseStep{});
  return {};
}

Expected<void> add_bert_stages(std::vector<PretokenizerStage>& stages) {
  SLUICE_TRY(Regex spaces, Regex::compile("\\s+"));
  SLUICE_TRY(Regex marks, Regex::compile("[" + std::string(kPunctuationMembers) + "]"));
  stages.emplace_back(SplitStage{std::move(spaces), SplitBehavior::kRemoved, false});
  stages.emplace_back(SplitStage{std::move(marks), SplitBehavior::kIsolated, false});
  return {};
}

}  // namespace sluice
