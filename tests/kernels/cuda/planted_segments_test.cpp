// SPDX-License-Identifier: Apache-2.0
// Checks that the shim sees bugs of linear layers whose segments run in several blocks.
#include "tests/kernels/cuda/planted_segments.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::kernels::test {
namespace {

// The definition in plain loops: a chain of steps of 16 in each segment, and their tree.
class SegmentsOfK : public ::testing::Test {
 protected:
  using Shape = SegmentsShape;

  SegmentsOfK()
      : x_(bf16_matrix(Shape::kTokens, Shape::kK, 81)),
        w_(bf16_matrix(Shape::kOutputs, Shape::kK, 82)) {
    for (int token = 0; token < Shape::kTokens; ++token) {
      for (int output = 0; output < Shape::kOutputs; ++output) want_.push_back(sum(token, output));
    }
  }

  [[nodiscard]] float sum(int token, int output) const {
    float s[Shape::kSegments] = {};
    for (int segment = 0; segment < Shape::kSegments; ++segment) {
      const int end = Shape::first_column(segment + 1);
      for (int column = Shape::first_column(segment); column < end; column += 16) {
        uint16_t a[16] = {};
        uint16_t b[16] = {};
        for (int i = 0; i < 16 && column + i < Shape::kK; ++i) {
          a[i] = w_[static_cast<size_t>(output * Shape::kK + column + i)];
          b[i] = x_[static_cast<size_t>(token * Shape::kK + column + i)];
        }
        s[segment] = simt::tensor_core_step(simt::Half::kBF16, a, b, s[segment]);
      }
    }
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }

  std::vector<uint16_t> x_;
  std::vector<uint16_t> w_;
  std::vector<float> want_;
};

class Runs : public SegmentsOfK {
 protected:
  bool is_right(RunsBug bug) { return same(run_runs(bug, x_, w_), want_); }

  void expect(const char* name, const char* words, RunsBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }
};

TEST_F(Runs, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(RunsBug::kNone)); });
}

TEST_F(Runs, EveryPlantedBugIsCaught) {
  using enum RunsBug;
  expect("runs overlap", "race: writes of two blocks", kRunsOverlap);
  expect("four of the lane", "race: ", kFourOfTheLane);
  expect("release before wgmma_wait", "race: ", kReleaseBeforeWait);
  expect("ring restarts", "nobody had waited for a copy", kRingRestarts);
  expect("one copier counted", "more arrivals than the 1 of the phase", kOneCopier);
  expect("end without wait", "ended without wait_for_launches", kEndWithoutWait);
  expect("store before wait", "a write before wait_for_launches", kStoreBeforeWait);
  expect(
      "no sync before arrival", "race: a read of what another block writes", kNoSyncBeforeArrival);
  expect("no fence before arrival", "race: a read of what another", kNoFenceBeforeArrival);
  expect("no fence behind arrival", "race: a read of what another", kNoFenceBehindArrival);
  expect("no sync behind arrival", "race: a read of what another", kNoSyncBehindArrival);
  expect("joined by the first", "race: ", kJoinedByTheFirst);
  expect("joined by all", "race: ", kJoinedByAll);
}

}  // namespace
}  // namespace sluice::kernels::test
