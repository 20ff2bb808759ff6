// SPDX-License-Identifier: Apache-2.0
// The tokenizers of GGUF files, by tokenizer.ggml.model. Errors as create_tokenizer's.
#pragma once

#include <memory>

#include "engine/core/status.h"
#include "engine/tokenizer/token_pipeline.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// "gpt2"
Expected<std::unique_ptr<Tokenizer>> create_byte_bpe_tokenizer(Vocabulary vocabulary);
// "llama": tokens have scores; of two neighbours the pair with the best merged token is merged.
Expected<std::unique_ptr<Tokenizer>> create_sentencepiece_tokenizer(Vocabulary vocabulary);
// "gemma4": merges over characters.
Expected<std::unique_ptr<Tokenizer>> create_char_bpe_tokenizer(Vocabulary vocabulary);
// "t5"
Expected<std::unique_ptr<Tokenizer>> create_unigram_tokenizer(Vocabulary vocabulary);

}  // namespace sluice
