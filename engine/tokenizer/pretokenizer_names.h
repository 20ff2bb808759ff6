// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizers GGUF names (tokenizer.ggml.pre): the regular expressions of the models'
// tokenizer.json files, each isolating its matches, and what else those files say that GGUF leaves
// to the name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/pretokenizer.h"

namespace sluice {

struct NamedPretokenizer {
  std::vector<PretokenizerStage> stages;
  std::vector<std::string_view> patterns;  // of `stages`
  bool whole_words_first = false;          // a piece that is a token as a whole is that token
  bool nfc = false;                        // text is normalized to NFC first
};

// What an empty name stands for, as in llama.cpp.
inline constexpr std::string_view kUsualPretokenizer = "default";

// kUnsupported names `pre` and the names there are.
Expected<NamedPretokenizer> pretokenizer_by_name(std::string_view pre);

// The first name whose stages have these expressions, and the same of NFC; one that agrees in whole
// words comes before others. Empty: there is none.
std::string name_of_pretokenizer(const std::vector<std::string>& patterns,
                                 bool whole_words_first,
                                 bool nfc);

}  // namespace sluice
