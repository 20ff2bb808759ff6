// SPDX-License-Identifier: Apache-2.0
// Checks that the shim sees bugs: every planted one must be caught, with the expected words, in the
// schedules of kernel tests; without a bug there may be no report.
#include "tests/kernels/cuda/planted.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/math.h"
#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::test {
namespace {

class Reduce : public testing::Test {
 protected:
  static constexpr int32_t kN = 100;

  Reduce() : x_(Random(51).normals(4 * kN)), want_(x_.size()) {
    for (size_t row = 0; row < 4; ++row) {
      std::array<float, 16> lanes{};
      const float* const x = &x_[row * kN];
      for (size_t i = 0; i < kN; ++i) lanes[i % 16] += x[i];
      for (size_t half = 8; half >= 1; half /= 2) {
        for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
      }
      for (size_t i = 0; i < kN; ++i) want_[row * kN + i] = x[kN - 1 - i] * lanes[0];
    }
  }

  void expect(const char* name, const char* words, ReduceBug bug) {
    expect_caught(name, words, [&] { return same(run_reduce(bug, x_, kN), want_); });
  }

  std::vector<float> x_;
  std::vector<float> want_;
};

TEST_F(Reduce, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(same(run_reduce(ReduceBug::kNone, x_, kN), want_)); });
}

TEST_F(Reduce, EveryPlantedBugIsCaught) {
  using enum ReduceBug;
  expect("no barrier after staging", "race: ", kNoBarrierAfterStaging);
  expect("no barrier before broadcast", "race: ", kNoBarrierBeforeBroadcast);
  expect(
      "no barrier before reuse", "race: a write that a read may overtake", kNoBarrierBeforeReuse);
  expect("no __syncwarp", "race: ", kNoSyncwarp);
  expect("barrier in a branch", "__syncthreads at planted.cu", kBarrierInBranch);
  expect("named barrier count", "others wait in bar_sync", kNamedBarrierCount);
  expect("lane outside its mask", "a lane outside of its own mask", kLaneOutsideItsMask);
  expect("shuffle across the mask", "a shuffle reads lane", kShuffleAcrossTheMask);
  expect("exited lane in a mask", "left the kernel", kExitedLaneInMask);
  expect("unmasked tail", "race: a read", kUnmaskedTail);
  expect("shared off by one", "a write out of bounds", kSharedOffByOne);
  expect("wrong fold", "wrong bits", kWrongFold);
  expect("split off by one", "race: writes of two blocks", kSplitOffByOne);
  expect("two threads, one element", "race: two writes", kTwoThreadsWriteOneElement);
}

class Histogram : public testing::Test {
 protected:
  static constexpr int kDigits = 3;

  Histogram() : values_(HistogramShape::kValues) {
    Random random(57);
    for (uint32_t& value : values_) value = random.bits() % 4096;
    uint32_t prefix = 0;
    for (int shift = 4 * kDigits - 4; shift >= 0; shift -= 4) {
      std::array<int, 16> bins{};
      for (const uint32_t value : values_) {
        if (value >> (shift + 4) == prefix) ++bins[value >> shift & 15U];
      }
      const auto fullest = std::ranges::max_element(bins) - bins.begin();
      prefix = prefix << 4 | static_cast<uint32_t>(fullest);
    }
    want_ = static_cast<float>(prefix);
  }

  void expect(const char* name, const char* words, HistogramBug bug) {
    expect_caught(name, words, [&] { return run_histogram(bug, values_) == want_; });
  }

  std::vector<uint32_t> values_;
  float want_;
};

TEST_F(Histogram, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_EQ(run_histogram(HistogramBug::kNone, values_), want_); });
}

TEST_F(Histogram, EveryPlantedBugIsCaught) {
  using enum HistogramBug;
  expect("no barrier after clear", "race: an atomic on what", kNoBarrierAfterClear);
  expect("plain add", "race: ", kPlainAdd);
  expect("no prefix", "wrong bits", kNoPrefix);
  expect("no barrier before the sums", "race: an access beside an atomic", kNoBarrierBeforeRead);
  expect("no barrier before found", "race: a read of what", kNoBarrierBeforeFound);
}

class Parts : public testing::Test {
 protected:
  using Shape = PartsShape;

  Parts()
      : x_(Random(63).normals(Shape::kRows * Shape::kK)),
        w_(Random(64).normals(Shape::kOutputs * Shape::kK)) {
    constexpr int kGroups = (Shape::kK + 31) / 32;
    for (int i = 0; i < Shape::kRows * Shape::kOutputs; ++i) {
      const float* const x = &x_[static_cast<size_t>(i / Shape::kOutputs * Shape::kK)];
      const float* const w = &w_[static_cast<size_t>(i % Shape::kOutputs * Shape::kK)];
      float s[8] = {};
      for (int segment = 0; segment < 8; ++segment) {
        const int end = std::min((segment + 1) * kGroups / 8 * 32, Shape::kK);
        for (int k = segment * kGroups / 8 * 32; k < end; ++k) {
          s[segment] = std::fmaf(w[k], x[k], s[segment]);
        }
      }
      want_.push_back(((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
    }
  }

  void expect(const char* name, const char* words, PartsBug bug) {
    expect_caught(name, words, [&] { return same(run_parts(bug, x_, w_), want_); });
  }

  std::vector<float> x_;
  std::vector<float> w_;
  std::vector<float> want_;
};

TEST_F(Parts, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(same(run_parts(PartsBug::kNone, x_, w_), want_)); });
}

TEST_F(Parts, EveryPlantedBugIsCaught) {
  using enum PartsBug;
  expect("share one group late", "wrong bits", kShareOneGroupLate);
  expect("segments of equal size", "wrong bits", kEqualSegments);
  expect("segments in one chain", "wrong bits", kNoFold);
  expect("unmasked outputs", "race: ", kUnmaskedOutputs);
  expect("part of the neighbour", "race: writes of two blocks", kPartOfTheNeighbour);
  expect("parts in the wrong order", "wrong bits", kWrongOrder);
  expect("parts in one chain", "wrong bits", kJoinedInAChain);
  expect("one part twice", "wrong bits", kOneTwice);
}

}  // namespace
}  // namespace sluice::kernels::test
