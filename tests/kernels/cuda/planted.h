// SPDX-License-Identifier: Apache-2.0
// Small kernels of the shapes that the product has, each with bugs that can be switched on. The
// shim must catch every one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/core/status.h"

namespace sluice::kernels::test {

// start.operator()<bug>(), the bug a constant of the compiler's; bugs are numbered from 0 to kLast.
template <auto kLast, typename Start>
void with_bug(decltype(kLast) bug, const Start& start) {
  using Bug = decltype(kLast);
  const bool started = [&]<size_t... kBugs>(std::index_sequence<kBugs...>) {
    return ((bug == static_cast<Bug>(kBugs) &&
             (start.template operator()<static_cast<Bug>(kBugs)>(), true)) ||
            ...);
  }(std::make_index_sequence<static_cast<size_t>(kLast) + 1>());
  CHECK(started);  // or outputs that nobody wrote would pass for what the bug does
}

// A row's sum by 16 lanes, and the row scaled with it and turned round, two rows a block one after
// the other: staging, shuffles, a value for all through shared memory.
enum class ReduceBug : uint8_t {
  kNone,
  kNoBarrierAfterStaging,
  kNoBarrierBeforeBroadcast,
  kNoBarrierBeforeReuse,
  kNoSyncwarp,
  kBarrierInBranch,
  kNamedBarrierCount,
  kLaneOutsideItsMask,
  kShuffleAcrossTheMask,
  kExitedLaneInMask,
  kUnmaskedTail,
  kSharedOffByOne,
  kWrongFold,
  kSplitOffByOne,
  kTwoThreadsWriteOneElement,
};

// out[row][i] = x[row][n - 1 - i] * sum(x[row]), x of 4 rows of `n`.
std::vector<float> run_reduce(ReduceBug bug, const std::vector<float>& x, int32_t n);

// A tile of 64 outputs times 8 tokens over K by wgmma, copied by TMA into a ring.
enum class PipelineBug : uint8_t {
  kNone,
  kNoFullWait,
  kNoEmptyWait,
  kWrongParity,
  kExpectTooFew,
  kExpectTooMany,
  kNoBarrierAfterInit,
  kNoFenceAfterInit,
  kNotInitialized,
  kArriveBeforeWgmmaWait,
  kEveryLaneArrives,
  kNoWgmmaFence,
  kReadBeforeWgmmaWait,
  kNoCommit,
  kDescriptorSwizzle,
  kMapSwizzle,
  kAtomStride,
  kRingOneShort,
  kSegmentOffByOne,
  kUnmaskedTokens,
  kCopyNobodyWaitsFor,
};

// out[token][output] of bf16 x [tokens][k] and w [64][k]; out has room for `room` tokens.
std::vector<float> run_pipeline(PipelineBug bug,
                                const std::vector<uint16_t>& x,
                                const std::vector<uint16_t>& w,
                                int32_t tokens,
                                int32_t k,
                                int32_t room);

// The same product for k = 64 with tiles that the threads write themselves.
enum class StoreBug : uint8_t {
  kNone,
  kNoProxyFence,
  kFenceByTheReader,
  kNoBarrier,
  kWrongSwizzle,
  kReuseBeforeWait,
  kPartOfAWarpgroup,
};

std::vector<float> run_stores(StoreBug bug,
                              const std::vector<uint16_t>& x,
                              const std::vector<uint16_t>& w);

// Rows over partitions of paged keys: scores by a thread a key, weights by a warp a row, outputs by
// a thread a d, through one shared buffer; once by a block that walks and once by a block each.
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
  static constexpr int32_t kSlots = 8;  // of a block
  static constexpr int32_t kWindow = 50;
  static constexpr int32_t kPosition = 84;  // of the first row; the other follows
  static constexpr int32_t kBlocks = 12;    // whole partitions: a bug's reads stay inside
};

// q [kRows][kDim]; k and v [kBlocks][kSlots][kDim]; table [kBlocks]. [walking or split][row][d].
std::vector<float> run_attention(AttentionBug bug,
                                 const std::vector<float>& q,
                                 const std::vector<float>& k,
                                 const std::vector<float>& v,
                                 const std::vector<int32_t>& table);

// 16 rows that two warps share over tiles of keys by mma.sync: K, transposed, and V come by cp.async
// through one ring; a warp has half of a tile's keys, then half of d.
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
  static constexpr int kPosition = 130;  // of the first row; the others follow
};

// out[row][d] of bf16 q [kRows][kDim], k [kDim][kKeys] and v [kKeys][kDim], 16-byte aligned.
std::vector<float> run_tiles(TilesBug bug, const uint16_t* q, const uint16_t* k, const uint16_t* v);

// The fullest bin of 4 bits of a value, and of what has it the fullest of the next, by atomics.
enum class HistogramBug : uint8_t {
  kNone,
  kNoBarrierAfterClear,
  kPlainAdd,
  kNoPrefix,
  kNoBarrierBeforeRead,
  kNoBarrierBeforeFound,
};

struct HistogramShape {
  static constexpr int kThreads = 64;
  static constexpr int kBins = 16;
  static constexpr int kValues = 200;
};

// Of values below 2^12: the digits found, as one number.
float run_histogram(HistogramBug bug, const std::vector<uint32_t>& values);

// A layer whose K is shared out over ranks: the fold of a rank's two of 8 segments, of chains of fma,
// and the join of what four ranks give.
enum class PartsBug : uint8_t {
  kNone,
  kShareOneGroupLate,
  kEqualSegments,
  kNoFold,
  kUnmaskedOutputs,
  kPartOfTheNeighbour,
  kWrongOrder,
  kJoinedInAChain,
  kOneTwice,
};

struct PartsShape {
  static constexpr int kThreads = 64;
  static constexpr int kRanks = 4;
  static constexpr int kRows = 3;
  static constexpr int kOutputs = 40;
  static constexpr int kK = 840;  // 27 groups of 32: segments of 3 and of 4, the last not full
};

// out[row][output] of x [kRows][kK] and w [kOutputs][kK].
std::vector<float> run_parts(PartsBug bug, const std::vector<float>& x, const std::vector<float>& w);

// A tile of outputs times tokens over K by mma.sync, copied by cp.async into a ring.
enum class CopiesBug : uint8_t {
  kNone,
  kNoWait,
  kWaitTooWeak,
  kNoBarrier,
  kNoCommit,
  kNoEmptyGroups,
  kReuseBeforeBarrier,
  kReadWithoutSwizzle,
  kRowNotAligned,
  kNoZeroFill,
  kHalvesSwapped,
  kPartOfAWarp,
};

struct CopiesShape {
  static constexpr int kThreads = 64;
  static constexpr int kOutputs = 32;
  static constexpr int kTokens = 8;
  static constexpr int kK = 426;  // the last chunk is not full, nor its last 16 bytes
  static constexpr int kChunks = 7;
  static constexpr int kStride = 448;  // of both matrices, elements
};

// out[token][output] of bf16 x [kTokens][kStride] and w [kOutputs][kStride], 16-byte aligned.
std::vector<float> run_copies(CopiesBug bug, const uint16_t* x, const uint16_t* w);

}  // namespace sluice::kernels::test
