// SPDX-License-Identifier: Apache-2.0
#include "kvcache/kv_heads.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kvcache/kv_storage.h"

namespace sluice {
namespace {

constexpr int32_t kBlockSize = 8;
constexpr int32_t kLayers = 3;
constexpr int32_t kHeadDim = 20;  // cached as 32
constexpr int32_t kBlocks = 4;

using Sources = std::vector<KvHeadSource>;

TEST(KvHeads, AreSharedOutEvenlyOrReplicated) {
  EXPECT_EQ(shared_heads(8, 4), (std::vector<KvRange>{{0, 2}, {2, 2}, {4, 2}, {6, 2}}));
  EXPECT_EQ(shared_heads(2, 4), (std::vector<KvRange>{{0, 1}, {0, 1}, {1, 1}, {1, 1}}));
  EXPECT_EQ(shared_heads(6, 4), std::nullopt);
  EXPECT_EQ(shared_heads(0, 1), std::nullopt);
  EXPECT_EQ(shared_heads(4, 0), std::nullopt);
}

TEST(KvHeads, EachHeadComesOnceAndFromTheLowestRankThatHasIt) {
  const std::vector<KvRange> replicated = {{0, 1}, {0, 1}, {1, 1}, {1, 1}};
  EXPECT_EQ(head_sources({0, 2}, replicated), (Sources{{0, {0, 1}}, {2, {1, 1}}}));
  const std::vector<KvRange> overlapping = {{4, 4}, {0, 6}, {0, 8}};
  EXPECT_EQ(head_sources({1, 7}, overlapping), (Sources{{1, {1, 3}}, {0, {4, 4}}}));
  EXPECT_EQ(head_sources({3, 0}, overlapping), Sources{});
  EXPECT_EQ(head_sources({6, 3}, overlapping), std::nullopt);  // nobody has head 8
  EXPECT_EQ(head_sources({0, 1}, {}), std::nullopt);
}

// A worker's ranks, each with its heads of the same model.
class Worker {
 public:
  Worker(int32_t num_heads, int32_t degree, DType dtype)
      : ranks_(*shared_heads(num_heads, degree)) {
    for (const KvRange& own : ranks_) {
      const KvPlane plane = {.num_heads = own.count, .width = kHeadDim, .dtype = dtype};
      storages_.push_back(*KvStorage::create(
          {{.num_blocks = kBlocks, .num_layers = kLayers, .planes = {plane, plane}}}, kBlockSize));
    }
  }

  [[nodiscard]] std::span<const KvRange> ranks() const { return ranks_; }

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
            .heads = heads_in(ranks_[rank], {head, 1})};
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

// Each rank of `to` takes its heads from the ranks of `from` as bytes on a wire.
void transfer(Worker& from, BlockId source, Worker& to, BlockId target) {
  for (size_t rank = 0; rank < to.ranks().size(); ++rank) {
    const KvRange own = to.ranks()[rank];
    const auto sources = head_sources(own, from.ranks());
    ASSERT_TRUE(sources.has_value());
    for (const KvHeadSource& part : *sources) {
      KvStorage& sender = from.storage(static_cast<size_t>(part.rank));
      const KvRange theirs = from.ranks()[static_cast<size_t>(part.rank)];
      std::vector<std::span<const std::byte>> spans;
      sender.add_spans({0, source, {0, kLayers}, heads_in(theirs, part.heads)}, spans);
      EXPECT_EQ(spans.size(), 2U * kLayers);
      std::vector<std::byte> wire;
      for (const auto span : spans) wire.insert(wire.end(), span.begin(), span.end());
      const KvPiece piece = {0, target, {0, kLayers}, heads_in(own, part.heads)};
      ASSERT_EQ(to.storage(rank).piece_bytes(piece), static_cast<int64_t>(wire.size()));
      to.storage(rank).copy_in(piece, wire);
    }
  }
}

TEST(KvHeads, EveryPairOfDegreesGivesTheSameBytes) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8E4M3}) {
    for (const int32_t num_heads : {1, 2, 4, 8, 16}) {
      for (const int32_t sender : {1, 2, 4, 8}) {
        for (const int32_t receiver : {1, 2, 4, 8}) {
          SCOPED_TRACE(std::to_string(num_heads) + " heads of " + std::string(to_string(dtype)) +
                       ", " + std::to_string(sender) + " to " + std::to_string(receiver));
          Worker from(num_heads, sender, dtype);
          Worker to(num_heads, receiver, dtype);
          from.fill(BlockId{3});
          transfer(from, BlockId{3}, to, BlockId{1});
          to.expect_filled(BlockId{1});
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(KvHeads, OnlyPiecesThatThereAreAreTaken) {
  Worker worker(4, 2, DType::kI8);
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
