// SPDX-License-Identifier: Apache-2.0
// The halves of a layer by their kinds.
#pragma once

#include <memory>

#include "engine/models/halves.h"

namespace sluice {

// Take the tensors of one layer's half from the store; null: the layer has no such half. `config`
// must outlive it.
Expected<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& config,
                                            int32_t layer,
                                            int32_t activation_bits,
                                            WeightStore& weights);
Expected<std::unique_ptr<Ffn>> load_ffn(const ModelConfig& config,
                                        int32_t layer,
                                        int32_t activation_bits,
                                        WeightStore& weights);

}  // namespace sluice
