// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>

namespace sluice {
namespace {

TEST(WaitingQueue, AgreesWithASortedMapWhileEntriesComeAndGoAnywhere) {
  std::mt19937_64 random(9);
  WaitingQueue queue(32);
  std::map<QueueKey, int32_t> reference;
  std::map<int32_t, QueueKey> keys;
  for (uint64_t i = 0; i < 20'000; ++i) {
    const auto entry = static_cast<int32_t>(random() % 32);
    if (queue.contains(entry)) {
      queue.remove(entry);
      reference.erase(keys[entry]);
    } else {
      const QueueKey key{static_cast<int32_t>(random() % 3), i};
      queue.push(key, entry);
      keys[entry] = key;
      reference[key] = entry;
    }
    ASSERT_EQ(queue.check_integrity(), "");
    ASSERT_EQ(queue.size(), static_cast<int32_t>(reference.size()));
    if (!reference.empty()) {
      ASSERT_EQ(queue.first(), reference.begin()->second);
    }
  }
}

}  // namespace
}  // namespace sluice
