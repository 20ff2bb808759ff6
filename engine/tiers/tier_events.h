// SPDX-License-Identifier: Apache-2.0
// Reports to routers which blocks lie in the tiers below the cache, with the hashes of the prefix
// index. A block is reported when it has been written; one that existed at the start is reported
// when a request first asks for it, because file names say nothing of the contents. Engine thread
// only.
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
  // `media[tier]` is that tier's medium; `groups` have a part of each block. Null `sink`: nobody
  // listens.
  TierEvents(KvEventSink* sink, std::vector<KvMedium> media, std::vector<int32_t> groups);

  [[nodiscard]] bool has_listener() const { return sink_ != nullptr; }

  // The last block of a prefix.
  struct Block {
    KvKey key;
    uint64_t hash = 0;
    std::optional<uint64_t> parent_hash;
    std::span<const TokenId> token_ids;
    PrefixExtras extras;
  };

  // Notes a block that is being written; it is reported when complete.
  void expect(size_t tier, const Block& block);
  // Reports a block that exists or is being written, unless that is already reported or expected.
  void report_existing(size_t tier, const Block& block);
  // The callback for KvTier::Listener.
  void note(size_t tier, const KvKey& key, bool is_there);

 private:
  struct Awaited {
    uint64_t hash = 0;
    std::optional<uint64_t> parent_hash;
    std::vector<TokenId> token_ids;
    PrefixExtras extras;
  };

  struct Tier {
    KvMedium medium;
    std::unordered_map<KvKey, Awaited, KvKeyHash> expected;   // at most one per buffer of the tier
    std::unordered_map<KvKey, uint64_t, KvKeyHash> reported;  // reported, with its hash
  };

  void report(Tier& tier, const Block& block);

  KvEventSink* const sink_;
  const std::vector<int32_t> groups_;
  std::vector<Tier> tiers_;
};

}  // namespace sluice
