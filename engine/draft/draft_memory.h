// SPDX-License-Identifier: Apache-2.0
// The memory of a draft model beside its target: its needs, and what the memory plan gives it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/types.h"
#include "kvcache/kv_group.h"

namespace sluice {

// The needs of a draft model before the number of blocks is known.
struct DraftMemory {
  int64_t weight_bytes = 0;
  int64_t rope_bytes_per_token = 0;
  int64_t arena_bytes = 0;    // without rotations
  int64_t host_bytes = 0;     // beside a device with memory of its own
  int64_t num_recorded_layers = 0;  // over all recorded passes
  int64_t max_model_len = 0;  // upper bound
  DType kv_dtype = DType::kBF16;
  int32_t kv_group = 0;  // see DraftPlan
  int32_t num_own_blocks = 0;
  std::vector<KvGroupSpec> kv_groups;
};

// The memory of a draft model. Its KV is indexed by the block ids of one of the target's groups;
// the blocks of its own follow them.
struct DraftPlan {
  int64_t weight_bytes = 0;
  int64_t arena_bytes = 0;  // activations, rotations, logits and sampling
  int64_t kv_bytes = 0;
  int32_t max_model_len = 0;  // longest sequence that it drafts for
  DType kv_dtype = DType::kBF16;
  int32_t kv_group = 0;                   // the target's group whose block ids index it
  int32_t num_own_blocks = 0;             // per group, the last ones
  std::vector<KvGroupSpec> kv_groups;  // the draft model's, num_blocks set

  [[nodiscard]] int64_t total_bytes() const { return weight_bytes + arena_bytes + kv_bytes; }
};

}  // namespace sluice
