// SPDX-License-Identifier: Apache-2.0
// What has changed in the prefix cache, for those who watch it from another layer or machine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

enum class KvEventKind : uint8_t { kStored, kRemoved, kCleared };

// Successive blocks of one prefix are one event.
struct KvEvent {
  KvEventKind kind = KvEventKind::kCleared;
  std::vector<uint64_t> hashes;         // of the prefixes that the blocks end
  std::optional<uint64_t> parent_hash;  // kStored: of the prefix before the first; none: no prefix
  std::vector<TokenId> token_ids;       // kStored: block_size of each block
  uint64_t tenant_salt = 0;             // kStored: this and the next two make equal tokens unequal
  int32_t adapter_id = 0;               // 0: the base model
  uint64_t media_hash = 0;
  int32_t group = 0;            // of KV, from 0
  std::string_view group_kind;  // kStored: vLLM's name, full_attention or sliding_window
  int32_t window = 0;           // of a window group, in tokens
  std::string_view medium;      // GPU (what attention reads), CPU or STORAGE
};

// Those of one step.
struct KvEventBatch {
  int64_t number = 0;  // from 0 on; a gap: batches were lost
  double unix_time = 0;
  int32_t block_size = 0;  // tokens
  std::vector<KvEvent> events;
};

class KvEventWatcher {
 public:
  virtual ~KvEventWatcher() = default;
  // The publisher's thread, in the order of numbers: hand over and return.
  virtual void publish(std::shared_ptr<const KvEventBatch> batch) = 0;
};

}  // namespace sluice
