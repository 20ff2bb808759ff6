// SPDX-License-Identifier: Apache-2.0
// One layer of a decoder as it is loaded: its halves, the norms around them and its scale.
#pragma once

#include <memory>

#include "engine/models/halves.h"
#include "engine/models/output_layer.h"

namespace sluice {

struct DecoderLayer {
  std::unique_ptr<Mixer> mixer;  // null: the layer is a feed-forward half alone
  std::unique_ptr<Ffn> ffn;      // null: it is a mixer alone
  // Norms that its placement lacks are empty.
  StreamNorm before_mixer;  // in a layer of parallel halves, of both; in one of one half, its own
  StreamNorm after_mixer;
  StreamNorm before_ffn;
  StreamNorm after_ffn;
  float scale = 1;  // factor of its output, where the model has layer_scales
};

// Takes the tensors of layer `index`. `config` must outlive it.
Expected<DecoderLayer> load_decoder_layer(const ModelConfig& config,
                                          int32_t index,
                                          int32_t activation_bits,
                                          WeightStore& weights);

}  // namespace sluice
