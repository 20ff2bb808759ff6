// SPDX-License-Identifier: Apache-2.0
// Keeps computed prefixes in tiers below the cache (memory, disk) and restores them: the link
// between the KV manager (ids), the storage (bytes) and the tiers. Restored bytes equal the
// computed ones, so a request's output does not depend on them. An entry of a tier is one block of
// the groups that had it when it was saved; blocks that a window has dropped are left out without
// ending the prefix. States of recurrent layers have tiers of their own (state_tiers.h): a prefix
// ends where one of them is.
//
// Saving: every whole block of a request is copied out after its step, and written by the tiers'
// threads. Restoring: a new request whose cached prompt prefix continues in a tier is held outside
// the scheduler while its blocks are read; arrived ones are copied into the cache between two steps
// and are then found there as any cached prefix. A step never waits for a tier: a request that
// waits too long is computed. A preempted request is restored in the same way when there is room
// for it again (swapping, with saving as the way out), if that is expected to be faster than
// computing. Engine thread only.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/stats.h"
#include "engine/core/status.h"
#include "engine/tiers/restore_cost.h"
#include "engine/tiers/state_tiers.h"
#include "engine/tiers/tier_events.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/store/kv_storage.h"
#include "kvcache/store/kv_tier.h"
#include "scheduler/scheduler.h"

namespace sluice {

class PrefixStore {
 public:
  using Clock = std::chrono::steady_clock;

  // The payload size in a tier of one block of these groups, without states.
  static int64_t payload_bytes(std::span<const KvGroupSpec> groups, int32_t block_size);

  // `fingerprint` names model, build and dtypes. Storage, manager and `events` must outlive the
  // store; `events` learns the tiers' blocks and may be null. Other threads call `wake` when
  // advance() has work.
  static Expected<std::unique_ptr<PrefixStore>> create(const Config& config,
                                                       const std::string& fingerprint,
                                                       KvStorage& storage,
                                                       KvCacheManager& kv,
                                                       KvEventSink* events,
                                                       std::function<void()> wake);

  // True: blocks of its tokens are being read, and advance() will return its id.
  bool hold(const Request& request, Clock::time_point now);
  // Likewise for a preempted request.
  bool hold_preempted(const Request& request, Clock::time_point now);
  // True: the request was held, and is removed.
  bool abort(RequestId id);
  // Between steps. Puts arrived blocks into the cache; requests with nothing more to wait for go to
  // `ready`, or to `resumed` if preempted.
  void advance(Clock::time_point now,
               std::vector<RequestId>& ready,
               std::vector<RequestId>& resumed);

  // Saves whole blocks of the rows of a step that has run and not yet retired. `results` has one
  // entry per sampling row; rows that failed there or in `failed` are not saved. Those of a request
  // whose blocks may be wrong (KvCacheManager::is_proven) are saved after their proof.
  void save(const SchedulerOutput& output,
            const Scheduler& scheduler,
            std::span<const StepResult> results,
            std::span<const RequestId> failed);
  // After that step retired: learns the cost of computing, and drops requests that have ended.
  void end_step(const SchedulerOutput& output, const Scheduler& scheduler, double seconds);

  // Forgets a request that ended outside a step.
  void forget(RequestId id) { savings_.erase(id); }

  void add_stats(EngineStats& stats) const;

 private:
  static constexpr size_t kMaxTiers = 2;

  // The keys of a request's leading blocks, as far as requested.
  struct Chain {
    KvKey root{};
    std::vector<KvKey> keys;
    PrefixExtras extras;
    std::vector<uint64_t> hashes;  // routers' hashes; empty without a listener
  };

