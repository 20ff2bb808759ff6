// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizers of GGUF's names (tokenizer.ggml.pre): the regular expressions of the models'
// tokenizer.json files, each isolating its matches, and further settings of those files that GGUF
// implies by the name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/pipeline/pretokenizer.h"

namespace sluice {

struct NamedPretokenizer {
  std::vector<PretokenizerStage> stages;
  std::vector<std::string_view> patterns;  // the expressions of `stages`
  bool whole_words_first = false;          // a piece equal to a token becomes that token
  bool nfc = false;                        // text is normalized to NFC first
};

// The meaning of an empty name, as in llama.cpp.
inline constexpr std::string_view kUsualPretokenizer = "default";

// Whether texts of models with this pre-tokenizer begin with bos, as in llama.cpp.
bool begins_with_bos(std::string_view pre);

// kUnsupported names `pre` and the known names.
Expected<NamedPretokenizer> pretokenizer_by_name(std::string_view pre);

// Returns the expression that finds the same matches as a tokenizer.json's in linear time, where
// one is known, or `expression`.
std::string_view linear_expression(std::string_view expression);

// Returns the stages as a tokenizer.json has them, an array. `Json`: nlohmann's, of any order.
template <typename Json>
Json split_stages(const NamedPretokenizer& named) {
  Json stages = Json::array();
  for (const std::string_view pattern : named.patterns) {
    stages.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
  }
  return stages;
}

// Returns the first name whose stages have these expressions (as linear_expression() gives them)
// and the same NFC setting, preferring one that agrees in whole words. Empty: there is none.
std::string name_of_pretokenizer(const std::vector<std::string>& patterns,
                                 bool whole_words_first,
                                 bool nfc);

}  // namespace sluice
