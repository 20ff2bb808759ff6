// SPDX-License-Identifier: Apache-2.0
// Checks that the shim sees bugs between overlapping launches, and between the blocks that share a
// row and the block that joins their results.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/kernels/cuda/planted.h"
#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::test {
namespace {

class Overlap : public ::testing::Test {
 protected:
  Overlap() : x_(Random(91).normals(OverlapShape::kN)), weight_(Random(92).normals(x_.size())) {
    for (size_t i = 0; i < x_.size(); ++i) want_.push_back(weight_[i] * (x_[i] + x_[i]));
  }

  bool is_right(OverlapBug bug) { return same(run_overlap(bug, x_, weight_), want_); }

  void expect(const char* name, const char* words, OverlapBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  std::vector<float> x_;
  std::vector<float> weight_;
  std::vector<float> want_;
};

TEST_F(Overlap, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(OverlapBug::kNone)); });
}

TEST_F(Overlap, EveryPlantedBugIsCaught) {
  using enum OverlapBug;
  expect("no wait for launches", "overlap: ", kNoWait);
  expect("a read before the wait", "overlap: a read before", kReadsBeforeTheWait);
  expect("a write before the wait", "overlap: a write before", kWritesBeforeTheWait);
  expect("a copy before the wait", "overlap: a read before", kCopiesBeforeTheWait);
  expect("leaving without the wait", "ended without wait_for_launches", kLeavesWithoutTheWait);
}

class Pieces : public ::testing::Test {
 protected:
  using Shape = PiecesShape;

  // Few distinct values, so that equal ones are in several pieces and at a list's end.
  Pieces() : values_(Shape::kValues) {
    Random random(93);
    for (float& value : values_) value = static_cast<float>(random.below(40)) - 20.0F;
    values_[3] = values_[200] = values_[257] = 30.0F;
    values_[60] = values_[130] = values_[131] = 25.0F;
    std::vector<int> order(values_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [this](int a, int b) {
      return values_[static_cast<size_t>(a)] > values_[static_cast<size_t>(b)];
    });
    for (int i = 0; i < Shape::kListed; ++i) {
      want_.push_back(static_cast<float>(order[static_cast<size_t>(i)]));
    }
  }

  bool is_right(PiecesBug bug) { return same(run_pieces(bug, values_), want_); }

  void expect(const char* name, const char* words, PiecesBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  std::vector<float> values_;
  std::vector<float> want_;
};

TEST_F(Pieces, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(PiecesBug::kNone)); });
}

TEST_F(Pieces, EveryPlantedBugIsCaught) {
  using enum PiecesBug;
  expect("counts share a place", "race: a write that a read may", kCountsShareAPlace);
  expect("another piece's list", "another block", kReadsAnotherPiece);
  expect("lists overlap", "race: writes of two blocks", kListsOverlap);
  expect("no barrier before the rest", "race: ", kNoBarrierBeforeTheRest);
  expect("joined before the wait", "overlap: a read before", kJoinsBeforeTheWait);
  expect("leaving without the wait", "ended without wait_for_launches", kLeavesWithoutTheWait);
}

}  // namespace
}  // namespace sluice::kernels::test
