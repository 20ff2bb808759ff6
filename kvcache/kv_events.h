// SPDX-License-Identifier: Apache-2.0
// Changes in the prefix index and in the tiers below it, reported for routers that send a request
// to the server where its prefix is cached.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/core/types.h"
#include "kvcache/prefix_extras.h"

namespace sluice {

// The memory or medium that a block lies in.
enum class KvMedium : uint8_t { kDevice, kHost, kDisk };

// A block of one group that has become findable.
struct StoredBlock {
  uint64_t hash = 0;                    // hash of the whole prefix up to its end, and extras
  std::optional<uint64_t> parent_hash;  // hash of the prefix before the block
  std::span<const TokenId> token_ids;   // block_size token ids; valid during the call
  PrefixExtras extras;
  int32_t group = 0;
  KvMedium medium = KvMedium::kDevice;
};

// The manager and the tiers' store call it on the engine thread, in the order of the changes. A
// call must only note the change and return.
class KvEventSink {
 public:
  virtual ~KvEventSink() = default;
  virtual void stored(const StoredBlock& block) = 0;
  virtual void removed(uint64_t hash, int32_t group, KvMedium medium) = 0;
  virtual void cleared() = 0;  // nothing is findable on the device any more
};

}  // namespace sluice
