// SPDX-License-Identifier: Apache-2.0
// How many bytes everything takes, before anything is allocated; what does not fit is refused with
// the numbers and the flag that would make it fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/models/model.h"
#include "kvcache/kv_storage.h"

namespace sluice {

// Of a model that drafts. Its KV is indexed by the block ids of one of the target's groups, and has
// blocks of its own behind those.
struct DraftPlan {
  int64_t weight_bytes = 0;
  int64_t arena_bytes = 0;  // activations, rotations, logits and sampling
  int64_t kv_bytes = 0;
  int32_t max_model_len = 0;  // of a sequence that it drafts for
  DType kv_dtype = DType::kBF16;
  int32_t kv_group = 0;                   // the target's, whose block ids index it
  int32_t num_own_blocks = 0;             // in each of its groups, the last ones
  std::vector<KvGroupSpec> kv_groups;  // its own, num_blocks set

  [[nodiscard]] int64_t total_bytes() const { return weight_bytes + arena_bytes + kv_bytes; }
};

struct MemoryPlan {
  int64_t file_bytes = 0;    // mapped, shared with the page cache
  int64_t weight_bytes = 0;  // repacked
  std::string weight_types;  // of matrices, for people
  bool weights_mapped = false;  // from a file that has them packed
  int64_t rope_bytes = 0;
  int64_t arena_bytes = 0;   // activations and workspaces
  int64_t logits_bytes = 0;  // logits and sampling
  int64_t kv_bytes = 0;
  int64_t kv_tier_bytes = 0;    // host memory below the cache, and buffers on the way
  int64_t kv_slot_bytes = 0;     // beside a cache on a device: where KV comes from and goes
  int64_t kv_landing_bytes = 0;  // host memory where KV arrives, or on its way from a device
  int64_t proposer_bytes = 0;   // host memory of what guesses from tokens, at most
  int64_t available_bytes = 0;  // min(machine, cgroup), or of the device, when planned
  bool on_device = false;       // all but the tiers and what follows is memory of a device
  int32_t num_devices = 1;      // each of which has as much
  int64_t host_bytes = 0;       // beside it: pinned memory and sampling on the host
  std::string placement;        // of memory and threads on the machine, for people
  int32_t max_model_len = 0;
  int32_t block_size = 0;
  DType kv_dtype = DType::kBF16;
  std::vector<KvGroupSpec> kv_groups;  // num_blocks set
  std::vector<int64_t> window_tokens;     // of each group of windowed layers
  std::optional<DraftPlan> draft;

  [[nodiscard]] int64_t total_bytes() const {
    return weight_bytes + rope_bytes + arena_bytes + logits_bytes + kv_bytes + kv_slot_bytes +
           (on_device ? 0 : side_bytes()) + (draft ? draft->total_bytes() : 0);
  }

  // Of the host, beside what steps need.
  [[nodiscard]] int64_t side_bytes() const {
    return kv_tier_bytes + kv_landing_bytes + proposer_bytes;
  }

  [[nodiscard]] int64_t kv_tokens() const;  // of the layers that keep every token
  [[nodiscard]] std::string describe() const;
};

// What a model that drafts needs, before it is known how many blocks there are.
struct DraftMemory {
  int64_t weight_bytes = 0;
  int64_t rope_bytes_per_token = 0;
  int64_t arena_bytes = 0;    // without its rotations
  int64_t host_bytes = 0;     // beside a device with memory of its own
  int64_t num_recorded_layers = 0;  // of all its passes that such a device has recorded
  int64_t max_model_len = 0;  // at most
  DType kv_dtype = DType::kBF16;
  int32_t kv_group = 0;  // as in DraftPlan
  int32_t num_own_blocks = 0;
  std::vector<KvGroupSpec> kv_groups;
};

// What a model needs besides its KV.
struct FixedMemory {
  int64_t file_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t rope_bytes_per_token = 0;
  int64_t arena_bytes = 0;
  int64_t logits_bytes = 0;
  int64_t proposer_bytes = 0;
  // Of a device with memory of its own, which the rest is in: what it has, and what the host needs.
  // Of several devices, each: the least free bytes.
  std::optional<int64_t> device_free_bytes = {};
  int32_t num_devices = 1;
  int64_t num_recorded_steps = 0;  // on it
  int64_t host_bytes = 0;
  std::optional<DraftMemory> draft = {};
};

// kResourceExhausted: the numbers and the flag. Without --max-model-len the context shrinks to what
// fits; without --kv-cache-memory the cache takes what all sequences at full length need, at most
// 1 GiB or one full-length request, whichever is more, and of a device nine tenths of what is left.
Expected<MemoryPlan> plan_memory(const Config& config,
                                 const ModelConfig& model,
                                 const std::vector<LayerGroup>& layouts,
                                 const FixedMemory& fixed);

Expected<DType> parse_kv_dtype(const std::string& name);

// min(MemAvailable, cgroup limit - cgroup use), in bytes.
int64_t available_memory_bytes();

}  // namespace sluice
