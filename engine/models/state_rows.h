// SPDX-License-Identifier: Apache-2.0
// What mixers that keep states share.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/model.h"
#include "engine/weights/weight_store.h"
#include "kernels/recurrent.h"

namespace sluice {

// The states of a layer's plane, for the requests of a step.
kernels::StateTable state_table(const ForwardBatch& batch, const LayerCache& cache, size_t plane);

// The last inputs of a convolution's channels, which are a multiple of 16.
KvPlane conv_plane(int32_t channels, int32_t taps);

// Reads [channels][taps] of a convolution and returns [taps][channels].
Expected<std::vector<float>> load_conv(WeightStore& weights,
                                       const std::string& name,
                                       int32_t channels,
                                       int32_t taps);

// Returns some portions of each row of `width` values; each counts from a column on.
std::vector<float> columns_of_rows(std::span<const float> rows,
                                   int32_t width,
                                   std::span<const std::pair<int32_t, Portion>> portions);

// kUnsupported unless the number, which `what` names, is a multiple of the kernels' 16 lanes.
Expected<void> check_lanes(const WeightStore& weights, const std::string& what, int32_t found);

}  // namespace sluice
