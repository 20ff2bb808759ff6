// SPDX-License-Identifier: Apache-2.0
// The determinism key of an engine as a short name. Equal parameters and seed give equal tokens and
// log-probabilities wherever the name is equal.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/config.h"
#include "engine/models/model_config.h"
#include "engine/plan/memory_plan.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/pooling_files.h"

namespace sluice {

// Returns "fp_" and 16 hex digits: a hash of model files, build, processor (a GPU's model; one for
// all CPUs), activation and KV dtypes, the rotations' dependence on the planned context, and the
// tokens that are never chosen.
// `content`: of all tensors (WeightStore::content_hash()), known when the weights are packed.
[[nodiscard]] std::string fingerprint_of(const Checkpoint& checkpoint,
                                         uint64_t content,
                                         const Config& config,
                                         const ModelConfig& model,
                                         const MemoryPlan& plan);

// Returns the name of an engine that makes vectors or scores: a hash of `fingerprint` and of all
// that `pooling` says and has of an answer's numbers.
[[nodiscard]] std::string pooled_fingerprint(const std::string& fingerprint,
                                             const Pooling& pooling);

}  // namespace sluice
