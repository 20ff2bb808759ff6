// SPDX-License-Identifier: Apache-2.0
// Blocks that have arrived and may still be wrong: who finds them, and until when.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kvcache/kv_cache_manager.h"

namespace sluice {
namespace {

class KvProof : public ::testing::Test {
 protected:
  static constexpr RequestId kA{1};
  static constexpr RequestId kB{2};
  static constexpr RequestId kC{3};
  static constexpr const char* kSpace = "test-b4";

  static constexpr KvManagerOptions options() {
    return {.block_size = 4, .max_num_seqs = 4, .max_model_len = 64};
  }

  static std::vector<TokenId> iota(int32_t count) {
    std::vector<TokenId> tokens(static_cast<size_t>(count));
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
  }

  static std::vector<KvKey> keys_of(const std::vector<TokenId>& tokens) {
    std::vector<KvKey> keys;
    KvKey key = kv_root_key(kSpace, {});
    for (size_t i = 0; i + 4 <= tokens.size(); i += 4) {
      key = kv_next_key(key, std::span(tokens).subspan(i, 4));
      keys.push_back(key);
    }
    return keys;
  }

  // What kA gets of `tokens` from elsewhere; it may still be wrong.
  static std::vector<KvBlockRef> land(KvCacheManager& kv, const std::vector<TokenId>& tokens) {
    kv.acquire_prefix(kA, tokens, {}, PrefixUse::kTransfer);
    std::vector<KvBlockRef> reserved;
    const int32_t num_tokens = kv.max_transferred(static_cast<int32_t>(tokens.size()));
    EXPECT_TRUE(kv.reserve(kA, num_tokens, reserved));
    kv.publish(kA, tokens, num_tokens, /*needs_proof=*/true);
    kv.free(kA);
    EXPECT_EQ(kv.check_integrity(), "");
    return reserved;
  }

  static int32_t num_found(KvCacheManager& kv, RequestId id, const std::vector<TokenId>& tokens) {
    const int32_t tokens_found = kv.acquire_prefix(id, tokens, {});
    kv.free(id);
    return tokens_found;
  }

  const KvGroupSpec kFull{.num_blocks = 16};
  const KvGroupSpec kWindow{.kind = KvGroupKind::kWindow, .window = 6, .num_blocks = 8};
  const KvGroupSpec kState{.kind = KvGroupKind::kState, .interval = 4, .num_blocks = 8};
};

TEST_F(KvProof, BlocksThatMayBeWrongAreFoundOnlyByThoseThatWillKnow) {
  const std::vector<std::vector<KvGroupSpec>> models = {
      {kFull}, {kFull, kWindow}, {kFull, kState}};
  for (const std::vector<KvGroupSpec>& groups : models) {
    KvCacheManager kv(options(), groups);
    kv.name_blocks(kSpace);
    const std::vector<TokenId> tokens = iota(14);
    const std::vector<KvBlockRef> landed = land(kv, tokens);
    kv.expect_proof(kA);
    EXPECT_EQ(num_found(kv, kA, tokens), 12);
    EXPECT_EQ(num_found(kv, kB, tokens), 0);
    EXPECT_EQ(num_found(kv, kB, iota(4)), 0);  // a block that begins like one of them
    std::vector<KvBlockRef> served;
    EXPECT_EQ(kv.find_blocks(keys_of(iota(12)), {}, served), 0);
    kv.prove(kA, landed);
    EXPECT_EQ(num_found(kv, kB, tokens), 12);
    EXPECT_EQ(kv.find_blocks(keys_of(iota(12)), {}, served), 3);
    EXPECT_EQ(kv.check_integrity(), "");
  }
}

// A state is all that a request of such a model needs.
TEST_F(KvProof, WhatIsComputedBehindItWaitsForTheProof) {
  KvCacheManager kv(options(), {kState});
  const std::vector<KvBlockRef> landed = land(kv, iota(9));
  kv.expect_proof(kA);
  const std::vector<TokenId> longer = iota(21);
  EXPECT_EQ(kv.acquire_prefix(kA, longer, {}), 8);
  ASSERT_TRUE(kv.allocate_slots(kA, 21));
  kv.cache_blocks(kA, longer, 16);
  EXPECT_EQ(num_found(kv, kB, longer), 0);
  kv.prove(kA, landed);
  kv.cache_blocks(kA, longer, 20);
  EXPECT_EQ(num_found(kv, kB, longer), 20);
  kv.free(kA);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST_F(KvProof, WhatIsComputedTakesThePlaceOfWhatMayBeWrong) {
  KvCacheManager kv(options(), {kFull, kWindow});
  const std::vector<TokenId> tokens = iota(13);
  const std::vector<KvBlockRef> landed = land(kv, tokens);
  EXPECT_EQ(kv.acquire_prefix(kB, tokens, {}), 0);
  ASSERT_TRUE(kv.allocate_slots(kB, 13));
  kv.cache_blocks(kB, tokens, 13);
  kv.free(kB);
  EXPECT_EQ(num_found(kv, kC, tokens), 12);
  kv.withdraw(kA, landed);
  EXPECT_EQ(num_found(kv, kC, tokens), 12);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST_F(KvProof, WhatWillNeverBeProvenIsFoundNoMore) {
  KvCacheManager kv(options(), {kFull, kWindow});
  const std::vector<TokenId> tokens = iota(13);
  const std::vector<KvBlockRef> landed = land(kv, tokens);
  kv.withdraw(kA, landed);
  EXPECT_EQ(kv.check_integrity(), "");
  kv.expect_proof(kB);
  EXPECT_EQ(num_found(kv, kB, tokens), 0);
  EXPECT_EQ(kv.usage().num_cached, 0);
  // What has been proven stays.
  const std::vector<KvBlockRef> again = land(kv, tokens);
  kv.prove(kA, again);
  kv.withdraw(kA, again);
  EXPECT_EQ(num_found(kv, kC, tokens), 12);
}

// kB stands on kA's blocks, and its own are as wrong.
TEST_F(KvProof, AWrongPrefixIsDroppedFromItsFirstUnprovenBlockOn) {
  KvCacheManager kv(options(), {kFull});
  kv.acquire_prefix(kC, iota(4), {});
  ASSERT_TRUE(kv.allocate_slots(kC, 4));
  kv.cache_blocks(kC, iota(4), 4);
  kv.free(kC);
  land(kv, iota(13));
  kv.expect_proof(kB);
  const std::vector<TokenId> longer = iota(21);
  EXPECT_EQ(kv.acquire_prefix(kB, longer, {}), 12);
  ASSERT_TRUE(kv.allocate_slots(kB, 21));
  kv.cache_blocks(kB, longer, 20);
  kv.unpublish(kB, 12);
  kv.free(kB);
  EXPECT_EQ(num_found(kv, kB, longer), 4);
  EXPECT_EQ(kv.check_integrity(), "");
}

}  // namespace
}  // namespace sluice
