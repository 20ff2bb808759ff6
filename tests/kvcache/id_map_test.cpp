// SPDX-License-Identifier: Apache-2.0
#include "kvcache/id_map.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>

namespace sluice {
namespace {

TEST(IdMap, AgreesWithAMapOverRandomInsertionsAndRemovals) {
  std::mt19937_64 random(11);
  IdMap map(20);
  std::map<uint64_t, int32_t> reference;
  for (int32_t i = 0; i < 50'000; ++i) {
    const uint64_t key = random() % 40;
    const RequestId id{key * 0x100000001ull};
    if (reference.contains(key)) {
      map.erase(id);
      reference.erase(key);
    } else if (reference.size() < 20) {
      map.insert(id, i);
      reference[key] = i;
    }
    ASSERT_EQ(map.size(), reference.size());
    for (uint64_t k = 0; k < 40; ++k) {
      const auto found = reference.find(k);
      ASSERT_EQ(map.find(RequestId{k * 0x100000001ull}),
                found == reference.end() ? IdMap::kAbsent : found->second);
    }
  }
}

}  // namespace
}  // namespace sluice
