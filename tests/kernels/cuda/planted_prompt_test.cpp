// SPDX-License-Identifier: Apache-2.0
// Attention by wgmma: planted bugs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/math.h"
#include "kernels/cuda/narrow.h"
#include "tests/kernels/cuda/planted_prompt.h"
#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::kernels::test {
namespace {

class Prompt : public ::testing::Test {
 protected:
  using Shape = PromptShape;
  static constexpr int kEnd = Shape::kPosition + Shape::kRows;

  Prompt()
      : q_(bf16_matrix(Shape::kRows, Shape::kDim, 66)),
        k_(bf16_matrix(Shape::kBlocks * Shape::kDim, Shape::kSlots, 67)),
        v_(bf16_matrix(Shape::kBlocks * Shape::kSlots, Shape::kDim, 68)) {
    for (int i = 0; i < Shape::kBlocks; ++i) table_.push_back((i * 7 + 3) % Shape::kBlocks);
    constexpr uint16_t kNan = 0xFFFF;
    for (int key = kEnd; key < Shape::kBlocks * Shape::kSlots; ++key) {
      for (int d = 0; d < Shape::kDim; ++d) k_[of_k(key, d)] = v_[of_v(key, d)] = kNan;
    }
    table_.back() = INT32_MAX;
    for (int row = 0; row < Shape::kRows; ++row) add_row(row);
  }

  [[nodiscard]] size_t of_k(int key, int d) const {
    const int block = table_[static_cast<size_t>(key / Shape::kSlots)];
    return static_cast<size_t>((block * Shape::kDim + d) * Shape::kSlots + key % Shape::kSlots);
  }

  [[nodiscard]] size_t of_v(int key, int d) const {
    const int block = table_[static_cast<size_t>(key / Shape::kSlots)];
    return static_cast<size_t>((block * Shape::kSlots + key % Shape::kSlots) * Shape::kDim + d);
  }

  // Adds a row by plain loops, except for the tensor core's steps and the library's exp.
  void add_row(int row) {
    float m = -0x1.fffffep127F;
    float l = 0;
    float o[Shape::kDim] = {};
    for (int first = 0; first <= Shape::kPosition + row; first += Shape::kTile) {
      add_tile(row, first, m, l, o);
    }
    for (const float sum : o) want_.push_back(sum / l);
  }

  void add_tile(int row, int first, float& m, float& l, float (&o)[Shape::kDim]) const {
    const int seen = std::min(Shape::kTile, Shape::kPosition + row + 1 - first);
    float p[Shape::kTile] = {};
    float top = m;
    for (int j = 0; j < seen; ++j) {
      for (int d = 0; d < Shape::kDim; d += 16) {
        uint16_t k[16];
        for (int i = 0; i < 16; ++i) k[i] = k_[of_k(first + j, d + i)];
        const uint16_t* const q = &q_[static_cast<size_t>(row * Shape::kDim + d)];
        p[j] = simt::tensor_core_step(simt::Half::kBF16, q, k, p[j]);
      }
      top = std::max(top, p[j]);
    }
    const float c = cuda::exp_of(m - top);
    m = top;
    uint16_t weights[Shape::kTile] = {};
    for (int j = 0; j < seen; ++j) weights[j] = cuda::to_bf16(p[j] = cuda::exp_of(p[j] - top));
    float quads[4] = {};
    for (int j = 0; j < seen; ++j) quads[j % 8 / 2] += p[j];
    l = std::fmaf(l, c, (quads[0] + quads[1]) + (quads[2] + quads[3]));
    for (int d = 0; d < Shape::kDim; ++d) {
      o[d] *= c;
      for (int j = 0; j < seen; j += 16) {
        uint16_t v[16] = {};
        for (int i = j; i < std::min(j + 16, seen); ++i) v[i - j] = v_[of_v(first + i, d)];
        o[d] = simt::tensor_core_step(simt::Half::kBF16, weights + j, v, o[d]);
      }
    }
  }

  bool is_right(PromptBug bug) {
    return same(run_prompt(bug, q_.data(), k_.data(), v_.data(), table_), want_);
  }

  void expect(const char* name, const char* words, PromptBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  std::vector<uint16_t> q_;
  std::vector<uint16_t> k_;
  std::vector<uint16_t> v_;
  std::vector<int32_t> table_;
  std::vector<float> want_;
};

TEST_F(Prompt, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(PromptBug::kNone)); });
}

TEST_F(Prompt, EveryPlantedBugIsCaught) {
  using enum PromptBug;
  expect("no wait for K", "race: a read", kNoFullWait);
  expect("wrong parity", "deadlock: ", kWrongParity);
  expect("expect_tx of a block less", "race: ", kExpectOneBlockLess);
  expect("K let go before wgmma_wait", "race: ", kReleaseBeforeWait);
  expect("V never let go", "deadlock: ", kReleaseOnce);
  expect("scores before wgmma_wait", "wrong bits", kScoresBeforeWait);
  expect("weights before wgmma_wait", "its rows changed before wgmma_wait", kPackBeforeWait);
  expect("no wgmma_fence", "without wgmma_fence", kNoWgmmaFence);
  expect("no proxy fence", "without fence_proxy_async", kNoProxyFence);
  expect("no barrier after zeros", "race: ", kNoBarrierAfterClear);
  expect("V of unseen keys", "wrong bits", kUnclearedTail);
  expect("unmasked tail", "wrong bits", kUnmaskedTail);
  expect("swizzle of K's descriptor", "wrong bits", kKeySwizzle);
  expect("swizzle of K's map", "wrong bits", kMapSwizzle);
  expect("blocks of K overlap", "wrong bits", kBlocksOverlap);
  expect("steps of 8 keys", "wrong bits", kStepsOfEightKeys);
  expect("block of the first key", "wrong bits", kBlockOfTheFirstKey);
  expect("no rescale", "wrong bits", kNoRescale);
}

}  // namespace
}  // namespace sluice::kernels::test
