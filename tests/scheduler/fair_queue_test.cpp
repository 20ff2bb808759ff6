// SPDX-License-Identifier: Apache-2.0
#include "scheduler/fair_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace sluice {
namespace {

// Implements the same rules without a data structure.
struct Waiting {
  int32_t entry = 0;
  int32_t slot = 0;
  QueueKey key;
};

int32_t first_of(const std::vector<Waiting>& waiting, const FairQueue& queue) {
  const auto place = [&](const Waiting& w) {
    if (!queue.is_due(w.key)) return std::tuple(1, int64_t{0}, w.key);
    // Among equal counters the tenant whose first request precedes comes first.
    QueueKey first = w.key;
    for (const Waiting& other : waiting) {
      if (other.slot == w.slot) first = std::min(first, other.key);
    }
    return std::tuple(0, queue.counter(w.slot), first);
  };
  const auto less = [&](const Waiting& a, const Waiting& b) {
    return std::tuple(place(a), a.key) < std::tuple(place(b), b.key);
  };
  return std::ranges::min_element(waiting, less)->entry;
}

TEST(FairQueue, PicksWhatTheRulesSayWhileRequestsComeAndGoAndCountersGrow) {
  std::mt19937_64 random(12);
  FairQueue queue(40, 25);
  std::vector<Waiting> waiting;
  std::vector<int32_t> free_entries(40);
  for (int32_t i = 0; i < 40; ++i) free_entries[static_cast<size_t>(i)] = i;
  std::vector<int32_t> running;  // slots
  int64_t now_ms = 0;
  for (uint64_t i = 0; i < 30'000; ++i) {
    const uint64_t dice = random() % 100;
    if (dice < 40 && !free_entries.empty()) {
      const Waiting w{free_entries.back(),
                      queue.enter(TenantId(random() % 7)),
                      {now_ms + static_cast<int64_t>(random() % 60) - 30, i}};
      free_entries.pop_back();
      waiting.push_back(w);
      queue.push(w.slot, w.key, w.entry);
    } else if (dice < 70 && !waiting.empty()) {
      const int32_t first = queue.first();
      ASSERT_EQ(first, first_of(waiting, queue)) << i;
      const auto it = std::ranges::find(waiting, first, &Waiting::entry);
      queue.remove(it->slot, first);
      queue.start(it->slot, it->key, static_cast<int64_t>(random() % 50));
      running.push_back(it->slot);
      free_entries.push_back(first);
      waiting.erase(it);
    } else if (dice < 75 && !waiting.empty()) {
      const size_t which = random() % waiting.size();
      queue.remove(waiting[which].slot, waiting[which].entry);
      queue.leave(waiting[which].slot, /*was_started=*/false);
      free_entries.push_back(waiting[which].entry);
      waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(which));
    } else if (dice < 95 && !running.empty()) {
      const size_t which = random() % running.size();
      queue.charge(running[which], 2);
      if (random() % 4 == 0) {
        queue.leave(running[which], /*was_started=*/true);
        running.erase(running.begin() + static_cast<ptrdiff_t>(which));
      }
    } else {
      now_ms += static_cast<int64_t>(random() % 20);
      queue.advance(now_ms);
    }
    ASSERT_EQ(queue.check_integrity(), "") << i;
    ASSERT_EQ(queue.size(), static_cast<int32_t>(waiting.size()));
  }
}

// Virtual tokens are shared equally among backlogged tenants, whatever their requests cost.
TEST(FairQueue, BackloggedTenantsGetTheSameTokens) {
  FairQueue queue(30, 0);
  queue.advance(1);
  const std::vector<int64_t> cost = {10, 100, 1000};
  std::map<int32_t, int64_t> given;
  std::vector<int32_t> slot_of(30);
  uint64_t order = 0;
  for (int32_t entry = 0; entry < 30; ++entry) {
    const auto tenant = static_cast<uint64_t>(entry % 3);
    slot_of[static_cast<size_t>(entry)] = queue.enter(TenantId(tenant));
    queue.push(slot_of[static_cast<size_t>(entry)], {0, order++}, entry);
  }
  for (int i = 0; i < 20'000; ++i) {
    const int32_t entry = queue.first();
    const int32_t slot = slot_of[static_cast<size_t>(entry)];
    queue.remove(slot, entry);
    queue.start(slot, {0, 0}, cost[static_cast<size_t>(entry % 3)]);
    given[entry % 3] += cost[static_cast<size_t>(entry % 3)];
    queue.leave(slot, /*was_started=*/true);
    queue.enter(TenantId(static_cast<uint64_t>(entry % 3)));
    queue.push(slot, {0, order++}, entry);
  }
  EXPECT_NEAR(static_cast<double>(given[0]), static_cast<double>(given[2]), 1000);
  EXPECT_NEAR(static_cast<double>(given[1]), static_cast<double>(given[2]), 1000);
}

// Requests that run are no queue: a tenant whose last one started long ago has no old counter to
// spend. One whose requests still wait keeps its place.
TEST(FairQueue, ATenantWhoseRequestsOnlyRunCatchesUpWhenOneEnters) {
  FairQueue queue(10, 5);
  queue.advance(1);
  const auto enter_and_start = [&](uint64_t id, int64_t num_tokens) {
    queue.start(queue.enter(TenantId(id)), {0, 0}, num_tokens);
  };
  enter_and_start(1, 10);  // runs from here on
  const int32_t waiting = queue.enter(TenantId(2));
  for (int i = 0; i < 4; ++i) enter_and_start(3, 100);
  ASSERT_EQ(queue.counter_of(TenantId(3)), 400);
  EXPECT_EQ(queue.counter(queue.enter(TenantId(1))), 300 - 5);  // the last one started at 300
  EXPECT_EQ(queue.enter(TenantId(2)), waiting);
  EXPECT_EQ(queue.counter(waiting), 0);
}

TEST(FairQueue, MoreTenantsThanItRemembersComeAndGo) {
  FairQueue queue(2, 0);
  queue.advance(0);
  for (uint64_t id = 1; id <= 2000; ++id) {
    const int32_t slot = queue.enter(TenantId(id));
    queue.push(slot, {0, id}, 0);
    ASSERT_EQ(queue.first(), 0);
    queue.remove(slot, 0);
    queue.start(slot, {0, id}, 5);
    queue.leave(slot, /*was_started=*/true);
  }
  ASSERT_EQ(queue.check_integrity(), "");
  EXPECT_EQ(queue.counter_of(TenantId(1)), 0);  // forgotten
  EXPECT_GT(queue.counter_of(TenantId(2000)), 0);
}

}  // namespace
}  // namespace sluice
