// SPDX-License-Identifier: Apache-2.0
// Orders the requests that wait to start so that tenants share the engine fairly.
//
// Each tenant has a counter of virtual tokens: the service it was given, prompt tokens once and
// generated tokens twice (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).
// Among tenants with a due request the one with the smallest counter comes first, and among its
// requests the one with the smallest key. While nothing is due the smallest key of all comes first,
// so that low priorities use idle capacity. A tenant that was idle begins at the current service
// level (the start tag in service of start-time fair queueing; Goyal et al., SIGCOMM 1996) minus a
// bounded credit, so that two requests of a rarely active tenant need not wait for each other.
//
// Counters are charged while their tenants are queued, far more often than a request is picked, so
// a tenant's place is corrected only when it comes first. O(log n) per request; only enter()
// allocates.
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
  // `max_entries`: the most requests between enter() and leave(). `credit`: the most virtual tokens
  // that idle time earns.
  FairQueue(int32_t max_entries, int64_t credit);
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  // Registers a request of this tenant; returns the slot that represents the tenant below.
  int32_t enter(TenantId tenant);
  // Marks a request as started for the first time, when `key` was first, and charges `num_tokens`.
  void start(int32_t slot, const QueueKey& key, int64_t num_tokens);
  // Unregisters a request that has left.
  void leave(int32_t slot, bool was_started);

  void charge(int32_t slot, int64_t num_tokens) { tenant(slot).counter += num_tokens; }

  [[nodiscard]] int64_t counter(int32_t slot) const { return tenant(slot).counter; }

  // Returns the counter of a tenant; 0 when the tenant is not known.
  [[nodiscard]] int64_t counter_of(TenantId id) const;

  // `entry` < max_entries belongs to a request that has not started; it may be queued and removed
  // repeatedly.
  void push(int32_t slot, const QueueKey& key, int32_t entry);
  void remove(int32_t slot, int32_t entry);

  // Advances the clock. Requests that are due stay due.
  void advance(int64_t now_ms);

  [[nodiscard]] bool is_due(const QueueKey& key) const { return key.rank_ms <= now_ms_; }

  [[nodiscard]] bool has_due() const { return !due_.empty(); }

  // Returns the entry that comes first; the queue must not be empty.
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
    int32_t num_unstarted = 0;  // not started yet, queued or not
    IndexedHeap<QueueKey> queue;
  };

  struct DueKey {
    int64_t counter = 0;  // may be less than the tenant's counter
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
  IndexedHeap<QueueKey> later_;  // other tenants with a request
  int64_t now_ms_ = INT64_MIN;
  int64_t served_ = 0;  // the largest counter with which a request has started in its turn
  int32_t size_ = 0;
};

}  // namespace sluice
