// SPDX-License-Identifier: Apache-2.0
// Directories whose tokenizer is tokenizer.model alone (sentencepiece_model.h): InternLM, ERNIE
// 4.5, Baichuan, Yi, Orion, and many of Llama's and Mistral's descendants.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

// The class of a tokenizer, and the model_type whose files have it where they name none.
struct SentencePieceKind {
  std::string_view name;
  std::string_view model_type;
  bool adds_bos;    // unless tokenizer_config.json has add_bos_token
  bool has_legacy;  // its option "legacy": false is read
};

// `name`: a class of transformers or of a model's repository, without "Fast"; empty: of
// `model_type`. Null: another class.
const SentencePieceKind* find_sentencepiece_kind(std::string_view name,
                                                 std::string_view model_type);

// What is beside tokenizer.model: the objects of the files, empty ones for missing files.
struct SentencePieceOptions {
  const nlohmann::json& config;        // tokenizer_config.json
  const nlohmann::json& renamed;       // special_tokens_map.json, where it counts
  const nlohmann::json& added_tokens;  // a list of tokens with "id" and "content"
};

// Returns a tokenizer.json that gives the ids of the sentencepiece package for what is between
// added tokens, all of which are found in the text as it is. With "legacy": false only the
// beginning of the whole text gets a space in front, and none where it begins with one, as in
// LlamaTokenizerFast; otherwise all between added tokens does. Exceptions: of segmentations with
// equal scores another may be taken; in a Unigram model a text such as <0x41> may become that
// byte's piece where its characters have none; a text of which normalization leaves nothing becomes
// no piece; user-defined pieces are found in the normalized text. Errors as those of
// read_sentencepiece_model(); kDataLoss: an option has another type.
Expected<nlohmann::json> sentencepiece_as_json(std::string_view bytes,
                                               const SentencePieceKind& kind,
                                               const SentencePieceOptions& options);

}  // namespace sluice
