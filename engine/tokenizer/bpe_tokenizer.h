// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE, GGUF's model "gpt2" (GPT-2, Llama 3, Qwen, SmolLM, Falcon, DeepSeek, ...).
#pragma once

#include <memory>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// Errors as create_tokenizer's.
Expected<std::unique_ptr<Tokenizer>> create_bpe_tokenizer(Vocabulary vocabulary);

}  // namespace sluice
