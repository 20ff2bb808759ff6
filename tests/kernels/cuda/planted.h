// SPDX-License-Identifier: Apache-2.0
// Small kernels of the product's shapes, each with bugs that can be switched on. The shim must
// catch every one of them.
#pragma once

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
  kSplitOffByOne,
  kTwoThreadsWriteOneElement,
};

// out[row][i] = x[row][n - 1 - i] * sum(x[row]), x of 4 rows of `n`.
std::vector<float> run_reduce(ReduceBug bug, const std::vector<float>& x, int32_t n);

// Finds the fullest bin of 4 bits of a value, then that of its values' next 4 bits, by atomics.
enum class HistogramBug : uint8_t {
  kNone,
  kNoBarrierAfterClear,
  kPlainAdd,
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

// The likeliest of a row in pieces, a block each, and the join of their lists by one block of an
// overlapping launch (kernels/cuda/sampling_pieces.h).
enum class PiecesBug : uint8_t {
  kNone,
  kCountsShareAPlace,
  kReadsAnotherPiece,
  kListsOverlap,
  kNoBarrierBeforeTheRest,
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
