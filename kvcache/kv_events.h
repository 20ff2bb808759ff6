// SPDX-License-Identifier: Apache-2.0
// What changes in the prefix index and in the tiers below it, for routers that send a request where
// its prefix is cached.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/core/types.h"
#include "kvcache/prefix_extras.h"

namespace sluice {

// Where a block lies.
enum class KvMedium : uint8_t { kDevice, kHost, kDisk };

// One block of one group has become findable.
struct StoredBlock {
  uint64_t hash = 0;                    // of the whole prefix that it ends, extras included
  std::optional<uint64_t> parent_hash;  // of the prefix before it
  std::span<const TokenId> token_ids;   // block_size of them; valid during the call
  PrefixExtras extras;
  int32_t group = 0;
  KvMedium medium = KvMedium::kDevice;
};

// Called on the engine thread by the manager and the store of the tiers, in the order of the
// changes: note and return.
class KvEventSink {
 public:
  virtual ~KvEventSink() = default;
  virtual void stored(const StoredBlock& block) = 0;
  virtual void removed(uint64_t hash, int32_t group, KvMedium medium) = 0;
  virtual void cleared() = 0;  // nothing is findable on the device any more
};

}  // namespace sluice
