// SPDX-License-Identifier: Apache-2.0
// Small attention kernels, each with bugs that can be switched on.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {

// Rows over partitions of paged keys: a thread has a key's score, a warp a row's weights, a thread
// the outputs of a d, through one shared buffer; once by one walking block, once by a block each.
enum class AttentionBug : uint8_t {
  kNone,
  kNoBarrierAfterScores,
  kNoBarrierAfterWeights,
  kNoBarrierBeforeReuse,
  kPartitionOverlaps,
  kUnmaskedTail,
  kWindowOneEarly,
  kBlockOfTheFirstKey,
  kNoRescale,
  kMergeBackwards,
  kPartialOfTheNeighbour,
  kMergeOneShort,
};

struct AttentionShape {
  static constexpr int32_t kRows = 2;
  static constexpr int32_t kDim = 8;
  static constexpr int32_t kPartition = 32;
  static constexpr int32_t kSlots = 8;  // keys of a block
  static constexpr int32_t kWindow = 50;
  static constexpr int32_t kPosition = 84;  // the first row's; the other follows
  static constexpr int32_t kBlocks = 12;    // whole partitions: a bug's reads stay inside
};

// Takes q [kRows][kDim], k, v [kBlocks][kSlots][kDim], table [kBlocks]; [walking or split][row][d].
std::vector<float> run_attention(AttentionBug bug,
                                 const std::vector<float>& q,
                                 const std::vector<float>& k,
                                 const std::vector<float>& v,
                                 const std::vector<int32_t>& table);

// 16 rows that two warps share over tiles of keys by mma.sync. K, transposed, and V come by
// cp.async through one ring; a warp has half of a tile's keys, then half of d.
enum class TilesBug : uint8_t {
  kNone,
  kNoWait,
  kWaitTooWeak,
  kNoBarrierAfterWait,
  kCopyBeforeBarrier,
  kStaleSlot,
  kReadWithoutSwizzle,
  kNotTransposed,
  kPartitionOneLate,
  kUnmaskedTail,
  kNoZeroFill,
  kNoBarrierAfterTops,
  kWeightsAfterBarrier,
  kNoRescale,
  kSumOfOneWarp,
};

struct TilesShape {
  static constexpr int kThreads = 64;
  static constexpr int kRows = 16;
  static constexpr int kDim = 32;
  static constexpr int kTile = 32;
  static constexpr int kTiles = 5;  // 10 copies go round 3 slots three times
  static constexpr int kPartitionTiles = 2;
  static constexpr int kKeys = kTile * kTiles;
  static constexpr int kPosition = 130;  // the first row's; the others follow
};

// out[row][d] of bf16 q [kRows][kDim], k [kDim][kKeys] and v [kKeys][kDim], 16-byte aligned.
std::vector<float> run_tiles(TilesBug bug, const uint16_t* q, const uint16_t* k, const uint16_t* v);

// 64 rows of a warpgroup over tiles of paged keys by wgmma, with rows and weights in registers. K,
// transposed, and V come by TMA, block by block, through rings of two stages, and a tile's products
// with K run beside those of the tile before with V.
enum class PromptBug : uint8_t {
  kNone,
  kNoFullWait,
  kWrongParity,
  kExpectOneBlockLess,
  kReleaseBeforeWait,
  kReleaseOnce,
  kScoresBeforeWait,
  kPackBeforeWait,
  kNoWgmmaFence,
  kNoProxyFence,
  kNoBarrierAfterClear,
  kUnclearedTail,
  kUnmaskedTail,
  kKeySwizzle,
  kMapSwizzle,
  kBlocksOverlap,
  kStepsOfEightKeys,
  kBlockOfTheFirstKey,
  kNoRescale,
};

struct PromptShape {
  static constexpr int kRows = 64;
  static constexpr int kDim = 64;
  static constexpr int kTile = 64;
  static constexpr int kSlots = 16;  // keys of a block
  static constexpr int kTiles = 5;   // tiles, which go round 2 stages twice
  static constexpr int kBlocks = kTile * kTiles / kSlots;
  // The first row's position; the others follow. The last block but one is cut, and no row sees the
  // last one.
  static constexpr int kPosition = 233;
};

// out[row][d] of bf16 q [kRows][kDim], k [kBlocks][kDim][kSlots] and v [kBlocks][kSlots][kDim],
// 16-byte aligned; table [kBlocks].
std::vector<float> run_prompt(PromptBug bug,
                              const uint16_t* q,
                              const uint16_t* k,
                              const uint16_t* v,
                              const std::vector<int32_t>& table);

// Rows over partitions of paged codes as a list of items that blocks share out. A warp copies tiles
// by TMA into a ring with a stage for each tile of a partition, and V into one of two stages. A
// warp has the scores of one tile, then its d of all tiles. A merge joins what borders between
// shares cut.
enum class ListBug : uint8_t {
  kNone,
  kShareOneLate,
  kEntryOfTheNeighbour,
  kNoSyncAfterTable,
  kNoSyncBeforeTable,
  kScalesOfTheNeighbour,
  kStageTooFew,
  kCountsWholePartitions,
  kReleaseBeforeScores,
  kIdleWarpDoesNotRelease,
  kOneOfTops,
  kNoBarrierAfterTops,
  kNoBarrierAfterWeights,
  kPartialLeftOut,
  kJoinedInTheFirstSlot,
  kMergeLeavesEarly,
  kMergeWritesEarly,
  kMergedTwice,
};

struct ListShape {
  static constexpr int kRequests = 3;
  static constexpr int kShares = 4;
  static constexpr int kRows = 2;  // rows of a request
  static constexpr int kDim = 16;
  static constexpr int kWidth = 12;  // d that count
  static constexpr int kTile = 32;
  static constexpr int kPartition = 128;
  static constexpr int kSlots = 16;  // keys of a block
  // The lengths make 10 partitions: shares have 3, 3, 2 and 2 of them, and cut the first request
  // once and the last one twice.
  static constexpr int kLengths[kRequests] = {400, 60, 600};
  static constexpr int kTableStride = 40;
  static constexpr int kBlocks = 25 + 4 + 38;
};

struct ListInputs {
  const int8_t* k;      // [kBlocks][kDim][kSlots]; k, v, scales: 16-byte aligned
  const int8_t* v;      // [kBlocks][kSlots][kDim]
  const float* scales;  // K's: [kBlocks][kSlots]
  std::vector<float> q;  // [kRequests][kRows][kDim]
  std::vector<int32_t> lengths;
  std::vector<int32_t> table;  // [kRequests][kTableStride]
};

// Returns out[request][row][d].
std::vector<float> run_list(ListBug bug, const ListInputs& in);

}  // namespace sluice::kernels::test
