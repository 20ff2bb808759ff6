// SPDX-License-Identifier: Apache-2.0
// Changes of the prefix cache, for observers in another layer or on another machine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

enum class KvEventKind : uint8_t { kStored, kRemoved, kCleared };

// A change; successive blocks of one prefix share one event.
struct KvEvent {
  KvEventKind kind = KvEventKind::kCleared;
  std::vector<uint64_t> hashes;         // one per block: of the prefix that it ends
  std::optional<uint64_t> parent_hash;  // kStored: of the prefix before the first block; none: root
  std::vector<TokenId> token_ids;       // kStored: block_size per block
  uint64_t tenant_salt = 0;             // kStored: this and the next two distinguish equal tokens
  int32_t adapter_id = 0;               // 0: the base model
  uint64_t media_hash = 0;
  int32_t group = 0;            // KV group, from 0
  std::string_view group_kind;  // kStored: vLLM's name, full_attention or sliding_window
  int32_t window = 0;           // tokens, for a window group
  std::string_view medium;      // GPU (what attention reads), CPU or STORAGE
};

// The events of one step.
struct KvEventBatch {
  int64_t number = 0;  // from 0; a gap means lost batches
  double unix_time = 0;
  int32_t block_size = 0;  // tokens
  std::vector<KvEvent> events;
};

class KvEventWatcher {
 public:
  virtual ~KvEventWatcher() = default;
  // Called on the publisher's thread in order of numbers; must return quickly.
  virtual void publish(std::shared_ptr<const KvEventBatch> batch) = 0;
};

}  // namespace sluice
