// SPDX-License-Identifier: Apache-2.0
// Tells routers which blocks lie in the tiers below the cache, under the hashes that the prefix
// index gives them. A block is told when it has been written, and one that was there at the start
// when a request first asks for it: files have names that say nothing of their contents. Engine
// thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/core/types.h"
#include "kvcache/kv_events.h"
#include "kvcache/kv_key.h"

namespace sluice {

class TierEvents {
 public:
  // `media[tier]` is where that tier's blocks lie. Null: nobody listens.
  TierEvents(KvEventSink* sink, std::vector<KvMedium> media, int32_t num_groups);

  [[nodiscard]] bool has_listener() const { return sink_ != nullptr; }

  // The last block of a prefix, in all groups.
  struct Block {
    KvKey key;
    uint64_t hash = 0;
    std::optional<uint64_t> parent_hash;
    std::span<const TokenId> token_ids;
    PrefixExtras extras;
  };

  // It is being written; told when it is there.
  void expect(size_t tier, const Block& block);
  // It is there or being written: told now, unless it was or will be.
  void meet(size_t tier, const Block& block);
  // KvTier::Listener.
  void note(size_t tier, const KvKey& key, bool is_there);

 private:
  struct Expected {
    uint64_t hash = 0;
    std::optional<uint64_t> parent_hash;
    std::vector<TokenId> token_ids;
    PrefixExtras extras;
  };

  struct Tier {
    KvMedium medium;
    std::unordered_map<KvKey, Expected, KvKeyHash> expected;  // as many as the tier has buffers
    std::unordered_map<KvKey, uint64_t, KvKeyHash> told;      // with its hash
  };

  void tell(Tier& tier, const Block& block);

  KvEventSink* const sink_;
  const int32_t num_groups_;
  std::vector<Tier> tiers_;
};

}  // namespace sluice
