// SPDX-License-Identifier: Apache-2.0
#include "kvcache/store/tier_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace sluice {
namespace {

KvKey key(uint8_t chain, uint8_t depth) {
  KvKey result{};
  result[0] = chain;
  result[1] = depth;
  return result;
}

// Block `depth` of a chain; the parent of the first is no block's key.
TierIndex::Name name(uint8_t chain, uint8_t depth) {
  return {key(chain, depth), depth == 0 ? key(255, chain) : key(chain, depth - 1)};
}

TEST(KvKey, DependsOnEverythingBeforeTheBlockAndOnItsSpaceAndTenant) {
  const std::vector<TokenId> a = {1, 2};
  const std::vector<TokenId> b = {1, 3};
  const KvKey root = kv_root_key("model", {});
  EXPECT_EQ(kv_next_key(root, a), kv_next_key(root, a));
  EXPECT_NE(kv_next_key(root, a), kv_next_key(root, b));
  EXPECT_NE(kv_next_key(kv_next_key(root, a), a), kv_next_key(kv_next_key(root, b), a));
  EXPECT_NE(root, kv_root_key("other", {}));
  EXPECT_NE(root, kv_root_key("model", {.tenant_salt = 1}));
  EXPECT_NE(root, kv_root_key("model", {.adapter_id = 1}));
}

TEST(TierIndex, LosesAPrefixFromItsEndAndTheOldestFirst) {
  TierIndex index(4);
  for (const uint8_t depth : {0, 1, 2}) index.insert(name(1, depth));
  index.insert(name(2, 0));
  EXPECT_FALSE(index.evict());
  index.touch(key(1, 0));  // of the oldest chain only the beginning is still wanted
  index.insert(name(3, 0));
  EXPECT_EQ(index.evict()->key, key(1, 2));
  EXPECT_FALSE(index.evict());
  index.insert(name(3, 1));
  EXPECT_EQ(index.evict()->key, key(1, 1));
  index.insert(name(3, 2));
  EXPECT_EQ(index.evict()->key, key(2, 0));
  EXPECT_TRUE(index.contains(key(1, 0)));
  EXPECT_EQ(index.check_integrity(), "");
}

TEST(TierIndex, NamesInACircleAreEvictedToo) {
  TierIndex index(0);
  index.insert({key(1, 0), key(1, 1)});
  index.insert({key(1, 1), key(1, 0)});
  index.insert({key(2, 0), key(2, 0)});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(index.evict());
  EXPECT_FALSE(index.evict());
  EXPECT_EQ(index.size(), 0);
  EXPECT_EQ(index.check_integrity(), "");
}

TEST(TierIndex, AgreesWithAReferenceOnRandomOperations) {
  std::mt19937_64 random(7);
  TierIndex index(20);
  std::map<KvKey, std::pair<KvKey, int>> reference;  // parent, last use
  for (int step = 0; step < 20000; ++step) {
    const TierIndex::Name some =
        name(static_cast<uint8_t>(random() % 6), static_cast<uint8_t>(random() % 8));
    switch (random() % 4) {
      case 0:
        index.touch(some.key);
        if (reference.contains(some.key)) reference[some.key].second = step;
        break;
      case 1:
        if (random() % 4 == 0) {
          index.erase(some.key);
          reference.erase(some.key);
        }
        break;
      default:
        index.insert(some);
        reference[some.key] = {some.parent, step};
    }
    while (const auto evicted = index.evict()) {
      const auto has_children = [&](const KvKey& parent) {
        return std::ranges::any_of(reference,
                                   [&](const auto& entry) { return entry.second.first == parent; });
      };
      const auto found = reference.find(evicted->key);
      ASSERT_NE(found, reference.end());
      ASSERT_EQ(found->second.first, evicted->parent);
      ASSERT_FALSE(has_children(evicted->key));
      for (const auto& [other, entry] : reference) {
        ASSERT_TRUE(entry.second >= found->second.second || has_children(other));
      }
      reference.erase(found);
    }
    ASSERT_EQ(index.size(), static_cast<int64_t>(reference.size()));
    ASSERT_EQ(index.contains(some.key), reference.contains(some.key));
    if (step % 100 == 0) {
      ASSERT_EQ(index.check_integrity(), "");
    }
  }
}

}  // namespace
}  // namespace sluice
