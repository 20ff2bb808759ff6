// SPDX-License-Identifier: Apache-2.0
// Small kernels of the product's shapes, each with bugs that can be switched on. The shim must
// catch every one of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/core/status.h"

namespace sluice::kernels::test {

// Calls start.operator()<bug>() with the bug as a constant; bugs are numbered from 0 to kLast.
template <auto kLast, typename Start>
void with_bug(decltype(kLast) bug, const Start& start) {
  using Bug = decltype(kLast);
  const bool started = [&]<size_t... kBugs>(std::index_sequence<kBugs...>) {
    return ((bug == static_cast<Bug>(kBugs) &&
             (start.template operator()<static_cast<Bug>(kBugs)>(), true)) ||
            ...);
  }(std::make_index_sequence<static_cast<size_t>(kLast) + 1>());
  CHECK(started);  // outputs that no kernel wrote would pass for the bug's
}

// Sums a row by 16 lanes, and scales and reverses the row with the sum, two rows a block one after
// the other: staging, shuffles, a value for all threads through shared memory.
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

// Returns out[token][output] of bf16 x [tokens][k], w [64][k]; out has room for `room` tokens.
std::vector<float> run_pipeline(PipelineBug bug,
                                const std::vector<uint16_t>& x,
                                const std::vector<uint16_t>& w,
                                int32_t tokens,
                                int32_t k,
                                int32_t room);

// PipelineBug's product of two tiles of tokens, by a cluster of two blocks: each copies half of the
// outputs' weights to both.
enum class PairsBug : uint8_t {
  kNone,
  kNoFenceAfterInit,
  kBlockBarrierAfterInit,
  kNoWaitAfterInit,
  kEmptyOfOneBlock,
  kEmptyCountsOneBlock,
  kNoArrivalAtThePeer,
  kArrivalsAtOneBlock,
  kArriveBeforeTheProducts,
  kWaitOfTheBlock,
  kMaskOfItself,
  kMaskOfThePeer,
  kMaskOfThree,
  kHalfToTheSamePlace,
  kHalfFromTheSamePlace,
  kExpectOneHalf,
  kTokensForBoth,
  kNoBarrierBeforeTheEnd,
};

struct PairsShape {
  static constexpr int kOutputs = 64;
  static constexpr int kTile = 8;
  static constexpr int kTokens = 13;
  static constexpr int kK = 440;  // 7 chunks go round 3 stages twice; the last is not full
  static constexpr int kChunks = 7;
};

// Returns out[token][output] of bf16 x [kTokens][kK], w [kOutputs][kK]; out holds two whole tiles.
std::vector<float> run_pairs(PairsBug bug,
                             const std::vector<uint16_t>& x,
                             const std::vector<uint16_t>& w);

// PipelineBug's product for k = 64 with tiles that the threads write themselves.
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

// Finds the fullest bin of 4 bits of a value, then that of its values' next 4 bits, by atomics.
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

// Returns the digits found, as one number; values must be below 2^12.
float run_histogram(HistogramBug bug, const std::vector<uint32_t>& values);

// A layer whose K is shared out over ranks: the fold of a rank's two of 8 segments, chains of fma,
// and the join of four ranks' values.
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

// Returns out[row][output] of x [kRows][kK] and w [kOutputs][kK].
std::vector<float> run_parts(PartsBug bug,
                             const std::vector<float>& x,
                             const std::vector<float>& w);

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
  static constexpr int kStride = 448;  // elements in both matrices
};

// out[token][output] of bf16 x [kTokens][kStride] and w [kOutputs][kStride], 16-byte aligned.
std::vector<float> run_copies(CopiesBug bug, const uint16_t* x, const uint16_t* w);

// Rows of pairs of a token and an expert, sorted by expert as in kernels/cuda/moe.cu, and the join
// of the experts' outputs: counts by warp, a scan by one warp, ranks by match.
enum class PlaceBug : uint8_t {
  kNone,
  kNotCleared,
  kNoSyncAfterClear,
  kPlainAdd,
  kShareOneShort,
  kUnmaskedTail,
  kNoBarrierAfterCounts,
  kNotTheLastExpert,
  kNoBarrierBeforeBegin,
  kExpertsOfOneRound,
  kRowsNotAligned,
  kEmptyChosen,
  kChosenNotReset,
  kNoBarrierAfterBegin,
  kRankWithItself,
  kNoSyncBeforeAdvance,
  kEveryLaneAdvances,
  kNoSyncAfterAdvance,
  kJoinOneShort,
  kJoinTail,
  kJoinBackwards,
  kJoinByPair,
};

