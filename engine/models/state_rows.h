// SPDX-License-Identifier: Apache-2.0
// What mixers that keep states share.
#pragma once

#include <array>
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

// Rows of a step and those that it replays, and the most of both together.
int32_t num_state_rows(const ForwardBatch& batch);
int64_t most_state_rows(const StepBounds& bounds, const ModelConfig& config);

// What a recurrence reads of a row of projections.
using ReplayedColumns = std::array<kernels::ReplayRowsArgs::Columns, 2>;

// Makes the rows that requests replay, and keeps drafts, in the last plane of the cache.
void replay_rows(const ForwardContext& context,
                 const LayerCache& cache,
                 float* rows,
                 int64_t row_stride,
                 const ReplayedColumns& columns);

// The group of states of these planes, and, where the model can have drafts, of as many rows of so
// many floats: the last plane.
KvGroupSpec replayed_state_group(std::vector<KvPlane> planes,
                                 const ModelConfig& config,
                                 int32_t row_floats);

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
