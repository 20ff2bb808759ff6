// SPDX-License-Identifier: Apache-2.0
// Small kernels of mixtures of experts, each with bugs that can be switched on.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {

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

}  // namespace sluice::kernels::test
