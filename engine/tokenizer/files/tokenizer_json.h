// SPDX-License-Identifier: Apache-2.0
// Writes a GGUF file's tokenizer as Hugging Face's files, for programs that tokenize by themselves
// (routers): in the `tokenizers` package they give the same ids as create_tokenizer()'s result.
// Exceptions: characters that occur in tokens but are not tokens; SentencePiece tokens of equal
// score; user-defined names containing SentencePiece's space if texts get one in front, because the
// package also puts it in front of names; and SentencePiece's own normalization rules, where the
// package differs from SentencePiece.
#pragma once

#include <string>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// Returns tokenizer.json. Among tokens of one name only the first is included; empty names and
// invalid UTF-8, which JSON cannot hold, are left out. Errors as in create_tokenizer().
Expected<std::string> tokenizer_json(const Vocabulary& vocabulary);

// Returns tokenizer_config.json: names of bos, eos and similar tokens, and the chat template.
std::string tokenizer_config_json(const Vocabulary& vocabulary, const std::string& chat_template);

}  // namespace sluice
