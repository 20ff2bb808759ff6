// SPDX-License-Identifier: Apache-2.0
// KV that travels: what is needed, found, kept, reserved and published.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "kvcache/kv_cache_manager.h"
#include "kvcache/kv_events.h"

namespace sluice {
namespace {

const RequestId kA{1};
const RequestId kB{2};
const RequestId kC{3};
constexpr const char* kSpace = "test-b4";

constexpr KvManagerOptions options() {
  return {.block_size = 4, .max_num_seqs = 4, .max_model_len = 64, .max_pinned_share = 0.5};
}

KvGroupSpec full(int32_t num_blocks) { return {.num_blocks = num_blocks}; }

KvGroupSpec window(int32_t tokens, int32_t num_blocks) {
  return {.kind = KvGroupKind::kWindow, .window = tokens, .num_blocks = num_blocks};
}

KvGroupSpec state(int32_t interval, int32_t num_blocks) {
  return {.kind = KvGroupKind::kState, .interval = interval, .num_blocks = num_blocks};
}

std::vector<TokenId> iota(int32_t count, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

void compute(KvCacheManager& kv, RequestId id, const std::vector<TokenId>& tokens) {
  kv.acquire_prefix(id, tokens, {});
  ASSERT_TRUE(kv.allocate_slots(id, static_cast<int32_t>(tokens.size())));
  kv.cache_blocks(id, tokens, static_cast<int32_t>(tokens.size()));
  ASSERT_EQ(kv.check_integrity(), "");
  kv.free(id);
}

std::vector<KvBlockRef> found(const KvCacheManager& kv,
                              const std::vector<TokenId>& tokens,
                              int32_t expected,
                              const std::vector<int32_t>& first_wanted = {}) {
  std::vector<KvBlockRef> blocks;
  EXPECT_EQ(kv.find_blocks(tokens, PrefixExtras{}, first_wanted, blocks), expected);
  return blocks;
}

// (group, entry) of each.
std::vector<std::pair<int32_t, int32_t>> places(std::span<const KvBlockRef> blocks) {
  std::vector<std::pair<int32_t, int32_t>> result;
  for (const KvBlockRef& ref : blocks) result.emplace_back(ref.group, ref.entry);
  return result;
}

using Places = std::vector<std::pair<int32_t, int32_t>>;

std::vector<KvKey> keys_of(const std::vector<TokenId>& tokens, const PrefixExtras& extras = {}) {
  std::vector<KvKey> keys;
  KvKey key = kv_root_key(kSpace, extras);
  for (size_t i = 0; i + 4 <= tokens.size(); i += 4) {
    key = kv_next_key(key, std::span(tokens).subspan(i, 4));
    keys.push_back(key);
  }
  return keys;
}

TEST(KvTransfers, OnlyWhatAQueryBehindThePrefixReadsIsNeeded) {
  const KvCacheManager kv(options(), {full(16), window(6, 16), state(8, 8)});
  EXPECT_EQ(kv.max_transferred(33), 32);
  EXPECT_EQ(kv.max_transferred(32), 24);  // whole entries of the state too
  EXPECT_EQ(kv.max_transferred(8), 0);
  EXPECT_EQ(kv.max_transferred(0), 0);
  EXPECT_EQ(kv.needed_entries(0, 24), (KvRange{0, 6}));
  EXPECT_EQ(kv.needed_entries(1, 24), (KvRange{4, 2}));  // positions 19 to 23
  EXPECT_EQ(kv.needed_entries(2, 24), (KvRange{2, 1}));
  EXPECT_EQ(kv.needed_entries(1, 0), (KvRange{0, 0}));
  const KvCacheManager narrow(options(), {window(1, 8)});
  EXPECT_EQ(narrow.needed_entries(0, 24), (KvRange{6, 0}));  // a query sees itself alone
}

TEST(KvTransfers, BlocksAreFoundAsTheyAreComputed) {
  KvCacheManager kv(options(), {full(16), window(6, 16)});
  const std::vector<TokenId> tokens = iota(18);
  const std::vector<TokenId> prefix = iota(16);
  kv.acquire_prefix(kA, tokens, {});
  ASSERT_TRUE(kv.allocate_slots(kA, 18));
  EXPECT_TRUE(found(kv, prefix, 0).empty());
  kv.cache_blocks(kA, tokens, 9);
  EXPECT_EQ(places(found(kv, prefix, 2)), (Places{{0, 0}, {0, 1}}));
  kv.cache_blocks(kA, tokens, 18);
  EXPECT_EQ(places(found(kv, prefix, 4)), (Places{{0, 0}, {0, 1}, {0, 2}, {1, 2}, {0, 3}, {1, 3}}));
  // Entries that the other worker has already are left out.
  EXPECT_EQ(places(found(kv, prefix, 4, {3, 2})), (Places{{1, 2}, {0, 3}, {1, 3}}));
  // Another tenant finds nothing.
  std::vector<KvBlockRef> blocks;
  EXPECT_EQ(kv.find_blocks(prefix, {.tenant_salt = 1}, {}, blocks), 0);
  EXPECT_TRUE(blocks.empty());
}

TEST(KvTransfers, AKeyNamesAPrefixWhoeverAsks) {
  KvCacheManager kv(options(), {full(8)});
  kv.name_blocks(kSpace);
  compute(kv, kA, iota(13));
  std::vector<KvBlockRef> blocks;
  const std::vector<KvKey> keys = keys_of(iota(20));
  EXPECT_EQ(kv.find_blocks(std::span(keys), {}, blocks), 3);
  EXPECT_EQ(places(blocks), (Places{{0, 0}, {0, 1}, {0, 2}}));
  blocks.clear();
  EXPECT_EQ(kv.find_blocks(std::span(keys).subspan(1, 1), {}, blocks), 2);
  blocks.clear();
  const std::vector<KvKey> of_others = keys_of(iota(12), {.tenant_salt = 1});
  EXPECT_EQ(kv.find_blocks(std::span(of_others), {}, blocks), 0);
  EXPECT_TRUE(blocks.empty());
  // Keys go with their nodes.
  compute(kv, kB, iota(32, 100));
  EXPECT_EQ(kv.find_blocks(std::span(keys), {}, blocks), 0);
  const std::vector<KvKey> later = keys_of(iota(32, 100));
  EXPECT_EQ(kv.find_blocks(std::span(later), {}, blocks), 8);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvTransfers, WhatIsPinnedStaysAndComesBackToTheCache) {
  KvCacheManager kv(options(), {full(8)});
  compute(kv, kA, iota(24));  // six blocks
  const std::vector<KvBlockRef> blocks = found(kv, iota(24), 6);
  ASSERT_EQ(kv.pin(blocks), 4);  // half of eight
  EXPECT_EQ(kv.usage().num_pinned, 4);
  const auto pinned = std::span(blocks).first(4);
  EXPECT_FALSE(kv.allocate_slots(kB, 20));
  compute(kv, kB, iota(16, 100));  // takes all others
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(kv.is_current(blocks[i]), i < 4) << i;
  EXPECT_EQ(kv.pin(std::span(blocks).last(2)), 0);  // they hold something else
  EXPECT_EQ(kv.usage().num_cached, 4);
  kv.unpin(pinned);
  EXPECT_EQ(kv.usage().num_pinned, 0);
  EXPECT_EQ(kv.usage().num_cached, 8);
  EXPECT_EQ(kv.acquire_prefix(kC, iota(24), {}), 16);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvTransfers, AReservedBlockIsFoundOnceItIsPublished) {
  KvCacheManager kv(options(), {full(16), window(6, 4)});
  const std::vector<TokenId> tokens = iota(26);
  compute(kv, kA, iota(9));  // two blocks are here already
  EXPECT_EQ(kv.acquire_prefix(kB, tokens, {}, PrefixUse::kTransfer), 8);
  std::vector<KvBlockRef> reserved;
  ASSERT_TRUE(kv.reserve(kB, 24, reserved));
  EXPECT_EQ(places(reserved), (Places{{0, 2}, {0, 3}, {0, 4}, {0, 5}, {1, 4}, {1, 5}}));
  for (const KvBlockRef& ref : reserved) EXPECT_TRUE(kv.is_current(ref));
  EXPECT_EQ(kv.block_table(kB, 1)[3], kNullBlock);
  EXPECT_EQ(kv.check_integrity(), "");
  // A step that retires publishes nothing that has not arrived.
  kv.cache_blocks(kB, tokens, 16);
  EXPECT_EQ(kv.acquire_prefix(kC, tokens, {}, PrefixUse::kTransfer), 8);
  kv.free(kC);
  kv.publish(kB, tokens, 16);
  EXPECT_EQ(places(found(kv, iota(16), 2)), (Places{{0, 0}, {0, 1}}));  // the window is not there
  kv.publish(kB, tokens, 24);
  EXPECT_EQ(kv.acquire_prefix(kC, tokens, {}, PrefixUse::kTransfer), 24);
  EXPECT_EQ(kv.block_table(kC, 1)[4], reserved[4].block);
  kv.free(kC);
  // The rest is computed.
  ASSERT_TRUE(kv.allocate_slots(kB, 26));
  kv.cache_blocks(kB, tokens, 26);
  EXPECT_EQ(kv.check_integrity(), "");
  kv.free(kB);
  EXPECT_EQ(kv.usage().num_referenced, 0);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvTransfers, WhatDoesNotArriveIsFreeAgain) {
  KvCacheManager kv(options(), {full(8)});
  const std::vector<TokenId> tokens = iota(25);
  std::vector<KvBlockRef> reserved;
  ASSERT_TRUE(kv.reserve(kA, 24, reserved));
  kv.publish(kA, tokens, 8);
  // A transfer still writes into the last block.
  kv.begin_transfer(0, reserved[5].block);
  kv.free(kA);
  EXPECT_EQ(kv.usage().num_cached, 2);
  EXPECT_EQ(kv.usage().num_free, 5);
  EXPECT_EQ(kv.acquire_prefix(kB, tokens, {}), 8);  // what had arrived
  kv.free(kB);
  kv.end_transfer(0, reserved[5].block);
  EXPECT_EQ(kv.usage().num_free, 6);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvTransfers, AReservationIsAllOrNothing) {
  KvCacheManager kv(options(), {full(8), window(6, 1)});
  std::vector<KvBlockRef> reserved;
  EXPECT_FALSE(kv.reserve(kA, 24, reserved));  // the window needs two
  EXPECT_TRUE(reserved.empty());
  EXPECT_EQ(kv.usage().num_free, 9);
  EXPECT_TRUE(kv.block_table(kA, 0).empty());
  EXPECT_TRUE(kv.reserve(kA, 4, reserved));
  EXPECT_EQ(reserved.size(), 2U);
}

TEST(KvTransfers, AStateTravelsAsItsLastSnapshot) {
  KvCacheManager kv(options(), {full(16), state(8, 4)});
  const std::vector<TokenId> tokens = iota(25);
  EXPECT_EQ(kv.acquire_prefix(kA, tokens, {}, PrefixUse::kTransfer), 0);
  std::vector<KvBlockRef> reserved;
  ASSERT_TRUE(kv.reserve(kA, 24, reserved));
  EXPECT_EQ(places(std::span(reserved).last(1)), (Places{{1, 2}}));
  EXPECT_EQ(reserved.size(), 7U);
  kv.publish(kA, tokens, 24);
  EXPECT_EQ(kv.acquire_prefix(kB, tokens, {}, PrefixUse::kTransfer), 24);
  EXPECT_EQ(places(found(kv, iota(24), 6)).back(), std::pair(1, 2));
  EXPECT_EQ(kv.check_integrity(), "");
}

// What came from elsewhere may prove wrong, and what a tier brings is there already.
TEST(KvTransfers, StatesThatWereComputedHereAreTold) {
  struct Sink final : KvStateSink {
    void left(const KvState& state) override {
      keys.push_back(state.key);
      EXPECT_EQ(state.blocks.size(), 1U);
      EXPECT_EQ(state.blocks[0].group, 1);
      EXPECT_EQ(state.token_ids.size(), 4U);
    }
    std::vector<KvKey> keys;
  };
  Sink sink;
  KvCacheManager kv(options(), {full(16), state(8, 8)});
  kv.name_blocks(kSpace);
  kv.set_state_sink(sink);
  const std::vector<TokenId> tokens = iota(25);
  std::vector<KvBlockRef> reserved;
  kv.acquire_prefix(kA, tokens, {}, PrefixUse::kTransfer);
  ASSERT_TRUE(kv.reserve(kA, 16, reserved));
  kv.publish(kA, tokens, 16);
  EXPECT_TRUE(sink.keys.empty());
  ASSERT_TRUE(kv.allocate_slots(kA, 25));
  kv.cache_blocks(kA, tokens, 25);
  kv.free(kA);
  EXPECT_EQ(sink.keys, (std::vector<KvKey>{keys_of(tokens)[5]}));
  const std::vector<TokenId> others = iota(8, 100);
  const std::vector<uint64_t> groups = {1, 3};
  std::vector<KvBlockRef> inserted;
  EXPECT_EQ(kv.insert(others, {}, {.first = 0, .count = 2}, groups, inserted), 2);
  EXPECT_EQ(sink.keys.size(), 1U);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvTransfers, NothingBehindWhatWasWrongIsFoundAgain) {
  KvCacheManager kv(options(), {full(16)});
  const std::vector<TokenId> tokens = iota(13);
  kv.acquire_prefix(kA, tokens, {}, PrefixUse::kTransfer);
  std::vector<KvBlockRef> reserved;
  ASSERT_TRUE(kv.reserve(kA, 12, reserved));
  kv.publish(kA, tokens, 12);
  // Another request has found it, and goes on behind it.
  const std::vector<TokenId> longer = iota(24);
  EXPECT_EQ(kv.acquire_prefix(kB, longer, {}), 12);
  ASSERT_TRUE(kv.allocate_slots(kB, 24));
  kv.cache_blocks(kB, longer, 16);
  // And one has ended there.
  EXPECT_EQ(kv.acquire_prefix(kC, longer, {}), 16);
  kv.free(kC);
  EXPECT_TRUE(kv.is_proven(kA) && kv.is_proven(kB));
  kv.unpublish(kA, 4);
  EXPECT_EQ(kv.check_integrity(), "");
  EXPECT_FALSE(kv.is_proven(kA) || kv.is_proven(kB));
  EXPECT_EQ(kv.acquire_prefix(kC, longer, {}, PrefixUse::kTransfer), 4);
  EXPECT_TRUE(kv.is_proven(kC));
  kv.free(kC);
  kv.cache_blocks(kB, longer, 24);
  kv.cache_tail(kB, longer, 22);
  kv.free(kA);
  kv.free(kB);
  compute(kv, kC, iota(13));  // as it should be
  EXPECT_EQ(kv.acquire_prefix(kA, longer, {}), 12);
  EXPECT_TRUE(kv.is_proven(kA));
  EXPECT_EQ(kv.check_integrity(), "");
  kv.free(kA);
  EXPECT_EQ(kv.usage().num_referenced, 0);
}

TEST(KvTransfers, WhatATierHasIsFoundLikeWhatWasComputed) {
  KvCacheManager kv(options(), {full(8), window(6, 3)});
  const std::vector<TokenId> tokens = iota(20);
  std::vector<KvBlockRef> inserted;
  // The window's first two blocks are not needed at the end of the four.
  const std::vector<uint64_t> groups = {1, 1, 3, 3};
  EXPECT_EQ(kv.insert(tokens, {}, {0, 2}, std::span(groups).first(2), inserted), 2);
  EXPECT_EQ(places(inserted), (Places{{0, 0}, {0, 1}}));
  EXPECT_EQ(kv.acquire_prefix(kA, tokens, {}, PrefixUse::kTransfer), 0);  // no window yet
  kv.free(kA);
  EXPECT_EQ(kv.insert(tokens, {}, {2, 2}, std::span(groups).last(2), inserted), 2);
  EXPECT_EQ(inserted.size(), 6U);
  EXPECT_EQ(kv.acquire_prefix(kA, tokens, {}, PrefixUse::kTransfer), 16);
  EXPECT_EQ(kv.check_integrity(), "");
  kv.free(kA);
  // Present blocks are not inserted twice, and nothing is put behind a gap or for others.
  inserted.clear();
  EXPECT_EQ(kv.insert(tokens, {}, {2, 2}, std::span(groups).last(2), inserted), 2);
  EXPECT_EQ(kv.insert(iota(24, 100), {}, {2, 2}, std::span(groups).last(2), inserted), 0);
  EXPECT_EQ(kv.insert(tokens, {.tenant_salt = 1}, {2, 2}, std::span(groups).last(2), inserted), 0);
  EXPECT_TRUE(inserted.empty());
  EXPECT_EQ(kv.usage().num_cached, 6);
  EXPECT_EQ(kv.check_integrity(), "");
}

TEST(KvTransfers, WhatATierHasTakesNoMoreBlocksThanThereAre) {
  KvCacheManager kv(options(), {full(3)});
  const std::vector<TokenId> tokens = iota(20);
  compute(kv, kA, iota(4, 100));
  ASSERT_TRUE(kv.allocate_slots(kB, 4));
  std::vector<KvBlockRef> inserted;
  const std::vector<uint64_t> groups(5, 1);
  EXPECT_EQ(kv.insert(tokens, {}, {0, 5}, groups, inserted), 2);
  EXPECT_EQ(places(inserted), (Places{{0, 0}, {0, 1}}));
  EXPECT_EQ(kv.acquire_prefix(kA, tokens, {}, PrefixUse::kTransfer), 8);
  EXPECT_EQ(kv.check_integrity(), "");
}

// A state between its snapshots has nothing to put in.
TEST(KvTransfers, AStateComesFromATierWithTheBlockThatEndsIt) {
  KvCacheManager kv(options(), {full(8), state(8, 4)});
  const std::vector<TokenId> tokens = iota(20);
  std::vector<KvBlockRef> inserted;
  const std::vector<uint64_t> groups(4, 3);
  EXPECT_EQ(kv.insert(tokens, {}, {0, 4}, groups, inserted), 4);
  EXPECT_EQ(places(inserted), (Places{{0, 0}, {0, 1}, {1, 0}, {0, 2}, {0, 3}, {1, 1}}));
  EXPECT_EQ(kv.acquire_prefix(kA, tokens, {}, PrefixUse::kTransfer), 16);
  EXPECT_EQ(kv.check_integrity(), "");
}

// --- Two workers, one of which has its KV from the other ----------------------------------------

// Contents of a block: of each group the hash of the prefix that it ends.
class Worker {
 public:
  Worker(std::mt19937_64& random, std::vector<KvGroupSpec> groups)
      : random_(random), kv_(options(), groups), contents_(groups.size()) {
    kv_.name_blocks(kSpace);
  }

  static uint64_t hash(std::span<const TokenId> tokens, const PrefixExtras& extras) {
    uint64_t value = extras.tenant_salt + 1;
    for (const TokenId token : tokens) {
      value = (value ^ static_cast<uint64_t>(token)) * 0x100000001B3;
    }
    return value;
  }

  static uint64_t content(std::span<const TokenId> tokens,
                          const PrefixExtras& extras,
                          int32_t end_tokens) {
    return hash(tokens.first(static_cast<size_t>(end_tokens)), extras);
  }

  std::mt19937_64& random_;
  KvCacheManager kv_;
  std::vector<std::map<int32_t, uint64_t>> contents_;  // by group and block
};

class TwoWorkers {
 public:
  explicit TwoWorkers(uint64_t seed)
      : random_(seed), groups_(draw_groups()), from_(random_, groups_), to_(random_, groups_) {}

  void run() {
    for (int i = 0; i < 300 && !::testing::Test::HasFailure(); ++i) {
      const std::vector<TokenId> tokens = draw_tokens();
      const PrefixExtras extras = {.tenant_salt = draw(2)};
      switch (draw(4)) {
        case 0:
          compute(from_, tokens, extras);
          break;
        case 1:
          compute(to_, tokens, extras);
          break;
        default:
          transfer(tokens, extras);
      }
      ASSERT_EQ(from_.kv_.check_integrity(), "");
      ASSERT_EQ(to_.kv_.check_integrity(), "");
    }
    for (const auto& pinned : pins_) from_.kv_.unpin(pinned);
    EXPECT_EQ(from_.kv_.usage().num_pinned, 0);
    for (Worker* worker : {&from_, &to_}) {
      const KvUsage usage = worker->kv_.usage();
      EXPECT_EQ(usage.num_free + usage.num_cached, usage.num_blocks);
    }
    EXPECT_GT(num_moved_, 0);
  }

 private:
  uint64_t draw(uint64_t bound) { return random_() % bound; }

  std::vector<KvGroupSpec> draw_groups() {
    const auto blocks = [this] { return static_cast<int32_t>(17 + draw(20)); };
    switch (draw(4)) {
      case 0:
        return {full(blocks())};
      case 1:
        return {full(blocks()), window(static_cast<int32_t>(1 + draw(12)), blocks())};
      case 2:
        return {full(blocks()), state(8, blocks())};
      default:
        return {window(6, blocks()), full(blocks()), window(3, blocks()), state(4, blocks())};
    }
  }

  std::vector<TokenId> draw_tokens() {
    std::vector<TokenId> tokens(1 + draw(60));
    for (TokenId& token : tokens) token = draw(8) == 0 ? 1 : 0;
    return tokens;
  }

  int32_t per_entry(size_t group) const { return tokens_per_entry(groups_[group], 4); }

  void write(Worker& worker,
             size_t group,
             BlockId block,
             std::span<const TokenId> tokens,
             const PrefixExtras& extras,
             int32_t entry) {
    worker.contents_[group][block.value] =
        Worker::content(tokens, extras, (entry + 1) * per_entry(group));
  }

  // Checks the contents of the request's whole entries that a query at `end` reads.
  void check(Worker& worker,
             std::span<const TokenId> tokens,
             const PrefixExtras& extras,
             int32_t end) {
    for (size_t group = 0; group < groups_.size(); ++group) {
      const KvRange needed = worker.kv_.needed_entries(static_cast<int32_t>(group), end);
      const auto table = worker.kv_.block_table(kA, static_cast<int32_t>(group));
      for (int32_t entry = needed.first; entry < needed.end(); ++entry) {
        const BlockId block = table[static_cast<size_t>(entry)];
        ASSERT_NE(block, kNullBlock);
        ASSERT_EQ(worker.contents_[group][block.value],
                  Worker::content(tokens, extras, (entry + 1) * per_entry(group)));
      }
    }
  }

  // From token `begin` on, as request kA, which holds what is before.
  void finish(Worker& worker,
              std::span<const TokenId> tokens,
              const PrefixExtras& extras,
              int32_t begin) {
    const auto end = static_cast<int32_t>(tokens.size());
    ASSERT_NO_FATAL_FAILURE(check(worker, tokens, extras, begin));
    if (worker.kv_.allocate_slots(kA, end)) {
      for (size_t group = 0; group < groups_.size(); ++group) {
        const auto table = worker.kv_.block_table(kA, static_cast<int32_t>(group));
        for (int32_t entry = begin / per_entry(group); entry < end / per_entry(group); ++entry) {
          write(worker, group, table[static_cast<size_t>(entry)], tokens, extras, entry);
        }
      }
      worker.kv_.cache_blocks(kA, tokens, end);
    }
    worker.kv_.free(kA);
  }

  void compute(Worker& worker, std::span<const TokenId> tokens, const PrefixExtras& extras) {
    const int32_t begin = worker.kv_.acquire_prefix(kA, tokens, extras, PrefixUse::kTransfer);
    finish(worker, tokens, extras, begin);
  }

  void transfer(std::span<const TokenId> tokens, const PrefixExtras& extras) {
    compute(from_, tokens, extras);
    const int32_t num_tokens = to_.kv_.max_transferred(static_cast<int32_t>(tokens.size()));
    const std::span<const TokenId> prefix = tokens.first(static_cast<size_t>(num_tokens));
    const int32_t begin = to_.kv_.acquire_prefix(kA, tokens, extras, PrefixUse::kTransfer);
    std::vector<KvBlockRef> reserved;
    if (begin >= num_tokens || !to_.kv_.reserve(kA, num_tokens, reserved)) {
      return finish(to_, tokens, extras, begin);
    }
    std::vector<int32_t> first_wanted(groups_.size(), 64);
    for (const KvBlockRef& ref : reserved) {
      int32_t& first = first_wanted[static_cast<size_t>(ref.group)];
      first = std::min(first, ref.entry);
    }
    std::vector<KvBlockRef> sent;
    const int32_t num_ready = find(prefix, extras, first_wanted, sent);
    const auto num_pinned = static_cast<size_t>(from_.kv_.pin(sent));
    if (draw(2) == 0) {  // pins may be kept for longer
      from_.kv_.unpin(std::span(sent).first(num_pinned));
    } else {
      pins_.emplace_back(sent.begin(), sent.begin() + static_cast<ptrdiff_t>(num_pinned));
    }
    if (pins_.size() > 3) {
      for (const KvBlockRef& ref : pins_.front()) ASSERT_TRUE(from_.kv_.is_current(ref));
      from_.kv_.unpin(pins_.front());
      pins_.erase(pins_.begin());
    }
    receive(tokens, extras, reserved, sent, num_ready);
  }

  // By tokens or by keys.
  int32_t find(std::span<const TokenId> prefix,
               const PrefixExtras& extras,
               const std::vector<int32_t>& first_wanted,
               std::vector<KvBlockRef>& sent) {
    const int32_t ready = from_.kv_.find_blocks(prefix, extras, first_wanted, sent);
    std::vector<KvKey> keys = keys_of({prefix.begin(), prefix.end()}, extras);
    std::vector<KvBlockRef> by_key;
    const int32_t length =
        from_.kv_.find_blocks(std::span<const KvKey>(keys).last(1), first_wanted, by_key);
    const auto whole = static_cast<int32_t>(keys.size());
    EXPECT_EQ(length, ready == whole ? whole : 0);
    EXPECT_EQ(by_key, ready == whole ? sent : std::vector<KvBlockRef>());
    return ready;
  }

  void receive(std::span<const TokenId> tokens,
               const PrefixExtras& extras,
               const std::vector<KvBlockRef>& reserved,
               const std::vector<KvBlockRef>& sent,
               int32_t num_ready) {
    for (const KvBlockRef& ref : sent) {
      const auto target = std::ranges::find_if(reserved, [&](const KvBlockRef& own) {
        return own.group == ref.group && own.entry == ref.entry;
      });
      ASSERT_NE(target, reserved.end());
      const auto group = static_cast<size_t>(ref.group);
      to_.contents_[group][target->block.value] = from_.contents_[group][ref.block.value];
    }
    const int32_t num_tokens = to_.kv_.max_transferred(static_cast<int32_t>(tokens.size()));
    to_.kv_.publish(kA, tokens, std::min(num_ready * 4, num_tokens));
    if (num_ready * 4 < num_tokens) {  // an ordinary request then
      to_.kv_.free(kA);
      return compute(to_, tokens, extras);
    }
    ++num_moved_;
    finish(to_, tokens, extras, num_tokens);
  }

  std::mt19937_64 random_;
  std::vector<KvGroupSpec> groups_;
  Worker from_;
  Worker to_;
  std::vector<std::vector<KvBlockRef>> pins_;
  int num_moved_ = 0;
};

TEST(KvTransfers, TwoWorkersNeverFindWhatWasNotComputed) {
  for (uint64_t seed = 0; seed < 60 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    TwoWorkers(seed).run();
  }
}

}  // namespace
}  // namespace sluice
