// SPDX-License-Identifier: Apache-2.0
#include "kvcache/store/kv_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/kv_heads.h"
#include "kvcache/store/kv_storage.h"

namespace sluice {
namespace {

constexpr int32_t kBlockSize = 8;
constexpr int32_t kLayers = 3;
constexpr int32_t kHeadDim = 20;  // cached as 32
constexpr int32_t kBlocks = 4;

using Sources = std::vector<KvHeadSource>;

// An equal run of the heads for each rank, or, of fewer heads than ranks, one that several have.
std::vector<KvRange> shared_heads(int32_t num_heads, int32_t degree) {
  std::vector<KvRange> ranks;
  for (int32_t rank = 0; rank < degree; ++rank) {
    ranks.push_back({.first = rank * num_heads / degree, .count = std::max(1, num_heads / degree)});
  }
  return ranks;
}

TEST(KvHeads, EachHeadComesOnceAndFromTheLowestRankThatHasIt) {
  using Ranks = std::vector<std::vector<KvRange>>;
  const Ranks replicated = {{{0, 1}}, {{0, 1}}, {{1, 1}}, {{1, 1}}};
  EXPECT_EQ(head_sources(2, replicated), (Sources{{0, 0, {0, 1}}, {2, 0, {1, 1}}}));
  const Ranks overlapping = {{{4, 4}}, {{0, 6}}, {{0, 8}}};
  EXPECT_EQ(head_sources(8, overlapping), (Sources{{1, 0, {0, 4}}, {0, 0, {4, 4}}}));
  EXPECT_EQ(head_sources(0, overlapping), Sources{});
  EXPECT_EQ(head_sources(9, overlapping), std::nullopt);  // no rank has head 8
  EXPECT_EQ(head_sources(1, {}), std::nullopt);
  // Ranges of one plane, such as the channels of q, k and v that a rank convolves.
  const Ranks in_parts = {{{0, 1}, {2, 1}, {4, 2}}, {{1, 1}, {3, 1}, {6, 2}}};
  EXPECT_EQ(head_sources(8, in_parts),
            (Sources{{0, 0, {0, 1}},
                     {1, 0, {1, 1}},
                     {0, 1, {2, 1}},
                     {1, 1, {3, 1}},
                     {0, 2, {4, 2}},
                     {1, 2, {6, 2}}}));
}

// A worker's ranks, each with its heads of the same model.
class Worker {
 public:
  Worker(std::vector<KvRange> ranks, DType dtype) : ranks_(std::move(ranks)) {
    for (const KvRange& own : ranks_) {
      const KvPlane plane = {.num_heads = own.count, .width = kHeadDim, .dtype = dtype};
      storages_.push_back(*KvStorage::create(
          {{.num_blocks = kBlocks, .num_layers = kLayers, .planes = {plane, plane}}}, kBlockSize));
    }
  }

  // The cache that other workers see.
  KvRanks whole() {
    if (ranks_.size() == 1) return KvRanks(storages_.front());
    std::vector<KvRanks::Rank> all;
    int32_t num_heads = 0;
    for (const KvRange& own : ranks_) num_heads = std::max(num_heads, own.end());
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const KvPlaneShare share = {.heads = {ranks_[rank]}, .whole = num_heads};
      all.push_back({.storage = &storages_[rank], .shares = {{share, share}}});
    }
    return KvRanks(std::move(all));
  }

  KvStorage& storage(size_t rank) { return storages_[rank]; }

  // Codes and scales that say whose they are.
  void fill(BlockId block) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        for (int32_t head = ranks_[rank].first; head < ranks_[rank].end(); ++head) {
          std::vector<std::byte> bytes = expected(rank, layer, head);
          storages_[rank].copy_in(piece(rank, block, layer, head), bytes);
        }
      }
    }
  }

  void expect_filled(BlockId block) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        for (int32_t head = ranks_[rank].first; head < ranks_[rank].end(); ++head) {
          const std::vector<std::byte> wanted = expected(rank, layer, head);
          std::vector<std::byte> got(wanted.size());
          storages_[rank].copy_out(piece(rank, block, layer, head), got);
          EXPECT_EQ(got, wanted) << "rank " << rank << " layer " << layer << " head " << head;
        }
      }
    }
  }

 private:
  [[nodiscard]] KvPiece piece(size_t rank, BlockId block, int32_t layer, int32_t head) const {
    return {.group = 0,
            .block = block,
            .layers = {layer, 1},
            .heads = {head - ranks_[rank].first, 1}};
  }

  // K and V of one head of one layer.
  [[nodiscard]] std::vector<std::byte> expected(size_t rank, int32_t layer, int32_t head) const {
    const KvPiece one = piece(rank, BlockId{0}, layer, head);
    std::vector<std::byte> bytes(static_cast<size_t>(storages_[rank].piece_bytes(one)));
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto of_head = static_cast<size_t>(layer * 37 + head * 11);
      bytes[i] = static_cast<std::byte>((of_head + i * 7) % 251);
    }
    return bytes;
  }

  std::vector<KvRange> ranks_;
  std::vector<KvStorage> storages_;
};

