// SPDX-License-Identifier: Apache-2.0
// Keeps computed prefixes in tiers below the cache (memory, disk) and brings them back: between the
// KV manager (ids), the storage (bytes) and the tiers. What comes back is what was computed, byte
// for byte, so a request's output does not depend on it. An entry of a tier is one block of the
// groups that had it when it was saved: what a window has let go, or a state between its snapshots,
// is left out, and ends nothing.
//
// Saving: every whole block of a request is copied out once its step has run, and written by the
// tiers' threads. Bringing back: a new request whose prompt goes on, in a tier, behind what is
// cached is held outside of the scheduler while its blocks are read; those that arrived are copied
// into the cache between two steps and are then found there as any cached prefix. A step never
// waits for a tier: who waits too long is computed. A preempted request is brought back in the same
// way when there is room for it again (swapping, whose way out is the saving), where that is
// expected to take less time than computing. Engine thread only.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/stats.h"
#include "engine/core/status.h"
#include "engine/tiers/restore_cost.h"
#include "engine/tiers/tier_events.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/kv_storage.h"
#include "kvcache/kv_tier.h"
#include "scheduler/scheduler.h"

namespace sluice {

class PrefixStore {
 public:
  using Clock = std::chrono::steady_clock;

  // What a tier keeps of a block of so many bytes in all groups.
  static int64_t payload_bytes(int64_t block_bytes);

  // `fingerprint` names model, build and dtypes. Storage, manager and `events`, which is told of
  // the tiers' blocks and may be null, must outlive the store; `wake` is called on other threads
  // when advance() has something to do.
  static Expected<std::unique_ptr<PrefixStore>> create(const Config& config,
                                                       const std::string& fingerprint,
                                                       KvStorage& storage,
                                                       KvCacheManager& kv,
                                                       KvEventSink* events,
                                                       std::function<void()> wake);

  // True: blocks of its tokens are on their way, and it comes out of advance(); `request` is moved.
  bool hold(NewRequest& request, Clock::time_point now);
  // True: blocks of a preempted request are on their way, and its id comes out of advance().
  bool hold_preempted(const Request& request, Clock::time_point now);
  // True when it was held; it is gone.
  bool abort(RequestId id);
  // Between steps. Puts what has arrived into the cache; who waits for nothing more goes to
  // `ready`, or to `resumed` if preempted.
  void advance(Clock::time_point now,
               std::vector<NewRequest>& ready,
               std::vector<RequestId>& resumed);

  // Whole blocks of the rows of a step that has run and not yet retired. `sampled` has an entry for
  // each row that samples; what belongs to a failed one or to those of `failed` is not kept.
  void save(const SchedulerOutput& output,
            const Scheduler& scheduler,
            std::span<const StepResult> results,
            std::span<const RequestId> failed);
  // After that step retired: it teaches the cost of computing, and requests may have ended.
  void end_step(const SchedulerOutput& output, const Scheduler& scheduler, double seconds);

  // A request that ended outside of a step.
  void forget(RequestId id) { savings_.erase(id); }

  void add_stats(EngineStats& stats) const;

 private:
  static constexpr size_t kMaxTiers = 2;

  // The keys of a request's leading blocks, as far as they were asked for.
  struct Chain {
    KvKey root{};
    std::vector<KvKey> keys;
    PrefixExtras extras;
    std::vector<uint64_t> hashes;  // as routers know them; empty when none listens
  };

  // How far a request's blocks have been saved in one tier.
  struct Progress {
    int32_t num_saved = 0;   // leading blocks that lie there or are on their way
    bool is_broken = false;  // a block could not be kept; those behind it would not be found
  };

  struct Saving {
    Chain chain;
    std::array<Progress, kMaxTiers> by_tier;
  };

  struct Arrival {
    int32_t block;
    int32_t buffer;
    KvTier* tier;
  };

  struct Held {
    NewRequest request;  // of a preempted one what the scheduler knows is left out
    bool is_preempted = false;
    Chain chain;
    uint64_t ticket = 0;  // of block i: ticket + i
    int32_t num_tickets = 0;
    std::vector<uint8_t> tier_of;  // by block
    int32_t next_copied = 0;       // block
    int32_t next_asked = 0;
    int32_t end = 0;              // blocks to have, the cached ones included
    int32_t num_outstanding = 0;  // loads
    bool is_released = false;
    Clock::time_point last_progress;
    Clock::time_point deadline;    // however well it goes on
    std::vector<Arrival> arrived;  // those behind a gap wait
  };

  PrefixStore(int32_t block_size,
              std::string space,
              std::string preemption_mode,
              std::vector<KvMedium> media,
              KvStorage& storage,
              KvCacheManager& kv,
              KvEventSink* events);

  [[nodiscard]] Chain new_chain(const PrefixExtras& extras) const;
  // Of the block of these tokens' prefix; the chain grows up to it.
  KvFileName name_of(Chain& chain, std::span<const TokenId> tokens, int32_t block) const;
  // The same block as routers know it.
  TierEvents::Block event_block(Chain& chain, std::span<const TokenId> tokens, int32_t block) const;
  void add_tier(std::unique_ptr<KvTier> tier);
  [[nodiscard]] const KvGroupSpec& spec(int32_t group) const {
    return storage_.groups()[static_cast<size_t>(group)];
  }

  // Where a payload has the group's block.
  template <typename Byte>
  [[nodiscard]] std::span<Byte> part_of(std::span<Byte> payload, int32_t group) const;
  [[nodiscard]] int32_t block_of(const KvBlockRef& ref) const;
  void copy_out(RequestId id, int32_t block, std::span<std::byte> payload) const;
  void copy_in(std::span<const KvBlockRef> inserted, std::span<const Arrival> piece);
  void save_blocks(const Request& request, int32_t num_full);
  bool save_block(size_t tier, const Request& request, Chain& chain, Progress& progress);
  bool start(Held& held, bool by_cost, Clock::time_point now);
  void receive(Clock::time_point now);
  void take_in(const KvTier::Loaded& loaded, KvTier& tier, Clock::time_point now);
  bool copy(Held& held, std::span<const Arrival> piece);
  void copy_arrived(Held& held);
  void ask(Held& held, Clock::time_point now);

  const int32_t block_size_;
  const std::string space_;
  const std::string preemption_mode_;
  KvStorage& storage_;
  KvCacheManager& kv_;
  std::vector<std::unique_ptr<KvTier>> tiers_;  // fastest first, at most kMaxTiers
  RestoreCost cost_;
  TierEvents events_;
  std::unordered_map<RequestId, Saving> savings_;  // of requests that the scheduler has
  std::vector<TokenId> tokens_;  // with KV, of the request that is being saved
  std::vector<Held> held_;                         // in order of arrival
  uint64_t next_ticket_ = 0;
  int32_t num_outstanding_ = 0;         // loads of anybody
  Clock::time_point last_load_;         // came back, or was asked for when there were none
  std::vector<KvTier::Loaded> loaded_;  // scratch
  std::vector<uint64_t> arrived_groups_;  // scratch, by block of a piece
  std::vector<KvBlockRef> inserted_;      // scratch
  uint64_t num_queried_ = 0;            // tokens
  uint64_t num_restored_ = 0;
};

}  // namespace sluice
