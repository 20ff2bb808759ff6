// SPDX-License-Identifier: Apache-2.0
// Layers that a model has behind its pooling: the Dense modules of sentence-transformers, and their
// tensors in a GGUF file. Read once, while loading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

class Checkpoint;

// y = W x + b, then tanh where it is asked for.
struct PooledLayer {
  int32_t in = 0;
  int32_t out = 0;
  std::vector<float> weight;  // [out, in]
  std::vector<float> bias;    // [out]; empty: none
  bool has_tanh = false;
};

// Reads the folder of a Dense module: config.json and model.safetensors. kDataLoss or kUnsupported
// with one line "file: field: found X, expected Y".
Expected<PooledLayer> read_dense_module(const std::string& folder);

// Reads dense_2.weight and dense_3.weight; a file without them has no layers.
Expected<std::vector<PooledLayer>> read_dense_tensors(const Checkpoint& checkpoint);

// kDataLoss unless each layer takes what the one before gives, the first one `width` elements.
Expected<void> check_pooled_layers(const std::string& file,
                                   int32_t width,
                                   const std::vector<PooledLayer>& layers);

}  // namespace sluice
