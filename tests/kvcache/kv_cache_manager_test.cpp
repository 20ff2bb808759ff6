// SPDX-License-Identifier: Apache-2.0
#include "kvcache/kv_cache_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvcache/kv_events.h"
#include "kvcache/prefix_index.h"

namespace sluice {
namespace {

constexpr KvManagerOptions kOptions{.block_size = 4, .max_num_seqs = 4, .max_model_len = 64};
const RequestId kA{1};
const RequestId kB{2};
const RequestId kC{3};

KvGroupSpec full(int32_t num_blocks) {
  return {.kind = KvGroupKind::kFull, .num_blocks = num_blocks};
}

KvGroupSpec window(int32_t tokens, int32_t num_blocks) {
  return {.kind = KvGroupKind::kWindow, .window = tokens, .num_blocks = num_blocks};
}

std::vector<TokenId> iota(int32_t count, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Runs a request over `tokens` to its end.
void compute(KvCacheManager& kv,
             RequestId id,
             const std::vector<TokenId>& tokens,
             const PrefixExtras& extras = {}) {
  kv.acquire_prefix(id, tokens, extras);
  ASSERT_TRUE(kv.allocate_slots(id, static_cast<int32_t>(tokens.size())));
  kv.cache_blocks(id, tokens, static_cast<int32_t>(tokens.size()));
  ASSERT_EQ(kv.check_integrity(), "");
  kv.free(id);
}

TEST(KvCacheManager, HitIsTheLongestAndLeavesOneTokenToCompute) {
  KvCacheManager kv(kOptions, {full(16)});
  compute(kv, kA, iota(12));
  EXPECT_EQ(kv.acquire_prefix(kB, iota(12), {}), 11);  // the last block is for a copy
  EXPECT_EQ(kv.acquire_prefix(kC, iota(15), {}), 12);
  EXPECT_EQ(kv.block_table(kB, 0).size(), 2u);
  EXPECT_EQ(kv.block_table(kC, 0).size(), 3u);
  EXPECT_EQ(kv.block_table(kB, 0)[1], kv.block_table(kC, 0)[1]);
  EXPECT_EQ(kv.check_integrity(), "");
}

std::vector<KvBlockCopy> copies_of(KvCacheManager& kv) {
  std::vector<KvBlockCopy> copies;
  kv.take_copies(copies);
  return copies;
}

TEST(KvCacheManager, WhatACopyReadsIsNobodyElsesUntilItIsMade) {
  KvCacheManager kv(kOptions, {full(4)});
  compute(kv, kA, iota(4));
  std::vector<TokenId> tokens = iota(3);
  tokens.push_back(99);
  EXPECT_EQ(kv.acquire_prefix(kB, tokens, {}), 3);
  ASSERT_TRUE(kv.allocate_slots(kB, 4));
  const std::vector<KvBlockCopy> copies = copies_of(kv);
  ASSERT_EQ(copies.size(), 1U);
  EXPECT_EQ(kv.num_available_blocks(), 2);
  EXPECT_FALSE(kv.allocate_slots(kC, 12));
  kv.end_copies(copies);
  EXPECT_TRUE(kv.allocate_slots(kC, 12));
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCacheManager, ABlockThatBeginsLikeTheNextOneIsCopied) {
  KvCacheManager kv(kOptions, {full(16), window(6, 16)});
  std::vector<TokenId> tokens = iota(12);
  kv.acquire_prefix(kA, tokens, {});
  ASSERT_TRUE(kv.allocate_slots(kA, 12));
  const BlockId last = kv.block_table(kA, 0)[2];
  const BlockId last_of_window = kv.block_table(kA, 1)[2];
  kv.cache_blocks(kA, tokens, 12);
  EXPECT_TRUE(copies_of(kv).empty());
  tokens[10] = 99;  // parts in the middle of the last block
  EXPECT_EQ(kv.acquire_prefix(kB, tokens, {}), 10);
  ASSERT_TRUE(kv.allocate_slots(kB, 12));
  EXPECT_EQ(copies_of(kv),
            (std::vector<KvBlockCopy>{{0, last, kv.block_table(kB, 0)[2]},
                                      {1, last_of_window, kv.block_table(kB, 1)[2]}}));
  EXPECT_NE(kv.block_table(kB, 0)[2], last);
  EXPECT_EQ(kv.check_integrity(), "");
  // The copy is made only once.
  ASSERT_TRUE(kv.allocate_slots(kB, 16));
  EXPECT_TRUE(copies_of(kv).empty());
}

TEST(KvCacheManager, TheTailOfAPrefixServesWhoGoesOn) {
  KvCacheManager kv(kOptions, {full(16)});
  const std::vector<TokenId> tokens = iota(11);
  kv.acquire_prefix(kA, tokens, {});
  ASSERT_TRUE(kv.allocate_slots(kA, 11));
  kv.cache_blocks(kA, tokens, 11);
  const BlockId tail = kv.block_table(kA, 0)[2];
  kv.cache_tail(kA, tokens, 11);
  kv.free(kA);
  ASSERT_EQ(kv.check_integrity(), "");
  EXPECT_EQ(kv.usage().num_cached, 3);
  EXPECT_EQ(kv.acquire_prefix(kB, iota(20), {}), 11);
  ASSERT_TRUE(kv.allocate_slots(kB, 20));
  EXPECT_EQ(copies_of(kv), (std::vector<KvBlockCopy>{{0, tail, kv.block_table(kB, 0)[2]}}));
  // Another tenant's prefix is a different one.
  EXPECT_EQ(kv.acquire_prefix(kC, iota(20), {.tenant_salt = 1}), 0);
  kv.free(kC);
  // A tail that begins what is known already is not kept a second time.
  kv.cache_blocks(kB, iota(20), 20);
  kv.free(kB);
  const int64_t num_cached = kv.usage().num_cached;
  kv.acquire_prefix(kC, iota(11), {});
  ASSERT_TRUE(kv.allocate_slots(kC, 11));
  kv.cache_tail(kC, iota(11), 11);
  kv.free(kC);
  EXPECT_EQ(kv.usage().num_cached, num_cached);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCacheManager, TheOnlyBlockLeftIsTakenAsItIs) {
  KvCacheManager kv(kOptions, {full(3)});
  compute(kv, kA, iota(12));
  const std::vector<TokenId> tokens = iota(11);
  EXPECT_EQ(kv.acquire_prefix(kB, tokens, {}), 10);
  ASSERT_TRUE(kv.allocate_slots(kB, 11));
  EXPECT_TRUE(copies_of(kv).empty());
  EXPECT_EQ(kv.num_available_blocks(), 0);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCacheManager, AStateIsNotCopied) {
  const KvGroupSpec state{.kind = KvGroupKind::kState, .interval = 4, .num_blocks = 16};
  KvCacheManager kv(kOptions, {full(16), state});
  compute(kv, kA, iota(12));
  EXPECT_EQ(kv.acquire_prefix(kB, iota(11), {}), 8);
}

TEST(KvCacheManager, OtherExtrasAreAnotherPrefix) {
  KvCacheManager kv(kOptions, {full(16)});
  compute(kv, kA, iota(12));
  for (const PrefixExtras& extras : {PrefixExtras{.tenant_salt = 1},
                                     PrefixExtras{.adapter_id = 1},
                                     PrefixExtras{.media_hash = 1}}) {
    EXPECT_EQ(kv.acquire_prefix(kB, iota(12), extras), 0);
    kv.free(kB);
  }
}

TEST(KvCacheManager, SameBlockAfterAnotherBeginningIsNotAHit) {
  KvCacheManager kv(kOptions, {full(16)});
  compute(kv, kA, iota(12));
  std::vector<TokenId> other = iota(12);
  other[0] = 99;
  EXPECT_EQ(kv.acquire_prefix(kB, other, {}), 0);
}

TEST(KvCacheManager, ChildIsNotFoundWithoutItsParentAndIsFoundAgainWithIt) {
  KvCacheManager kv(kOptions, {full(4)});
  // Two requests compute the same prompt at once: the first one's blocks are the findable ones, and
  // the second adds a block behind them.
  kv.acquire_prefix(kA, iota(4), {});
  kv.acquire_prefix(kB, iota(8), {});
  ASSERT_TRUE(kv.allocate_slots(kA, 4));
  ASSERT_TRUE(kv.allocate_slots(kB, 8));
  kv.cache_blocks(kA, iota(4), 4);
  kv.cache_blocks(kB, iota(8), 8);
  kv.free(kA);
  // The first block is evicted while its child is still in use.
  ASSERT_TRUE(kv.allocate_slots(kC, 8));
  kv.free(kB);
  ASSERT_EQ(kv.check_integrity(), "");
  EXPECT_EQ(kv.acquire_prefix(kA, iota(9), {}), 0);
  ASSERT_TRUE(kv.allocate_slots(kA, 4));
  kv.cache_blocks(kA, iota(9), 4);
  kv.free(kA);
  EXPECT_EQ(kv.acquire_prefix(kA, iota(9), {}), 8);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCacheManager, EvictionTakesAPrefixFromItsEnd) {
  KvCacheManager kv(kOptions, {full(4)});
  compute(kv, kA, iota(16));
  ASSERT_TRUE(kv.allocate_slots(kB, 8));
  EXPECT_EQ(kv.acquire_prefix(kC, iota(16), {}), 8);
}

// So many requests over 16 tokens each that are not asked for again.
void flood(KvCacheManager& kv, int32_t num_requests) {
  static TokenId next = 1'000;
  for (int32_t i = 0; i < num_requests; ++i, next += 16) compute(kv, kC, iota(16, next));
}

TEST(KvCacheManager, WhatWasFoundOftenOutlivesAFloodOfWhatWasNot) {
  KvCacheManager kv(kOptions, {full(32)});
  const auto turn = [](TokenId own) {
    std::vector<TokenId> tokens = iota(12);
    tokens.resize(16, own);
    return tokens;
  };
  compute(kv, kA, iota(16, 500));
  for (TokenId own = 100; own < 104; ++own) compute(kv, kA, turn(own));  // found three times
  flood(kv, 8);                                                          // the whole cache
  EXPECT_EQ(kv.acquire_prefix(kA, iota(17, 500), {}), 0);
  kv.free(kA);
  EXPECT_EQ(kv.acquire_prefix(kA, turn(200), {}), 12);
  kv.free(kA);
  EXPECT_EQ(kv.acquire_prefix(kA, turn(100), {}), 12);  // the own part was not
  kv.free(kA);
  flood(kv, 32);  // and not for ever
  EXPECT_EQ(kv.acquire_prefix(kA, turn(200), {}), 0);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCacheManager, AKeptPromptStaysForManyTurnsOfTheCacheAndItsAnswerDoesNot) {
  KvCacheManager kv(kOptions, {full(32)});
  const std::vector<TokenId> tokens = iota(24);
  kv.acquire_prefix(kA, tokens, {});
  ASSERT_TRUE(kv.allocate_slots(kA, 24));
  kv.cache_blocks(kA, tokens, 8);
  kv.keep_prefix(kA, 18);  // blocks that are cached already, and such as will be
  kv.cache_blocks(kA, tokens, 24);
  kv.free(kA);
  flood(kv, 8 * 12);
  EXPECT_EQ(kv.acquire_prefix(kA, tokens, {}), 16);
  kv.free(kA);
  flood(kv, 8 * 20);
  EXPECT_EQ(kv.acquire_prefix(kA, tokens, {}), 0);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCacheManager, AllocationIsAllOrNothingOverGroups) {
  KvCacheManager kv(kOptions, {full(8), window(64, 2)});
  ASSERT_TRUE(kv.allocate_slots(kA, 4));
  EXPECT_FALSE(kv.allocate_slots(kA, 12));
  EXPECT_EQ(kv.block_table(kA, 0).size(), 1u);
  EXPECT_EQ(kv.block_table(kA, 1).size(), 1u);
  EXPECT_TRUE(kv.allocate_slots(kA, 8));
  EXPECT_EQ(kv.num_available_blocks(), 0);
}

TEST(KvCacheManager, WindowGroupLetsGoOfBlocksBehindTheWindow) {
  KvCacheManager kv(kOptions, {full(16), window(6, 16)});
  const std::vector<TokenId> tokens = iota(20);
  ASSERT_TRUE(kv.allocate_slots(kA, 16));
  kv.cache_blocks(kA, tokens, 16);
  // The query at 16 sees 11..16: block 2 (8..11) is needed, blocks 0 and 1 are not.
  const auto table = kv.block_table(kA, 1);
  EXPECT_EQ(table[0], kNullBlock);
  EXPECT_EQ(table[1], kNullBlock);
  EXPECT_NE(table[2], kNullBlock);
  EXPECT_NE(kv.block_table(kA, 0)[0], kNullBlock);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCacheManager, HitNeedsOnlyTheWindowOfAWindowGroup) {
  KvCacheManager kv(kOptions, {full(16), window(6, 4)});
  const std::vector<TokenId> tokens = iota(33);
  // In the order of a chunked prefill: the pool of 4 blocks has lost the early ones.
  for (int32_t computed = 4; computed <= 32; computed += 4) {
    ASSERT_TRUE(kv.allocate_slots(kA, computed));
    kv.cache_blocks(kA, tokens, computed);
  }
  kv.free(kA);
  EXPECT_EQ(kv.acquire_prefix(kB, tokens, {}), 32);
  const auto table = kv.block_table(kB, 1);
  EXPECT_EQ(table[5], kNullBlock);
  EXPECT_NE(table[6], kNullBlock);  // the query at 32 sees 27..32
  kv.free(kB);
  // A shorter prefix has lost the blocks of its window.
  EXPECT_EQ(kv.acquire_prefix(kB, std::span(tokens).first(14), {}), 0);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCacheManager, StateGroupHasABlockPerIntervalAndHitsAtSnapshotsOnly) {
  const KvGroupSpec state{.kind = KvGroupKind::kState, .interval = 8, .num_blocks = 8};
  KvCacheManager kv(kOptions, {full(16), state});
  const std::vector<TokenId> tokens = iota(24);
  ASSERT_TRUE(kv.allocate_slots(kA, 20));
  EXPECT_EQ(kv.block_table(kA, 1).size(), 3u);
  kv.cache_blocks(kA, tokens, 20);
  kv.free(kA);
  // Full blocks reach to 20, the last snapshot is at 16.
  EXPECT_EQ(kv.acquire_prefix(kB, tokens, {}), 16);
  const auto table = kv.block_table(kB, 1);
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[0], kNullBlock);
  EXPECT_NE(table[1], kNullBlock);
  ASSERT_TRUE(kv.allocate_slots(kB, 24));
  EXPECT_EQ(kv.block_table(kB, 1).size(), 3u);
  EXPECT_EQ(kv.check_integrity(), "");
}

// --- States ------------------------------------------------------------------------------------

KvGroupSpec sparse_states(int32_t num_blocks, int32_t every = 64) {
  return {.kind = KvGroupKind::kState, .snapshot_every = every, .num_blocks = num_blocks};
}

// Computes `tokens` in steps of `chunk` and then, one by one, up to `end`.
void answer(KvCacheManager& kv, RequestId id, const std::vector<TokenId>& tokens, int32_t prompt) {
  const std::span<const TokenId> all = tokens;
  int32_t computed = kv.acquire_prefix(id, all.first(static_cast<size_t>(prompt)), {});
  while (computed < static_cast<int32_t>(tokens.size())) {
    computed = computed < prompt ? prompt : computed + 1;
    ASSERT_TRUE(kv.allocate_slots(id, computed));
    kv.cache_blocks(id, all.first(static_cast<size_t>(computed)), computed);
    ASSERT_EQ(kv.check_integrity(), "");
  }
}

int32_t found(KvCacheManager& kv, const std::vector<TokenId>& tokens) {
  const int32_t hit = kv.acquire_prefix(RequestId{99}, tokens, {});
  kv.free(RequestId{99});
  return hit;
}

TEST(KvStates, ARequestHoldsItsStateAndTheLastSnapshot) {
  KvCacheManager kv(kOptions, {full(32), sparse_states(2)});
  const std::vector<TokenId> tokens = iota(58);
  ASSERT_TRUE(kv.fits_alone(58));
  answer(kv, kA, tokens, 30);
  EXPECT_EQ(kv.usage().num_referenced, 15 + 2);
  EXPECT_EQ(kv.usage().num_states_referenced, 2);
  EXPECT_EQ(kv.usage().num_states, 2);
  kv.free(kA);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvStates, WithoutAPrefixCacheThereIsOneState) {
  KvManagerOptions options = kOptions;
  options.enable_prefix_caching = false;
  KvCacheManager kv(options, {full(32), sparse_states(1)});
  answer(kv, kA, iota(58), 30);
  EXPECT_EQ(kv.usage().num_referenced, 15 + 1);
  EXPECT_FALSE(kv.has_room(kB, 4, 0));
  kv.free(kA);
  EXPECT_TRUE(kv.has_room(kB, 4, 0));
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvStates, DraftsEndInFrontOfAnEntrysEnd) {
  KvGroupSpec states = sparse_states(4);
  EXPECT_EQ(KvCacheManager(kOptions, {full(8), states}).most_drafts(8), 0);
  states.most_drafts = 2;
  const KvCacheManager kv(kOptions, {full(8), states});
  for (int32_t tokens = 4; tokens < 12; ++tokens) {
    EXPECT_EQ(kv.most_drafts(tokens), std::min(2, 3 - tokens % 4)) << tokens;
  }
  EXPECT_GT(KvCacheManager(kOptions, {full(8)}).most_drafts(7), 1000);
}

TEST(KvStates, SnapshotsAreAtTheEndsOfPromptAndAnswerAndEverySoManyTokens) {
  KvCacheManager kv(kOptions, {full(64), sparse_states(16, 16)});
  const std::vector<TokenId> tokens = iota(55);
  answer(kv, kA, tokens, 30);
  kv.free(kA);
  const std::vector<std::pair<int32_t, int32_t>> kHits = {
      {60, 52}, {53, 52}, {52, 48}, {48, 32}, {33, 32}, {32, 28}, {30, 28}, {28, 16}, {16, 0}};
  std::vector<TokenId> longer = iota(60);
  for (const auto& [length, hit] : kHits) {
    EXPECT_EQ(found(kv, {longer.begin(), longer.begin() + length}), hit) << length;
  }
  EXPECT_EQ(kv.check_integrity(), "");
}

// Attention has the common beginning from the first request; the second leaves a state there.
TEST(KvStates, TheSecondRequestLeavesAStateWhereItsPromptLeftTheFirst) {
  KvCacheManager kv(kOptions, {full(64), sparse_states(16)});
  const auto prompt = [](TokenId last) {
    std::vector<TokenId> tokens = iota(24);
    tokens.insert(tokens.end(), 10, last);
    return tokens;
  };
  answer(kv, kA, prompt(90), 34);
  kv.free(kA);
  EXPECT_EQ(found(kv, prompt(91)), 0);
  answer(kv, kB, prompt(91), 34);
  kv.free(kB);
  EXPECT_EQ(found(kv, prompt(92)), 24);
}

TEST(KvStates, ASnapshotThatOthersBeginAtIsNotOverwritten) {
  KvCacheManager kv(kOptions, {full(64), sparse_states(4)});
  const std::vector<TokenId> tokens = iota(13);
  answer(kv, kA, tokens, 13);
  kv.free(kA);
  for (const RequestId id : {kA, kB}) {
    EXPECT_EQ(kv.acquire_prefix(id, tokens, {}), 12);
    ASSERT_TRUE(kv.allocate_slots(id, 13));
  }
  const auto a = kv.block_table(kA, 1);
  const auto b = kv.block_table(kB, 1);
  EXPECT_EQ(a[2], b[2]);
  EXPECT_NE(a[3], b[3]);
  EXPECT_NE(a[3], a[2]);
  EXPECT_EQ(kv.check_integrity(), "");
}

// A scored prompt is known only in part when it is looked up.
TEST(KvStates, ManyTokensAtOnceTakeFewStates) {
  KvCacheManager kv(kOptions, {full(32), sparse_states(3)});
  EXPECT_EQ(kv.acquire_prefix(kA, iota(5), {}), 0);
  ASSERT_TRUE(kv.allocate_slots(kA, 50));
  EXPECT_EQ(kv.usage().num_states_referenced, 3);
  kv.cache_blocks(kA, iota(50), 50);
  EXPECT_EQ(kv.check_integrity(), "");
  kv.free(kA);
  EXPECT_EQ(found(kv, iota(60)), 48);
}

// Whoever runs needs no more than two, so another begins while these are there.
TEST(KvStates, ARunningRequestIsNotHeldBackForStatesThatNobodyCanWant) {
  KvCacheManager kv(kOptions, {full(64), sparse_states(4)});
  answer(kv, kA, iota(40), 20);
  EXPECT_TRUE(kv.has_room(kB, 20, 8));
  std::vector<TokenId> other(40, 7);
  answer(kv, kB, other, 20);
  EXPECT_FALSE(kv.has_room(kC, 20, 8));
}

TEST(KvCacheManager, BlockInTransferOutlivesItsOwner) {
  KvCacheManager kv(kOptions, {full(2)});
  ASSERT_TRUE(kv.allocate_slots(kA, 8));
  const BlockId block = kv.block_table(kA, 0)[0];
  kv.begin_transfer(0, block);
  kv.free(kA);
  EXPECT_EQ(kv.num_available_blocks(), 1);
  EXPECT_EQ(kv.check_integrity(), "");
  kv.end_transfer(0, block);
  EXPECT_EQ(kv.num_available_blocks(), 2);
}

TEST(KvCacheManager, ResetForgetsWhatNobodyUses) {
  KvCacheManager kv(kOptions, {full(16)});
  compute(kv, kA, iota(12));
  EXPECT_EQ(kv.usage().num_cached, 3);
  kv.reset_prefix_cache();
  EXPECT_EQ(kv.usage().num_cached, 0);
  EXPECT_EQ(kv.acquire_prefix(kB, iota(12), {}), 0);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvCacheManager, CachingOffFindsAndKeepsNothing) {
  KvManagerOptions options = kOptions;
  options.enable_prefix_caching = false;
  KvCacheManager kv(options, {full(16)});
  compute(kv, kA, iota(12));
  EXPECT_EQ(kv.acquire_prefix(kB, iota(12), {}), 0);
  EXPECT_EQ(kv.usage().num_free, 16);
}

TEST(KvCacheManager, UsageCountsAnAdmissionOnce) {
  KvCacheManager kv(kOptions, {full(4)});
  compute(kv, kA, iota(12));
  ASSERT_EQ(kv.usage().prefix_queries, 12u);
  EXPECT_EQ(kv.acquire_prefix(kB, iota(13), {}), 12);
  kv.free(kB);  // not admitted after all
  EXPECT_EQ(kv.acquire_prefix(kB, iota(13), {}), 12);
  ASSERT_TRUE(kv.allocate_slots(kB, 13));
  ASSERT_TRUE(kv.allocate_slots(kB, 14));
  EXPECT_EQ(kv.usage().prefix_queries, 25u);
  EXPECT_EQ(kv.usage().prefix_hits, 12u);
  // Nor does a preempted request count again, which finds as much as before.
  kv.free(kB);
  EXPECT_EQ(kv.acquire_prefix(kB, iota(11), {}, PrefixUse::kReadmission), 10);  // two are copied
  ASSERT_TRUE(kv.allocate_slots(kB, 11));
  EXPECT_EQ(kv.usage().prefix_queries, 25u);
  EXPECT_EQ(kv.usage().prefix_hits, 12u);
}

TEST(KvCacheManager, RoomIsJudgedPerGroup) {
  KvCacheManager kv(kOptions, {full(16), window(6, 3)});
  EXPECT_TRUE(kv.fits_alone(64));
  EXPECT_TRUE(kv.has_room(kA, 64, 0));
  ASSERT_TRUE(kv.allocate_slots(kB, 12));
  EXPECT_FALSE(kv.has_room(kA, 64, 0));
  KvCacheManager small(kOptions, {full(15), window(6, 3)});
  EXPECT_FALSE(small.fits_alone(64));
  EXPECT_TRUE(small.fits_alone(60));
}

TEST(PrefixIndex, FullIndexRefusesAndRecoversWhenANodeGoes) {
  PrefixIndex index(2, 1, 1);
  const std::vector<TokenId> ids = {5, 6};
  const auto first = std::span(ids).first(1);
  const auto second = std::span(ids).last(1);
  const int32_t parent = index.find_or_insert_pinned(PrefixIndex::kRoot, first, {});
  const int32_t child = index.find_or_insert_pinned(parent, second, {});
  EXPECT_EQ(index.find_or_insert_pinned(child, first, {}), PrefixIndex::kAbsent);
  index.attach(child, 0, BlockId{0});
  index.unpin(child);
  index.unpin(parent);
  std::vector<int32_t> chain;
  index.find_chain(second, {}, chain);
  EXPECT_TRUE(chain.empty());
  index.find_chain(ids, {}, chain);
  EXPECT_EQ(chain, (std::vector<int32_t>{parent, child}));  // the parent is kept by its child
  index.detach(child, 0);
  chain.clear();
  index.find_chain(ids, {}, chain);
  EXPECT_TRUE(chain.empty());
  EXPECT_EQ(index.check_integrity({}), "");
}

// A router's knowledge: the chain of each findable block, by hash.
class Listener final : public KvEventSink {
 public:
  void stored(const StoredBlock& block) override {
    EXPECT_TRUE(known_.emplace(std::pair(block.hash, block.group), block.parent_hash).second);
    tokens_.insert(tokens_.end(), block.token_ids.begin(), block.token_ids.end());
  }

