// SPDX-License-Identifier: Apache-2.0
// Products by matrix instructions over rings that TMA, cp.async or the threads fill: planted bugs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/narrow.h"
#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/planted_products.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::kernels::test {
namespace {

// Returns out[token][output]: two segments of chunks of 64, added.
std::vector<float> product(const std::vector<uint16_t>& x,
                           const std::vector<uint16_t>& w,
                           int32_t tokens,
                           int32_t k,
                           int32_t room) {
  std::vector<float> out(static_cast<size_t>(room) * 64, -1.0F);
  const int32_t middle = (k + 63) / 64 / 2 * 64;
  for (int32_t token = 0; token < tokens; ++token) {
    for (int32_t output = 0; output < 64; ++output) {
      float sums[2] = {0, 0};
      for (int32_t i = 0; i < k; i += 16) {
        uint16_t a[16] = {};
        uint16_t b[16] = {};
        for (int32_t j = 0; j < 16 && i + j < k; ++j) {
          a[j] = w[static_cast<size_t>(output * k + i + j)];
          b[j] = x[static_cast<size_t>(token * k + i + j)];
        }
        float& sum = sums[i < middle ? 0 : 1];
        sum = simt::tensor_core_step(simt::Half::kBF16, a, b, sum);
      }
      out[static_cast<size_t>(token * 64 + output)] = sums[0] + sums[1];
    }
  }
  return out;
}

class Pipeline : public ::testing::Test {
 protected:
  static constexpr int32_t kK = 440;  // 7 chunks go round 3 stages twice; the last is not full
  static constexpr int32_t kTokens = 5;

  Pipeline()
      : x_(bf16_matrix(kTokens, kK, 52)),
        w_(bf16_matrix(64, kK, 53)),
        want_(product(x_, w_, kTokens, kK, 8)) {}

  bool is_right(PipelineBug bug) { return same(run_pipeline(bug, x_, w_, kTokens, kK, 8), want_); }

  void expect(const char* name, const char* words, PipelineBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  std::vector<uint16_t> x_;
  std::vector<uint16_t> w_;
  std::vector<float> want_;
};

TEST_F(Pipeline, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(PipelineBug::kNone)); });
}

TEST_F(Pipeline, EveryPlantedBugIsCaught) {
  using enum PipelineBug;
  expect("no wait for full", "race: a read", kNoFullWait);
  expect("no wait for empty", "more arrivals than the 1 of the phase", kNoEmptyWait);
  expect("wrong parity", "mbar_wait at planted.cu", kWrongParity);
  expect("expect_tx too small", "race: ", kExpectTooFew);
  expect("expect_tx too large", "deadlock: ", kExpectTooMany);
  expect("no barrier after init", "an mbarrier that is not initialized", kNoBarrierAfterInit);
  expect("no fence after init", "no fence_mbar_init follows", kNoFenceAfterInit);
  expect("mbarriers not initialized", "an mbarrier that is not initialized", kNotInitialized);
  expect("arrive before wgmma_wait", "race: ", kArriveBeforeWgmmaWait);
  expect("every lane arrives", "race: ", kEveryLaneArrives);
  expect("no wgmma_fence", "without wgmma_fence", kNoWgmmaFence);
  expect("no wgmma_wait", "the kernel ended before wgmma_wait", kReadBeforeWgmmaWait);
  expect("no commit", "the kernel ended before wgmma_wait", kNoCommit);
  expect("swizzle of the descriptor", "a descriptor that starts at", kDescriptorSwizzle);
  expect("stride of the atoms", "that are not in shared memory", kAtomStride);
  expect("ring one short", "deadlock: ", kRingOneShort);
  expect("copy nobody waits for", "nobody had waited for a copy", kCopyNobodyWaitsFor);
}

class Stores : public ::testing::Test {
 protected:
  Stores() : x_(bf16_matrix(8, 64, 54)), w_(bf16_matrix(64, 64, 55)), want_(8 * 64) {
    // There is one segment: the second half of a product whose first is empty.
    for (int32_t i = 0; i < 8 * 64; ++i) {
      float sum = 0;
      for (int32_t k = 0; k < 64; k += 16) {
        sum = simt::tensor_core_step(simt::Half::kBF16,
                                     &w_[static_cast<size_t>(i % 64 * 64 + k)],
                                     &x_[static_cast<size_t>(i / 64 * 64 + k)],
                                     sum);
      }
      want_[static_cast<size_t>(i)] = sum;
    }
  }

  void expect(const char* name, const char* words, StoreBug bug) {
    expect_caught(name, words, [&] { return same(run_stores(bug, x_, w_), want_); });
  }

  std::vector<uint16_t> x_;
  std::vector<uint16_t> w_;
  std::vector<float> want_;
};

TEST_F(Stores, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(same(run_stores(StoreBug::kNone, x_, w_), want_)); });
}

TEST_F(Stores, EveryPlantedBugIsCaught) {
  using enum StoreBug;
  expect("no proxy fence", "without fence_proxy_async", kNoProxyFence);
  expect("fence by the reader", "without fence_proxy_async", kFenceByTheReader);
  expect("no barrier before wgmma", "race: ", kNoBarrier);
  expect("reuse before wgmma_wait", "race: a write that a read may overtake", kReuseBeforeWait);
  expect("part of a warpgroup", "by a part of the warpgroup", kPartOfAWarpgroup);
}

class Copies : public ::testing::Test {
 protected:
  using Shape = CopiesShape;

  Copies()
      : x_(bf16_matrix(Shape::kTokens, Shape::kStride, 58)),
        w_(bf16_matrix(Shape::kOutputs, Shape::kStride, 59)) {
    for (int32_t i = 0; i < Shape::kTokens * Shape::kOutputs; ++i) {
      const uint16_t* const x = &x_[static_cast<size_t>(i / Shape::kOutputs * Shape::kStride)];
      const uint16_t* const w = &w_[static_cast<size_t>(i % Shape::kOutputs * Shape::kStride)];
      float sum = 0;
      for (int32_t k = 0; k < Shape::kK; k += 16) {
        uint16_t a[16] = {};
        uint16_t b[16] = {};
        const auto count = static_cast<size_t>(std::min(16, Shape::kK - k));
        std::copy_n(w + k, count, a);
        std::copy_n(x + k, count, b);
        sum = simt::tensor_core_step(simt::Half::kBF16, a, b, sum);
      }
      want_.push_back(sum);
    }
  }

  bool is_right(CopiesBug bug) { return same(run_copies(bug, x_.data(), w_.data()), want_); }

  void expect(const char* name, const char* words, CopiesBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  std::vector<uint16_t> x_;
  std::vector<uint16_t> w_;
  std::vector<float> want_;
};

TEST_F(Copies, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(CopiesBug::kNone)); });
}

TEST_F(Copies, EveryPlantedBugIsCaught) {
  using enum CopiesBug;
  expect("no wait for copies", "the kernel ended before cp_async_wait", kNoWait);
  expect("wait too weak", "race: a read of what is being written", kWaitTooWeak);
  expect("no barrier after the wait", "race: ", kNoBarrier);
  expect("copies not committed", "the kernel ended before cp_async_wait", kNoCommit);
  expect("no empty groups at the end", "race: ", kNoEmptyGroups);
  expect("reuse before the barrier", "race: a write that a read may", kReuseBeforeBarrier);
  expect("row of ldmatrix", "a row that is not aligned", kRowNotAligned);
  expect("mma by a part of a warp", "mma_bf16", kPartOfAWarp);
}

}  // namespace
}  // namespace sluice::kernels::test
