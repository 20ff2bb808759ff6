// SPDX-License-Identifier: Apache-2.0
// What mixers that keep states share.
#pragma once

#include <string>
#include <vector>

#include "engine/models/model.h"
#include "engine/weights/weight_store.h"
#include "kernels/recurrent.h"

namespace sluice {

// The states of a layer's plane, for the requests of a step.
kernels::StateTable state_table(const ForwardBatch& batch, const LayerCache& cache, size_t plane);

// Reads [channels][taps] of a convolution and returns [taps][channels].
Expected<std::vector<float>> load_conv(WeightStore& weights,
                                       const std::string& name,
                                       int32_t channels,
                                       int32_t taps);

// kUnsupported unless the number, which `what` names, is a multiple of the kernels' 16 lanes.
Expected<void> check_lanes(const WeightStore& weights, const std::string& what, int32_t found);

}  // namespace sluice
