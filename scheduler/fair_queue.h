// SPDX-License-Identifier: Apache-2.0
// The requests that wait to start, of tenants that share the engine fairly.
//
// Each tenant has a counter of virtual tokens: what it was given, prompt tokens once and generated
// ones twice (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). Of the tenants
// with a request that is due the one with the least counter comes first, and of its requests the
// one with the least key. While nothing is due the least key of all comes first, so that low
// priorities use what others leave. A tenant that was idle begins where the service is now (the
// start tag in service, as in start-time fair queueing; Goyal et al., SIGCOMM 1996), less a bounded
// credit: two requests of somebody who seldom asks should not wait for each other.
//
// Counters are charged while their tenants are queued, far more often than anybody is picked; so a
// tenant's place is put right when it comes to be first. O(log n) a request, and nothing is
// allocated but in enter().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/types.h"
#include "kvcache/id_map.h"
#include "scheduler/policy.h"

namespace sluice {

class FairQueue {
 public:
  // At most this many requests between enter() and leave(); virtual tokens that idle time is worth
  // at most.
  FairQueue(int32_t max_entries, int64_t credit);
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  // A request of this tenant has come; gives the slot that stands for the tenant below.
  int32_t enter(TenantId tenant);
  // It starts for the first time, now that `key` came first, and is charged `num_tokens`.
  void start(int32_t slot, const QueueKey& key, int64_t num_tokens);
  // It has gone.
  void leave(int32_t slot, bool was_started);

  void charge(int32_t slot, int64_t num_tokens) { tenant(slot).counter += num_tokens; }

  [[nodiscard]] int64_t counter(int32_t slot) const { return tenant(slot).counter; }

  // 0: not known.
  [[nodiscard]] int64_t counter_of(TenantId id) const;

  // `entry` < max_entries, of a request that has not started; in and out as often as one likes.
  void push(int32_t slot, const QueueKey& key, int32_t entry);
  void remove(int32_t slot, int32_t entry);

  // Time goes on. Who was due stays so.
  void advance(int64_t now_ms);

  [[nodiscard]] bool is_due(const QueueKey& key) const { return key.rank_ms <= now_ms_; }

  [[nodiscard]] bool has_due() const { return !due_.empty(); }

  // The entry that comes first; not when empty.
  int32_t first();

  [[nodiscard]] bool contains(int32_t entry) const {
    return entry_positions_[static_cast<size_t>(entry)] >= 0;
  }

  [[nodiscard]] bool empty() const { return size_ == 0; }

  [[nodiscard]] int32_t size() const { return size_; }

  [[nodiscard]] std::string check_integrity() const;

 private:
  struct Tenant {
    explicit Tenant(std::vector<int32_t>& positions) : queue(positions) {}

    TenantId id;
    int64_t counter = 0;
    int32_t num_requests = 0;   // between enter() and leave()
    int32_t num_unstarted = 0;  // of those; queued or not
    IndexedHeap<QueueKey> queue;
  };

  struct DueKey {
    int64_t counter = 0;  // may be less than the tenant's by now
    QueueKey first;
    friend auto operator<=>(const DueKey&, const DueKey&) = default;
  };

  Tenant& tenant(int32_t slot) { return tenants_[static_cast<size_t>(slot)]; }

  [[nodiscard]] const Tenant& tenant(int32_t slot) const {
    return tenants_[static_cast<size_t>(slot)];
  }

  int32_t open_slot(TenantId id);
  void place(int32_t slot);
  void take_out(int32_t slot);
  [[nodiscard]] std::string check_tenant(int32_t slot) const;

  const int64_t credit_;
  std::vector<int32_t> entry_positions_;
  std::vector<int32_t> due_positions_;
  std::vector<int32_t> later_positions_;
  std::vector<Tenant> tenants_;
  IndexMap<TenantId> slot_of_;
  IndexedHeap<DueKey> due_;      // tenants whose first request is due
  IndexedHeap<QueueKey> later_;  // the other ones with a request
  int64_t now_ms_ = INT64_MIN;
  int64_t served_ = 0;  // the largest counter with which a request has started in its turn
  int32_t size_ = 0;
};

}  // namespace sluice
