// SPDX-License-Identifier: Apache-2.0
// Checks that the shim sees bugs in attention by a list of work.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/math.h"
#include "tests/kernels/cuda/planted_attention.h"
#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::test {
namespace {

class List : public testing::Test {
 protected:
  using Shape = ListShape;
  static constexpr size_t kBlockCodes = size_t{Shape::kSlots} * Shape::kDim;

  List()
      : k_(Shape::kBlocks * kBlockCodes),
        v_(Shape::kBlocks * kBlockCodes),
        scales_(Shape::kBlocks * Shape::kSlots * sizeof(float)) {
    Random random(73);
    fill(random, k_);
    fill(random, v_);
    for (int i = 0; i < Shape::kBlocks * Shape::kSlots; ++i) {
      scale(i) = 0.01F + 0.001F * std::fabs(random.normals(1)[0]);
    }
    inputs_.k = reinterpret_cast<const int8_t*>(k_.data());
    inputs_.v = reinterpret_cast<const int8_t*>(v_.data());
    inputs_.scales = reinterpret_cast<const float*>(scales_.data());
    inputs_.q = random.normals(size_t{Shape::kRequests} * Shape::kRows * Shape::kDim);
    inputs_.lengths.assign(Shape::kLengths, Shape::kLengths + Shape::kRequests);
    inputs_.table.assign(size_t{Shape::kRequests} * Shape::kTableStride, INT32_MAX);
    int next = 0;
    for (int request = 0; request < Shape::kRequests; ++request) {
      const int length = Shape::kLengths[request];
      for (int key = 0; key < length; key += Shape::kSlots) {
        inputs_.table[entry(request, key)] = next++ * 29 % Shape::kBlocks;
      }
      // Keys that no row sees have NaN scales.
      for (int key = length; key % Shape::kSlots != 0; ++key) {
        scale(slot(request, key)) = std::numeric_limits<float>::quiet_NaN();
      }
      for (int row = 0; row < Shape::kRows; ++row) add_row(request, row);
    }
  }

  static void fill(Random& random, DeviceBytes& codes) {
    const std::vector<float> values = random.normals(codes.size(), 40);
    for (size_t i = 0; i < codes.size(); ++i) {
      const float code = std::clamp(std::round(values[i]), -127.0F, 127.0F);
      codes.data()[i] = static_cast<std::byte>(static_cast<int8_t>(code));
    }
  }

  static size_t entry(int request, int key) {
    return static_cast<size_t>(request * Shape::kTableStride + key / Shape::kSlots);
  }

  [[nodiscard]] int slot(int request, int key) const {
    return inputs_.table[entry(request, key)] * Shape::kSlots + key % Shape::kSlots;
  }

  float& scale(int slot) { return reinterpret_cast<float*>(scales_.data())[slot]; }

  struct State {
    float m = -0x1.fffffep127F;
    float l = 0;
    float o[Shape::kWidth] = {};
  };

  // Adds a row by plain loops, except for the library's exp.
  void add_row(int request, int row) {
    State all;
    const int length = Shape::kLengths[request];
    for (int begin = 0; begin < length; begin += Shape::kPartition) {
      State part;
      for (int tile = begin; tile < std::min(begin + Shape::kPartition, length);
           tile += Shape::kTile) {
        add_tile(request, row, tile, part);
      }
      const float both = std::max(all.m, part.m);
      const float keep = cuda::exp_of(all.m - both);
      const float add = cuda::exp_of(part.m - both);
      all.m = both;
      all.l = std::fmaf(part.l, add, all.l * keep);
      for (int d = 0; d < Shape::kWidth; ++d) {
        all.o[d] = std::fmaf(part.o[d], add, all.o[d] * keep);
      }
    }
    for (const float o : all.o) want_.push_back(o / all.l);
  }

  void add_tile(int request, int row, int begin, State& state) {
    const int seen = std::min(Shape::kTile, Shape::kLengths[request] - begin);
    float p[Shape::kTile] = {};
    float top = state.m;
    const float* const q = &inputs_.q[size_t(request * Shape::kRows + row) * Shape::kDim];
    for (int j = 0; j < seen; ++j) {
      const int at = slot(request, begin + j);
      const int8_t* const k = inputs_.k + at / Shape::kSlots * kBlockCodes + at % Shape::kSlots;
      for (int d = 0; d < Shape::kDim; ++d) p[j] = std::fmaf(q[d], k[d * Shape::kSlots], p[j]);
      p[j] *= scale(at);
      top = std::max(top, p[j]);
    }
    const float c = cuda::exp_of(state.m - top);
    state.m = top;
    for (int j = 0; j < seen; ++j) p[j] = cuda::exp_of(p[j] - top);
    for (int d = 0; d < Shape::kWidth; ++d) {
      state.o[d] *= c;
      for (int j = 0; j < seen; ++j) {
        const int at = slot(request, begin + j);
        state.o[d] = std::fmaf(p[j], inputs_.v[at * Shape::kDim + d], state.o[d]);
      }
    }
    for (int half = Shape::kTile / 2; half >= 1; half /= 2) {
      for (int j = 0; j < half; ++j) p[j] += p[j + half];
    }
    state.l = std::fmaf(state.l, c, p[0]);
  }

  bool is_right(ListBug bug) { return same(run_list(bug, inputs_), want_); }

  void expect(const char* name, const char* words, ListBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  DeviceBytes k_;
  DeviceBytes v_;
  DeviceBytes scales_;
  ListInputs inputs_;
  std::vector<float> want_;
};

TEST_F(List, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(ListBug::kNone)); });
}

TEST_F(List, EveryPlantedBugIsCaught) {
  using enum ListBug;
  expect("share one item late", "wrong bits", kShareOneLate);
  expect("entry of the neighbour", "wrong bits", kEntryOfTheNeighbour);
  expect("no __syncwarp after table", "race: ", kNoSyncAfterTable);
  expect(
      "no __syncwarp before table", "race: a write that a read may overtake", kNoSyncBeforeTable);
  expect("scales of the neighbour", "wrong bits", kScalesOfTheNeighbour);
  expect("a stage too few", "race: ", kStageTooFew);
  expect("counts whole partitions", "wrong bits", kCountsWholePartitions);
  expect("release before scores", "race: a write that a read may overtake", kReleaseBeforeScores);
  expect("idle warp does not release", "deadlock", kIdleWarpDoesNotRelease);
  expect("tops of one partition", "race: a write that a read may overtake", kOneOfTops);
  expect("no barrier after tops", "race: ", kNoBarrierAfterTops);
  expect("no barrier after weights", "race: ", kNoBarrierAfterWeights);
  expect("a partial left out", "wrong bits", kPartialLeftOut);
  expect("joined in the first slot", "wrong bits", kJoinedInTheFirstSlot);
  expect("merge leaves early", "ended without wait_for_launches", kMergeLeavesEarly);
  expect("merge writes early", "a write before wait_for_launches", kMergeWritesEarly);
  expect("merged twice", "race: writes of two blocks", kMergedTwice);
}

}  // namespace
}  // namespace sluice::kernels::test
