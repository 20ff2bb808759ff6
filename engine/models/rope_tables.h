// SPDX-License-Identifier: Apache-2.0
// The rotations of a model's layers for the context that is served.
#pragma once

#include <vector>

#include "engine/core/status.h"
#include "engine/models/model_config.h"

namespace sluice {

class WeightStore;

// Takes the factors that GGUF files have as tensors. kDataLoss: a factor out of range.
Expected<void> take_rope_factors(WeightStore& weights, ModelConfig& config);

// Returns a table for each of config.ropes.
std::vector<kernels::RopeTable> rope_tables(const ModelConfig& config, int32_t max_model_len);

}  // namespace sluice