struct PlaceShape {
  static constexpr int kThreads = 64;
  static constexpr int32_t kExperts = 40;  // experts; more than a warp's lanes
  static constexpr int32_t kTokens = 25;
  static constexpr int32_t kTopK = 3;
  static constexpr int32_t kPairs = kTokens * kTopK;  // pairs; no whole rounds of a warp's lanes
  static constexpr int32_t kAlign = 8;                // an expert's first row is a multiple of it
  static constexpr int32_t kRoom = kPairs + kExperts * (kAlign - 1);
  static constexpr int32_t kWidth = 70;  // columns; more than threads
};

struct Placed {
  std::array<int32_t, PlaceShape::kPairs> rows;
  std::array<int32_t, PlaceShape::kExperts> first;
  std::array<int32_t, PlaceShape::kExperts> count;
  std::array<int32_t, PlaceShape::kExperts> chosen;
  int32_t num_chosen;
  std::array<float, PlaceShape::kTokens * PlaceShape::kWidth + 1> joined;

  bool operator==(const Placed&) const = default;
};

// Takes ids and weights [kTokens][kTopK], y [kRoom][kWidth]; launches twice in a row.
void run_place(
    PlaceBug bug, const int32_t* ids, const float* y, const float* weights, Placed& placed);

// Weights of 4 bits in groups of 32 with a scale and a minimum each, times int8 tokens, as in
// kernels/cuda/gemm_blocks.cu: a warp has a segment of K, a block an expert's rows.
enum class BlocksBug : uint8_t {
  kNone,
  kNoBarrierBeforeFold,
  kNoBarrierBeforeReuse,
  kSegmentOneShort,
  kSegmentOverlaps,
  kSegmentsShareAPlace,
  kFoldInOrder,
  kHighCodesFirst,
  kChunkOfTheNeighbour,
  kSumsTransposed,
  kScaleOfTheFirstHalf,
  kTokenScaleOfTheLane,
  kScaleOfTheSegment,
  kNoMinimum,
  kUnmaskedTokens,
  kUnmaskedOutputs,
  kOneTileOnly,
  kExpertOfTheBlock,
  kOneExpertMore,
  kBiasOfTheFirstExpert,
  kPartOfAWarp,
};

struct BlocksShape {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int32_t kGroups = 10;  // segments of 2 and of 3
  static constexpr int32_t kTile = 16;    // outputs
  static constexpr int32_t kOutputs = 13;
  static constexpr int32_t kTokens = 8;  // tokens of a group, whose activations lie together
  static constexpr int32_t kExperts = 3;
  static constexpr std::array<int32_t, kExperts> kFirst = {0, 16, 16};  // rows
  static constexpr std::array<int32_t, kExperts> kCount = {11, 0, 3};
  static constexpr int32_t kRows = 24;
};

struct BlocksInput {
  using Shape = BlocksShape;

  // codes[expert][group][register][output]: byte b of register r has k = 4 r + b in its low 4 bits
  // and k = 16 + 4 r + b in its high ones.
  uint32_t codes[Shape::kExperts][Shape::kGroups][4][Shape::kTile];
  float scale[Shape::kExperts][Shape::kGroups][Shape::kTile];
  float minimum[Shape::kExperts][Shape::kGroups][Shape::kTile];
  float bias[Shape::kExperts][Shape::kTile];
  int8_t x[Shape::kRows / Shape::kTokens][Shape::kGroups][Shape::kTokens][32];
  float x_scale[Shape::kRows / Shape::kTokens][Shape::kGroups][Shape::kTokens];
  float x_sum[Shape::kRows / Shape::kTokens][Shape::kGroups][Shape::kTokens];  // times the scale
  int32_t chosen[Shape::kExperts];
  int32_t num_chosen;
};

// Returns out[row][kTile]; outputs that are never written are -1.
std::vector<float> run_blocks(BlocksBug bug, const BlocksInput& input);

