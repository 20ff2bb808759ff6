// SPDX-License-Identifier: Apache-2.0
// Checks that the shim sees bugs: every planted one must be caught, with the expected words, in the
// schedules of kernel tests; without a bug there may be no report.
#include "tests/kernels/cuda/planted.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/math.h"
#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::test {
namespace {

class Reduce : public ::testing::Test {
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
  expect("split off by one", "race: writes of two blocks", kSplitOffByOne);
  expect("two threads, one element", "race: two writes", kTwoThreadsWriteOneElement);
}

class Histogram : public ::testing::Test {
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
  expect("no barrier before the sums", "race: an access beside an atomic", kNoBarrierBeforeRead);
  expect("no barrier before found", "race: a read of what", kNoBarrierBeforeFound);
}

}  // namespace
}  // namespace sluice::kernels::test
