// SPDX-License-Identifier: Apache-2.0
// Computes how many bytes everything takes before anything is allocated. A configuration that does
// not fit is refused with the numbers and the flag that would make it fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/draft/draft_memory.h"
#include "engine/models/model.h"
#include "kvcache/kv_group.h"

namespace sluice {

// What the size of the KV cache follows from.
enum class KvBound : uint8_t {
  kAsked,       // --kv-cache-memory
  kRequests,    // max_num_seqs requests of max_model_len use no more
  kFree,        // half of what is free beside all else; of a device's memory nine tenths
  kOneRequest,  // more than that, for one request of the --max-model-len that was asked for
};

struct MemoryPlan {
  int64_t file_bytes = 0;    // mapped, shared with the page cache
  int64_t weight_bytes = 0;  // repacked
  std::string weight_types;  // matrix types, for people
  bool weights_mapped = false;  // weights come packed in a file
  int64_t rope_bytes = 0;
  int64_t arena_bytes = 0;   // activations and workspaces
  int64_t logits_bytes = 0;  // logits and sampling
  int64_t kv_bytes = 0;      // with states
  KvBound kv_bound = KvBound::kAsked;
  int32_t max_num_seqs = 0;
  int64_t state_bytes = 0;   // of recurrent layers
  int64_t num_states = 0;
  int64_t requests_with_states = 0;  // that may run at once
  int64_t kv_tier_bytes = 0;    // host memory of lower tiers, with transfer buffers
  int64_t kv_slot_bytes = 0;     // transfer slots beside a device's cache
  int64_t kv_landing_bytes = 0;  // host memory for KV that arrives or leaves
  int64_t proposer_bytes = 0;   // host memory of token-based proposers, at most
  int64_t incoming_bytes = 0;   // host memory for requests that are not complete, at most
  int64_t available_bytes = 0;  // min(machine, cgroup), or the device's, when planned
  bool on_device = false;       // everything but host and tier fields is device memory
  int32_t num_devices = 1;      // each takes the same amount
  int64_t host_bytes = 0;       // beside a device: pinned memory and host sampling
  std::string processor = "cpu";  // whose arithmetic the bits are: the CPUs', or GPUs of these names
  std::string placement;        // memory and threads, for people
  std::string layers;           // of this process's stage, for people; empty: all
  int32_t max_model_len = 0;
  int32_t block_size = 0;
  DType kv_dtype = DType::kBF16;
  std::vector<KvGroupSpec> kv_groups;  // num_blocks set
  std::vector<int64_t> window_tokens;     // per group of windowed layers
  std::optional<DraftPlan> draft;

  [[nodiscard]] int64_t total_bytes() const {
    return weight_bytes + rope_bytes + arena_bytes + logits_bytes + kv_bytes + kv_slot_bytes +
           (on_device ? 0 : side_bytes()) + (draft ? draft->total_bytes() : 0);
  }

  // Host memory beside what steps need.
  [[nodiscard]] int64_t side_bytes() const {
    return kv_tier_bytes + kv_landing_bytes + proposer_bytes + incoming_bytes;
  }

  [[nodiscard]] int64_t kv_tokens() const;  // capacity of layers that keep every token
  [[nodiscard]] std::string describe() const;
};

// The needs of a model besides its KV.
struct FixedMemory {
  int64_t file_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t rope_bytes_per_token = 0;
  int64_t arena_bytes = 0;
  int64_t logits_bytes = 0;
  int64_t proposer_bytes = 0;
  int64_t host_free_bytes = 0;  // available_memory_bytes()
  // Free bytes of the device that holds the rest, if it has memory of its own; with several
  // devices, the least of them.
  std::optional<int64_t> device_free_bytes = {};
  int32_t num_devices = 1;  // of this process
  bool has_nccl = false;    // which connects them, or those of other processes
  int64_t num_recorded_steps = 0;  // on the device
  int64_t host_bytes = 0;
  std::optional<DraftMemory> draft = {};
};

// kResourceExhausted carries the numbers and the flag. Without --max-model-len the context shrinks
// to what fits. Without --kv-cache-memory the size follows from the first of these that holds: what
// max_num_seqs requests of full length use; half of what is left, on a device 90%; what one request
// of the length asked for uses.
Expected<MemoryPlan> plan_memory(const Config& config,
                                 const ModelConfig& model,
                                 const std::vector<LayerGroup>& layouts,
                                 const FixedMemory& fixed);

// min(MemAvailable, cgroup limit - cgroup use), in bytes.
int64_t available_memory_bytes();

}  // namespace sluice