// Logits by chains of fma, a thread for each segment of K of an output
// (kernels/cuda/gemm_float.cu), and a row's choice of experts by them, a warp a row.
enum class RouterBug : uint8_t {
  kNone,
  kNoBarrierBeforeFold,
  kNoBarrierBeforeReuse,
  kSegmentOneShort,
  kSegmentOverlaps,
  kUnmaskedColumns,
  kFoldInOrder,
  kTwoChains,
  kUnmaskedTokens,
  kUnmaskedOutputs,
  kSumsOfOneToken,
  kHigherIdFirst,
  kTakenNotKept,
  kExpertsOfOneRound,
  kOneChosenLess,
  kIdsByRank,
  kTopNotTakenOff,
  kNoSyncBeforeSum,
  kSumNotShared,
};

struct RouterShape {
  static constexpr int kThreads = 64;
  static constexpr int32_t kSegments = 4;
  static constexpr int32_t kTile = kThreads / kSegments;  // experts a block
  static constexpr int32_t kTokensOfTile = 3;
  static constexpr int32_t kTokens = 5;
  static constexpr int32_t kExperts = 40;
  static constexpr int32_t kTopK = 5;
  static constexpr int32_t kK = 75;
  static constexpr int32_t kStride = 96;  // elements in both matrices; past kK x has zeros, w NaN
};

// Takes x [kTokens][kStride], w [kExperts][kStride]. Returns the logits, with one token more than
// there are, then each row's ids and weights, all as floats; never written ones are -1.
std::vector<float> run_router(RouterBug bug,
                              const std::vector<float>& x,
                              const std::vector<float>& w);

// Two launches; the second may start before the first has ended.
enum class OverlapBug : uint8_t {
  kNone,
  kNoWait,
  kReadsBeforeTheWait,
  kWritesBeforeTheWait,
  kCopiesBeforeTheWait,
  kLeavesWithoutTheWait,
};

struct OverlapShape {
  static constexpr int kThreads = 64;
  static constexpr int kBlocks = 2;
  static constexpr int kN = 100;  // the last block has threads without an element
};

// Takes [kN] each; returns 2 x times the weight.
std::vector<float> run_overlap(OverlapBug bug,
                               const std::vector<float>& x,
                               const std::vector<float>& weight);

// Copies blocks of a paged cache to a slot and back (kernels/cuda/kv_blocks.cu): a thread block has
// a layer of a KV block, with the bytes of two planes.
enum class KvBlocksBug : uint8_t {
  kNone,
  kBlockByItsPlace,
  kLayerForBlock,
  kFirstPlaneAlone,
  kPlaneOneUnitLate,
  kUnmaskedTail,
  kOneUnitShort,
  kSlotOfTheBlockAlone,
  kHeadsFromTheFirst,
  kReversed,
};

struct KvBlocksShape {
  static constexpr int kThreads = 32;
  static constexpr int kBlocks = 7;  // blocks of the cache
  static constexpr int kLayers = 3;
  static constexpr int kHeads = 4;       // heads, some of which are selected
  static constexpr int kFirstHead = 1;   // the others follow
  static constexpr int kMeantHeads = 2;
  static constexpr int kFloats = 44;  // floats of a head and both planes; threads loop over it
  static constexpr int kTaken = 3;    // blocks
};

// Returns the slot, then the cache [layer][plane][block][head][kFloats] after each float of the
// slot plus 1 was put back.
std::vector<float> run_kv_blocks(KvBlocksBug bug,
                                 const std::vector<float>& cache,
                                 const std::vector<int32_t>& blocks);

// The likeliest of a row in pieces, a block each, and the join of their lists by one block of an
// overlapping launch (kernels/cuda/sampling_pieces.h).
enum class PiecesBug : uint8_t {
  kNone,
  kCountsShareAPlace,
  kThresholdOneShort,
  kLowestLeftOut,
  kTiesByPlaceInThePiece,
  kReadsAnotherPiece,
  kListsOverlap,
  kNoBarrierBeforeTheRest,
  kRestNotCleared,
  kOnePieceLess,
  kJoinsBeforeTheWait,
  kLeavesWithoutTheWait,
};

struct PiecesShape {
  static constexpr int kThreads = 64;
  static constexpr int kPiece = 128;
  static constexpr int kPieces = 3;
  static constexpr int kValues = 258;  // the last piece has less than a list
  static constexpr int kListed = 5;
};

// Returns the indices of the kListed largest as floats, the lower one first among equals.
std::vector<float> run_pieces(PiecesBug bug, const std::vector<float>& values);

}  // namespace sluice::kernels::test
