// SPDX-License-Identifier: Apache-2.0
// Layers that a model applies after its pooling: the Dense modules of sentence-transformers, their
// tensors in a GGUF file, and a classifier's head where scores are of a pooled vector. Read once,
// while loading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

class Checkpoint;

enum class PooledFunction : uint8_t { kIdentity, kTanh, kGelu, kRelu };

// y = function(W x + b), then normed as by LayerNorm where there are weights for it, then, where
// `adds_input`, plus R x.
struct PooledLayer {
  int32_t in = 0;
  int32_t out = 0;
  std::vector<float> weight;  // [out, in]
  std::vector<float> bias;    // [out]; empty: none
  PooledFunction function = PooledFunction::kIdentity;
  std::vector<float> norm_weight;  // [out]; empty: no norm
  std::vector<float> norm_bias;    // [out]; empty: none
  double norm_epsilon = 0;
  bool adds_input = false;
  std::vector<float> residual;  // [out, in] R; empty: the identity
};

// Reads the folder of a Dense module: config.json and the weights. kDataLoss or kUnsupported
// with one line "file: field: found X, expected Y".
Expected<PooledLayer> read_dense_module(const std::string& folder);

// Reads the folder of a LayerNorm module, whose norm follows the layer. Errors as above.
Expected<void> read_norm_module(const std::string& folder, PooledLayer& layer);

// Reads dense_2 and dense_3, weights and biases; a file without them has no layers.
Expected<std::vector<PooledLayer>> read_dense_tensors(const Checkpoint& checkpoint);

// Whether there are cls.output and what it follows in the files' family (FileSpec::before_scores).
bool has_scoring_head(const Checkpoint& checkpoint);

// Reads a classifier's head: cls.output, after ModernBERT's cls with cls.norm or DistilBERT's
// cls.relu where a model has one of them; no layers without has_scoring_head(). Not for a model
// that applies cls.output itself.
Expected<std::vector<PooledLayer>> read_scoring_head(const Checkpoint& checkpoint);

// Reads the layer applied to each token of ColBERT, cls.tokens; a model without it has none.
Expected<std::vector<PooledLayer>> read_token_layer(const Checkpoint& checkpoint);

// kDataLoss unless each layer takes what the one before gives, the first one `width` elements.
Expected<void> check_pooled_layers(const std::string& file,
                                   int32_t width,
                                   const std::vector<PooledLayer>& layers);

}  // namespace sluice
