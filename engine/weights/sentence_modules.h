// SPDX-License-Identifier: Apache-2.0
// The modules of sentence-transformers that a model's files list: how states are pooled, and the
// layers that make a vector or scores of that. Read once, while loading.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/core/pooling.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/weights/pooled_layers.h"

namespace sluice {

struct SentenceModules {
  bool are_there = false;  // the folder has a list of modules
  std::optional<PoolingType> type;
  bool normalizes = false;
  std::vector<PooledLayer> layers;    // after the pooling, in order
  bool gives_scores = false;          // the last of the layers is a classifier's
  bool is_cross_encoder = false;      // what was saved is a CrossEncoder
  std::string score_function;         // of a CrossEncoder: a Python class; empty: not said
  std::string default_prompt_name;    // of a CrossEncoder, which puts it before every pair
  std::vector<TokenId> label_tokens;  // as in PoolingInfo
  bool begins_answer = false;         // likewise
  bool counts_prompts = true;         // a prompt's tokens are part of the pooling
  std::string mask_file;              // of the tokens of ColBERT that have vectors; empty: none
};

// Reads modules.json, the folders that it names, and what config_sentence_transformers.json says of
// scores. Without modules.json the result is empty. kUnsupported or kDataLoss with one line
// "file: field: found X, expected Y".
Expected<SentenceModules> read_modules(const std::string& folder);

}  // namespace sluice
