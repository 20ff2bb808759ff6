// SPDX-License-Identifier: Apache-2.0
// What a model's files say of the vectors or scores that it makes: those of sentence-transformers
// (modules.json and the folders that it names), config.json, a GGUF file's pooling_type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/pooling.h"
#include "engine/core/status.h"
#include "engine/weights/pooled_layers.h"

namespace sluice {

struct Config;
class Checkpoint;
class Tokenizer;

// What is known of the model beside its files.
struct PooledModel {
  int32_t hidden = 0;         // width of its states
  int32_t num_labels = 0;     // of its own layer that scores; 0: it has none
  int32_t max_model_len = 0;  // tokens
  bool is_encoder = false;    // each token sees later ones too
  bool lacks_output = false;  // it cannot choose tokens
  bool has_segments = false;  // see PoolingInfo
  TokenId unseen = 0;         // added to ids that no token sees; 0: it sees all
  int32_t window = 0;         // the narrowest of a layer; 0: none has one
};

// How a model pools, and the layers after that.
struct Pooling {
  PoolingInfo info;
  std::vector<PooledLayer> layers;  // in order, before a vector is cut and normalized
  // A text is pooled at the last token that is not this one; kInvalidToken: at its last one.
  TokenId padding = kInvalidToken;
};

// Returns how the model pools, as --runner, --convert and --pooling ask and its files say; none: it
// generates. kUnsupported or kDataLoss with one line "file: field: found X, expected Y", or naming
// the flag that is needed.
Expected<std::optional<Pooling>> read_pooling(const Config& config,
                                                  const Checkpoint& checkpoint,
                                                  const Tokenizer& tokenizer,
                                                  PooledModel model);

}  // namespace sluice