  // The progress of saving a request's blocks in one tier.
  struct Progress {
    int32_t num_saved = 0;   // leading blocks stored or being written
    bool is_broken = false;  // a block was lost: later ones would not be found
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
    RequestId id;
    TokenLog log;
    bool is_preempted = false;
    Chain chain;
    uint64_t ticket = 0;  // block i has ticket + i, the state the last one
    int32_t num_tickets = 0;
    int32_t num_cached = 0;  // leading blocks that were found
    int32_t state_end = 0;   // where a state is read, in blocks; 0: none is
    size_t state_tier = 0;
    bool asks_state = false;  // not yet
    std::optional<StateTiers::Arrival> state;
    std::vector<uint8_t> tier_of;  // by block
    int32_t next_copied = 0;       // block
    int32_t next_asked = 0;
    int32_t end = 0;              // wanted blocks, cached ones included
    int32_t num_outstanding = 0;  // loads
    bool is_released = false;
    Clock::time_point last_progress;
    Clock::time_point deadline;    // regardless of progress
    std::vector<Arrival> arrived;  // blocks after a gap wait
  };

  PrefixStore(int32_t block_size,
              std::string space,
              std::string preemption_mode,
              std::vector<KvMedium> media,
              KvStorage& storage,
              KvCacheManager& kv,
              KvEventSink* events);

  [[nodiscard]] Chain new_chain(const PrefixExtras& extras) const;
  // Name of the block that ends this prefix; extends the chain up to it.
  KvFileName name_of(Chain& chain, std::span<const TokenId> tokens, int32_t block) const;
  // That block as routers identify it.
  TierEvents::Block event_block(Chain& chain, std::span<const TokenId> tokens, int32_t block) const;
  void add_tier(std::unique_ptr<KvTier> tier);
  [[nodiscard]] const KvGroupSpec& spec(int32_t group) const {
    return storage_.groups()[static_cast<size_t>(group)];
  }

  // Whether payloads have a place for the group.
  [[nodiscard]] bool has_part(int32_t group) const {
    return spec(group).kind != KvGroupKind::kState;
  }

  // The place of the group's block in a payload.
  template <typename Byte>
  [[nodiscard]] std::span<Byte> part_of(std::span<Byte> payload, int32_t group) const;
  [[nodiscard]] int32_t block_of(const KvBlockRef& ref) const;
  void copy_out(RequestId id, int32_t block, std::span<std::byte> payload) const;
  void copy_in(std::span<const KvBlockRef> inserted, std::span<const Arrival> piece);
  void save_blocks(const Request& request, int32_t num_full);
  bool save_block(size_t tier, const Request& request, Chain& chain, Progress& progress);
  bool start(const Request& request, bool is_preempted, bool by_cost, Clock::time_point now);
  bool find(Held& held, bool by_cost);
  void find_state(Held& held);
  [[nodiscard]] Held* holder_of(const KvTier::Loaded& loaded, Clock::time_point now);
  void receive(Clock::time_point now);
  void receive_states(Clock::time_point now);
  void finish_load(const KvTier::Loaded& loaded, KvTier& tier, Clock::time_point now);
  void copy_state(Held& held);
  void ask_state(Held& held, Clock::time_point now);
  bool copy(Held& held, std::span<const Arrival> piece);
  void copy_arrived(Held& held);
  void ask(Held& held, Clock::time_point now);

  const int32_t block_size_;
  const std::string space_;
  const std::string preemption_mode_;
  KvStorage& storage_;
  KvCacheManager& kv_;
  std::vector<std::unique_ptr<KvTier>> tiers_;  // fastest first, at most kMaxTiers
  std::unique_ptr<StateTiers> states_;          // as many, of states; null: the model has none
  RestoreCost cost_;
  TierEvents events_;
  std::unordered_map<RequestId, Saving> savings_;  // for requests in the scheduler
  std::vector<TokenId> tokens_;  // tokens with KV of the request being saved
  std::vector<Held> held_;                         // in order of arrival
  uint64_t next_ticket_ = 0;
  int32_t num_outstanding_ = 0;         // loads of all requests
  Clock::time_point last_load_;         // last arrival, or request while none was outstanding
  std::vector<KvTier::Loaded> loaded_;  // scratch
  std::vector<StateTiers::Arrival> loaded_states_;  // scratch
  std::vector<uint64_t> arrived_groups_;  // scratch, by block of a piece
  std::vector<KvBlockRef> inserted_;      // scratch
  uint64_t num_queried_ = 0;            // tokens
  uint64_t num_restored_ = 0;
  std::jthread remover_;  // of the disk tier's folders that no process uses
};

}  // namespace sluice