std::vector<std::byte> bytes_of(const KvRanks& whole, BlockId block) {
  std::vector<std::span<const std::byte>> spans;
  whole.add_spans(0, block, spans);
  std::vector<std::byte> bytes;
  for (const auto span : spans) bytes.insert(bytes.end(), span.begin(), span.end());
  return bytes;
}

// Each head is sent by one rank, and arrives in every rank that has it.
void expect_same_blocks(const std::vector<std::vector<KvRange>>& workers, DType dtype) {
  for (const std::vector<KvRange>& sender : workers) {
    for (const std::vector<KvRange>& receiver : workers) {
      SCOPED_TRACE(std::string(to_string(dtype)) + ", " + std::to_string(sender.size()) + " to " +
                   std::to_string(receiver.size()));
      Worker one({{0, sender.back().end()}}, dtype);
      Worker from(sender, dtype);
      Worker to(receiver, dtype);
      one.fill(BlockId{3});
      from.fill(BlockId{3});
      const std::vector<std::byte> wire = bytes_of(from.whole(), BlockId{3});
      EXPECT_EQ(wire, bytes_of(one.whole(), BlockId{3}));
      ASSERT_EQ(static_cast<int64_t>(wire.size()), to.whole().block_bytes(0));
      to.whole().copy_in(0, BlockId{1}, wire);
      to.expect_filled(BlockId{1});
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(KvRanks, EveryPairOfDegreesGivesTheSameBytes) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8E4M3}) {
    for (const int32_t num_heads : {1, 2, 4, 8, 16}) {
      std::vector<std::vector<KvRange>> workers;
      for (const int32_t degree : {1, 2, 4, 8}) workers.push_back(shared_heads(num_heads, degree));
      expect_same_blocks(workers, dtype);
    }
  }
}

TEST(KvRanks, UnequalAndOverlappingSharesGiveTheSameBytes) {
  expect_same_blocks({{{0, 7}}, {{0, 2}, {2, 5}}, {{0, 1}, {1, 3}, {4, 3}}, {{0, 4}, {2, 5}}},
                     DType::kI8);
}

// Two heads that ranks have apart, and one that both have.
TEST(KvRanks, GroupsAreDividedEachOnItsOwn) {
  const auto group = [](int32_t heads, int32_t width) {
    const KvPlane plane = {.num_heads = heads, .width = width, .dtype = DType::kF32};
    return KvGroupSpec{.num_blocks = kBlocks, .num_layers = kLayers, .planes = {plane, plane}};
  };
  KvStorage one = *KvStorage::create({group(2, 16), group(1, 24)}, kBlockSize);
  std::vector<KvStorage> two;
  for (int i = 0; i < 2; ++i) {
    two.push_back(*KvStorage::create({group(1, 16), group(1, 24)}, kBlockSize));
  }
  const auto twice = [](const KvPlaneShare& share) {
    return std::vector<KvPlaneShare>{share, share};
  };
  const std::vector<KvPlaneShare> both = twice({.heads = {{0, 1}}, .whole = 1});
  const KvRanks ranks(
      {{.storage = &two[0], .shares = {twice({.heads = {{0, 1}}, .whole = 2}), both}},
       {.storage = &two[1], .shares = {twice({.heads = {{1, 1}}, .whole = 2}), both}}});
  for (const int32_t g : {0, 1}) {
    ASSERT_EQ(ranks.block_bytes(g), one.block_bytes(g));
    const auto at = static_cast<size_t>(g);
    EXPECT_EQ(ranks.groups()[at].planes, one.groups()[at].planes);
    std::vector<std::byte> sent(static_cast<size_t>(ranks.block_bytes(g)));
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 % 251);
    ranks.copy_in(g, BlockId{2}, sent);
    std::vector<std::span<const std::byte>> spans;
    ranks.add_spans(g, BlockId{2}, spans);
    std::vector<std::byte> got;
    for (const auto span : spans) got.insert(got.end(), span.begin(), span.end());
    EXPECT_EQ(got, sent) << g;
  }
  // The replicated head is whole on the other rank, too.
  std::vector<std::byte> first(static_cast<size_t>(two[0].block_bytes(1)));
  std::vector<std::byte> second = first;
  two[0].copy_out(two[0].whole(1, BlockId{2}), first);
  two[1].copy_out(two[1].whole(1, BlockId{2}), second);
  EXPECT_EQ(first, second);
}

