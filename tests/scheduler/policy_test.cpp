// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policy.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <random>

namespace sluice {
namespace {

TEST(IndexedHeap, AgreesWithSortedMapsWhileEntriesComeAndGoAnywhere) {
  std::mt19937_64 random(9);
  std::vector<int32_t> positions(32, -1);
  std::array<IndexedHeap<QueueKey>, 2> heaps = {IndexedHeap<QueueKey>(positions),
                                                IndexedHeap<QueueKey>(positions)};
  std::array<std::map<QueueKey, int32_t>, 2> references;
  for (uint64_t i = 0; i < 20'000; ++i) {
    const auto id = static_cast<int32_t>(random() % 32);
    const size_t which = random() % 2;
    if (heaps[0].contains(id) || heaps[1].contains(id)) {
      const size_t holder = heaps[0].contains(id) ? 0 : 1;
      references[holder].erase(heaps[holder].key_of(id));
      heaps[holder].remove(id);
    } else {
      const QueueKey key{static_cast<int64_t>(random() % 3), i};
      heaps[which].push(key, id);
      references[which][key] = id;
    }
    if (!heaps[which].empty() && random() % 4 == 0) {
      const int32_t first = heaps[which].first();
      const QueueKey raised{heaps[which].first_key().rank_ms + 1, 1'000'000 + i};
      references[which].erase(heaps[which].first_key());
      heaps[which].raise_first(raised);
      references[which][raised] = first;
    }
    for (size_t h = 0; h < heaps.size(); ++h) {
      ASSERT_EQ(heaps[h].check_integrity(), "");
      ASSERT_EQ(heaps[h].size(), static_cast<int32_t>(references[h].size()));
      if (!references[h].empty()) {
        ASSERT_EQ(heaps[h].first(), references[h].begin()->second);
      }
    }
  }
}

TEST(Rank, APriorityLevelIsWorthTheAgingAndNeverOverflows) {
  EXPECT_EQ(rank_ms(5000, 0, 100), 5000);
  EXPECT_EQ(rank_ms(5000, 3, 100), 5300);
  EXPECT_EQ(rank_ms(5000, -3, 100), 4700);
  // Without aging a week of waiting does not outweigh a level.
  constexpr int64_t kWeek = int64_t{7} * 24 * 3600 * 1000;
  EXPECT_LT(rank_ms(kWeek, 0, 0), rank_ms(0, 1, 0));
  constexpr int64_t kLate = int64_t{1} << 50;
  EXPECT_GT(rank_ms(kLate, INT32_MAX, 0), rank_ms(kLate, INT32_MAX - 1, 0));
  EXPECT_LT(rank_ms(kLate, INT32_MIN, 0), rank_ms(kLate, INT32_MIN + 1, 0));
}

}  // namespace
}  // namespace sluice
