// SPDX-License-Identifier: Apache-2.0
// A tokenizer's vocabulary as grammars see it.
#pragma once

#include <cstdint>

#include "engine/sampling/grammar/grammar.h"

namespace sluice {

class Tokenizer;

// `width`: of a row of logits. Any thread.
GrammarVocabulary grammar_vocabulary(const Tokenizer& tokenizer, int32_t width);

}  // namespace sluice
