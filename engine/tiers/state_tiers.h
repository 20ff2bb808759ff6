// SPDX-License-Identifier: Apache-2.0
// The states of recurrent layers in the tiers below the cache. A state is as large as the KV of a
// thousand tokens or more, and lies at few places of a prompt: so states have tiers of their own
// beside those of the KV, one for each, with half of its room, and each entry is one whole state.
// A state is copied out when the cache leaves it behind, which is also when a request is preempted,
// and written by the tier's thread. Engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/status.h"
#include "engine/tiers/tier_events.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/store/kv_storage.h"
#include "kvcache/store/kv_tier.h"

namespace sluice {

class StateTiers final : public KvStateSink {
 public:
  // A state that was read, or was not there after all, in a buffer to be given back.
  struct Arrival {
    size_t tier = 0;
    KvTier::Loaded loaded;
  };

  // The shape of a tier of these groups' states; nullopt: none of them has states.
  static std::optional<KvTierOptions> tier_options(std::span<const KvGroupSpec> groups,
                                                   int32_t block_size);

  // Null where no group has states. `space` names keys (kv_key.h); for the rest see PrefixStore.
  static Expected<std::unique_ptr<StateTiers>> create(const Config& config,
                                                      const std::string& space,
                                                      KvStorage& storage,
                                                      KvCacheManager& kv,
                                                      KvEventSink* events,
                                                      const std::function<void()>& wake);

  void left(const KvState& state) override;

  // The first tier that has the state at the end of this block.
  [[nodiscard]] std::optional<size_t> find(const KvKey& key) const;
  // Reads a state that find() has found. False: not now, all buffers are in use.
  bool load(size_t tier, const KvFileName& name, uint64_t ticket);
  void collect(std::vector<Arrival>& arrivals);
  // Fills the blocks, which have been inserted into the cache for this state.
  void copy_in(const Arrival& arrival, std::span<const KvBlockRef> blocks);

  void give_back(const Arrival& arrival) {
    tiers_[arrival.tier]->give_back(arrival.loaded.buffer);
  }

  // The groups of states (bit g).
  [[nodiscard]] uint64_t groups() const { return groups_; }

  [[nodiscard]] uint64_t num_written() const;

 private:
  StateTiers(KvStorage& storage, KvEventSink* events, std::vector<KvMedium> media);

  void add_tier(std::unique_ptr<KvTier> tier);
  void save(size_t tier, const KvState& state);

  KvStorage& storage_;
  uint64_t groups_ = 0;
  TierEvents events_;
  std::vector<std::unique_ptr<KvTier>> tiers_;  // fastest first
  std::vector<KvTier::Loaded> loaded_;          // scratch
};

}  // namespace sluice
