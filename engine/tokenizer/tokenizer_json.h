// SPDX-License-Identifier: Apache-2.0
// The tokenizer of a GGUF file as Hugging Face's files, for programs that tokenize by themselves
// (routers): in the `tokenizers` package they give the ids that create_tokenizer's result gives.
// Exceptions: characters that are in tokens but are none; SentencePiece tokens of equal score;
// user-defined names with SentencePiece's space in them where texts get one in front, which the
// package puts in front of the names too; and SentencePiece's own normalization rules, where the
// package differs from SentencePiece.
#pragma once

#include <string>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// tokenizer.json. Of tokens of one name the first is there; empty names and those that are no
// UTF-8, which JSON cannot hold, are not. Errors as create_tokenizer's.
Expected<std::string> tokenizer_json(const Vocabulary& vocabulary);

// tokenizer_config.json: bos, eos and their like by name, and the chat template.
std::string tokenizer_config_json(const Vocabulary& vocabulary, const std::string& chat_template);

}  // namespace sluice
