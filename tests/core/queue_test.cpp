// SPDX-License-Identifier: Apache-2.0
#include "engine/core/queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace sluice {
namespace {

using std::chrono::microseconds;

TEST(Inbox, RefusesMoreThanItsCapacityButTakesUrgentItems) {
  Inbox<int> inbox(2);
  EXPECT_TRUE(inbox.try_push(1));
  EXPECT_TRUE(inbox.try_push(2));
  EXPECT_FALSE(inbox.try_push(3));
  EXPECT_TRUE(inbox.push_urgent(4));
  EXPECT_EQ(inbox.size(), 3U);
  std::vector<int> items;
  inbox.drain(items);
  EXPECT_EQ(items, (std::vector<int>{1, 2, 4}));
  EXPECT_TRUE(inbox.try_push(5));
}

TEST(Inbox, DrainReplacesWhatTheCallerHeld) {
  Inbox<int> inbox(4);
  std::vector<int> items = {9, 9};
  inbox.drain(items);
  EXPECT_TRUE(items.empty());
}

TEST(Inbox, CloseRefusesPushesAndKeepsQueuedItems) {
  Inbox<std::unique_ptr<int>> inbox(4);
  ASSERT_TRUE(inbox.try_push(std::make_unique<int>(1)));
  inbox.close();
  EXPECT_FALSE(inbox.try_push(std::make_unique<int>(2)));
  EXPECT_FALSE(inbox.push_urgent(std::make_unique<int>(3)));
  std::vector<std::unique_ptr<int>> items;
  inbox.drain(items);
  ASSERT_EQ(items.size(), 1U);
  EXPECT_EQ(*items[0], 1);
}

TEST(Inbox, AWaiterWakesWhenTheInboxCloses) {
  Inbox<int> inbox(1);
  std::thread waiter([&inbox] { inbox.wait_for(std::chrono::hours(1)); });
  inbox.close();
  waiter.join();
  inbox.wait_for(std::chrono::hours(1));  // closed: returns at once
}

TEST(Inbox, EveryItemOfFourProducersArrivesOnceAndInOrder) {
  constexpr int kProducers = 4;
  constexpr int kItems = 5000;
  Inbox<int> inbox(64);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&inbox, p] {
      for (int i = 0; i < kItems; ++i) {
        while (!inbox.try_push(p * kItems + i)) std::this_thread::yield();
      }
    });
  }
  std::vector<int> next(kProducers, 0);
  std::vector<int> items;
  for (int received = 0; received < kProducers * kItems;) {
    inbox.wait_for(microseconds(1000));
    inbox.drain(items);
    for (const int item : items) {
      ASSERT_EQ(item % kItems, next[static_cast<size_t>(item / kItems)]++);
    }
    received += static_cast<int>(items.size());
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(inbox.size(), 0U);
}

}  // namespace
}  // namespace sluice
