// SPDX-License-Identifier: Apache-2.0
// The determinism key of an engine as one short name. Requests with the same parameters and seed
// have the same tokens and log-probabilities wherever the name is the same.
#pragma once

#include <string>

#include "engine/core/config.h"
#include "engine/memory_plan.h"
#include "engine/models/model.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/weight_store.h"

namespace sluice {

// "fp_" and 16 hex digits: a hash of model files, build, backend class, activation and KV dtypes,
// and of what the planned context changes in rotations. Once, after the weights of rank 0 are
// packed: their contents were hashed on the way.
[[nodiscard]] std::string fingerprint_of(const Checkpoint& checkpoint,
                                         const WeightStore& weights,
                                         const Config& config,
                                         const ModelConfig& model,
                                         const MemoryPlan& plan);

}  // namespace sluice
