// SPDX-License-Identifier: Apache-2.0
// Makes the tokenizers of GGUF files, by TokenizerKind. Errors as in create_tokenizer().
#pragma once

#include <memory>
#include <string_view>

#include "engine/core/status.h"
#include "engine/tokenizer/pipeline/token_pipeline.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// Spaces of which "t5" makes one where it removes extra ones: White_Space, at which tokenizers
// splits XLM-R's texts. Their normalization leaves some of it alone, such as U+0085, a piece of
// XLM-R.
inline constexpr std::string_view kUnigramSpaces = R"(\s+)";

Expected<std::unique_ptr<Tokenizer>> create_byte_bpe_tokenizer(Vocabulary vocabulary);
Expected<std::unique_ptr<Tokenizer>> create_sentencepiece_tokenizer(Vocabulary vocabulary);
Expected<std::unique_ptr<Tokenizer>> create_char_bpe_tokenizer(Vocabulary vocabulary);
// Tokens that begin a word are stored with a space in front.
Expected<std::unique_ptr<Tokenizer>> create_word_piece_tokenizer(Vocabulary vocabulary);
Expected<std::unique_ptr<Tokenizer>> create_unigram_tokenizer(Vocabulary vocabulary);

}  // namespace sluice
