// SPDX-License-Identifier: Apache-2.0
// Converts a tokenizer's vocabulary to the form that grammars use.
#pragma once

#include <cstdint>

#include "engine/sampling/grammar/grammar.h"

namespace sluice {

class Tokenizer;

// `width`: columns of a row of logits. Any thread.
GrammarVocabulary grammar_vocabulary(const Tokenizer& tokenizer, int32_t width);

}  // namespace sluice