  void removed(uint64_t hash, int32_t group, KvMedium medium) override {
    EXPECT_EQ(medium, KvMedium::kDevice);
    EXPECT_EQ(known_.erase(std::pair(hash, group)), 1U);
  }

  void cleared() override {
    known_.clear();
    ++num_clears_;
  }

  std::map<std::pair<uint64_t, int32_t>, std::optional<uint64_t>> known_;
  std::vector<TokenId> tokens_;
  int num_clears_ = 0;
};

TEST(KvCacheManager, TellsWhichPrefixesBecomeAndCeaseToBeFindable) {
  KvCacheManager kv(kOptions, {full(4)});
  Listener listener;
  kv.set_event_sink(listener);
  compute(kv, kA, iota(10));  // two full blocks
  ASSERT_EQ(listener.known_.size(), 2U);
  EXPECT_EQ(listener.tokens_, iota(8));
  int num_roots = 0;
  for (const auto& [block, parent] : listener.known_) {
    num_roots += !parent.has_value();
    EXPECT_TRUE(!parent || listener.known_.contains({*parent, 0}));
  }
  EXPECT_EQ(num_roots, 1);
  compute(kv, kB, iota(10));  // the same prefix: nothing new
  EXPECT_EQ(listener.tokens_.size(), 8U);
  compute(kv, kC, iota(16, 100));  // takes all four blocks
  EXPECT_EQ(listener.known_.size(), 4U);
  EXPECT_EQ(kv.acquire_prefix(kA, iota(10), {}), 0);
  kv.free(kA);
  // Other extras are another prefix, and have another hash.
  const auto before = listener.known_;
  compute(kv, kA, iota(5, 100), {.tenant_salt = 1});  // in two blocks, one of them full
  EXPECT_EQ(listener.known_.size(), 3U);
  EXPECT_TRUE(std::ranges::any_of(
      listener.known_, [&](const auto& block) { return !before.contains(block.first); }));
}

TEST(KvCacheManager, TellsNobodyOfTails) {
  KvCacheManager kv(kOptions, {full(4)});
  Listener listener;
  kv.set_event_sink(listener);
  kv.acquire_prefix(kA, iota(6), {});
  ASSERT_TRUE(kv.allocate_slots(kA, 6));
  kv.cache_blocks(kA, iota(6), 6);
  kv.cache_tail(kA, iota(6), 6);
  kv.free(kA);
  EXPECT_EQ(listener.tokens_, iota(4));
  compute(kv, kB, iota(16, 100));  // takes all blocks
  EXPECT_EQ(listener.known_.size(), 4U);
}

TEST(KvCacheManager, AResetIsOneEventOrNamesWhatWasNotInUse) {
  KvCacheManager kv(kOptions, {full(8)});
  Listener listener;
  kv.set_event_sink(listener);
  compute(kv, kA, iota(10));
  kv.reset_prefix_cache();
  EXPECT_EQ(listener.num_clears_, 1);
  compute(kv, kA, iota(10));
  EXPECT_EQ(kv.acquire_prefix(kB, iota(5), {}), 4);  // holds the first block
  kv.reset_prefix_cache();
  EXPECT_EQ(listener.num_clears_, 1);
  EXPECT_EQ(listener.known_.size(), 1U);
}

}  // namespace
}  // namespace sluice
