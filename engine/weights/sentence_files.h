// SPDX-License-Identifier: Apache-2.0
// What files of sentence-transformers, PyLate and ColBERT say of texts before they are tokens:
// their most tokens, prompts by name, and the two sides of late interaction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/pooling.h"
#include "engine/core/status.h"

namespace sluice {

class Tokenizer;

// Reads `prompts` of config_sentence_transformers.json; a folder without them has none.
Expected<std::vector<NamedPrompt>> read_prompts(const std::string& folder);

// The length that sentence-transformers cuts texts to, as max_seq_length says it, or without that
// the tokenizer's model_max_length; 0: the files do not say. Texts that it would make lower case
// before the tokenizer sees them are refused where that makes a difference.
Expected<int32_t> read_max_tokens(const std::string& folder,
                                  const Tokenizer& tokenizer,
                                  PoolingType type);

// What is known of a model whose tokens' vectors are compared.
struct ComparedModel {
  std::string mask_file;     // of the module MultiVectorMask; empty: there is none
  bool is_stanford = false;  // the class is HF_ColBERT, beside artifact.metadata
  bool sees_whole = false;   // each token sees later ones too
  TokenId unseen = 0;        // added to ids that no token sees; 0: it sees all
  int32_t max_tokens = 0;
  int32_t window = 0;        // the narrowest of a layer; 0: none has one
};

// Reads how queries and documents become tokens. Files that say nothing of it give an empty one.
// kUnsupported with one line "file: field: found X, expected Y".
Expected<TokenComparison> read_comparison(const std::string& folder,
                                          const Tokenizer& tokenizer,
                                          const ComparedModel& model);

}  // namespace sluice