// A state: the channels of a convolution, in two parts of which each rank has a range, the heads of
// a recurrence, and rows that mean something to a running request alone.
TEST(KvRanks, PlanesOfStatesAreDividedInParts) {
  const auto group = [](int32_t channels, int32_t heads) {
    const auto plane = [](int32_t count, int32_t width) {
      return KvPlane{.num_heads = count,
                     .width = width,
                     .dtype = DType::kF32,
                     .per = KvPlane::Per::kEntry};
    };
    KvPlane own_rows = plane(5, 16);
    own_rows.is_copied = false;
    return KvGroupSpec{.kind = KvGroupKind::kState,
                       .num_blocks = kBlocks,
                       .num_layers = kLayers,
                       .planes = {plane(channels, 48), plane(heads, 64), own_rows}};
  };
  KvStorage one = *KvStorage::create({group(6, 4)}, kBlockSize);
  ASSERT_EQ(one.block_bytes(0), int64_t{kLayers} * (6 * 48 + 4 * 64) * 4);
  std::vector<KvStorage> two;
  for (int i = 0; i < 2; ++i) two.push_back(*KvStorage::create({group(3, 2)}, kBlockSize));
  // Channels 0 and 1 are of one part, the others of the second.
  const KvRanks ranks(
      {{.storage = &two[0],
        .shares = {{{.heads = {{0, 1}, {2, 2}}, .whole = 6}, {.heads = {{0, 2}}, .whole = 4}}}},
       {.storage = &two[1],
        .shares = {{{.heads = {{1, 1}, {4, 2}}, .whole = 6}, {.heads = {{2, 2}}, .whole = 4}}}}});
  ASSERT_EQ(ranks.block_bytes(0), one.block_bytes(0));
  EXPECT_EQ(ranks.groups()[0].planes, KvRanks(one).groups()[0].planes);
  std::vector<std::byte> sent(static_cast<size_t>(one.block_bytes(0)));
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 % 251);
  ranks.copy_in(0, BlockId{2}, sent);
  EXPECT_EQ(bytes_of(ranks, BlockId{2}), sent);
  // The second rank's channels follow each other: 1, 4 and 5.
  std::vector<std::byte> second(static_cast<size_t>(two[1].block_bytes(0)));
  two[1].copy_out(two[1].whole(0, BlockId{2}), second);
  constexpr size_t kChannel = 48 * sizeof(float);
  const auto channel = [&](const std::vector<std::byte>& from, size_t i) {
    return std::vector<std::byte>(from.begin() + static_cast<ptrdiff_t>(i * kChannel),
                                  from.begin() + static_cast<ptrdiff_t>((i + 1) * kChannel));
  };
  EXPECT_EQ(channel(second, 0), channel(sent, 1));
  EXPECT_EQ(channel(second, 1), channel(sent, 4));
  EXPECT_EQ(channel(second, 2), channel(sent, 5));
}

TEST(KvRanks, HaveTheShapeOfTheWholeModel) {
  Worker one({{0, 4}}, DType::kBF16);
  Worker four(shared_heads(2, 4), DType::kBF16);
  EXPECT_EQ(one.whole().groups()[0].planes[0].num_heads, 4);
  EXPECT_EQ(one.whole().max_heads_of_rank(), 4);
  EXPECT_EQ(four.whole().groups()[0].planes[1].num_heads, 2);
  EXPECT_EQ(four.whole().max_heads_of_rank(), 1);
  EXPECT_EQ(four.whole().size(), 4);
  EXPECT_EQ(four.whole().block_bytes(0), 2 * four.storage(0).block_bytes(0));
}

TEST(KvHeads, OnlyPiecesThatThereAreAreTaken) {
  Worker worker(shared_heads(4, 2), DType::kI8);
  const KvStorage& storage = worker.storage(0);
  EXPECT_TRUE(storage.has(storage.whole(0, BlockId{0})));
  EXPECT_TRUE(storage.has({0, BlockId{3}, {1, 2}, {1, 1}}));
  EXPECT_FALSE(storage.has({0, BlockId{4}, {0, 1}, {0, 1}}));
  EXPECT_FALSE(storage.has({0, kNullBlock, {0, 1}, {0, 1}}));
  EXPECT_FALSE(storage.has({1, BlockId{0}, {0, 1}, {0, 1}}));
  EXPECT_FALSE(storage.has({-1, BlockId{0}, {0, 1}, {0, 1}}));
  EXPECT_FALSE(storage.has({0, BlockId{0}, {2, 2}, {0, 1}}));
  EXPECT_FALSE(storage.has({0, BlockId{0}, {0, 0}, {0, 1}}));
  EXPECT_FALSE(storage.has({0, BlockId{0}, {0, 1}, {1, 2}}));
  EXPECT_FALSE(storage.has({0, BlockId{0}, {-1, 1}, {0, 1}}));
  // Parts of the heads of planes that have different ones mean nothing.
  const auto mixed = KvStorage::create({{.num_blocks = 1,
                                         .num_layers = 1,
                                         .planes = {{.num_heads = 2, .width = 16}, {.width = 16}}}},
                                       kBlockSize);
  EXPECT_TRUE(mixed->has(mixed->whole(0, BlockId{0})));
  EXPECT_FALSE(mixed->has({0, BlockId{0}, {0, 1}, {0, 1}}));
  EXPECT_EQ(mixed->piece_bytes(mixed->whole(0, BlockId{0})), mixed->block_bytes(0));
}

}  // namespace
}  // namespace sluice
