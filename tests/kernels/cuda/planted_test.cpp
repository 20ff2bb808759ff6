// SPDX-License-Identifier: Apache-2.0
// Checks that the shim sees bugs: every planted one must be caught, with the expected words, in the
// schedules of kernel tests; without a bug there may be no report.
#include "tests/kernels/cuda/planted.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "kernels/cuda/math.h"
#include "kernels/cuda/narrow.h"
#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"
#include "tests/support/simt/tensorcore.h"

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

class Pipeline : public testing::Test {
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
  expect("swizzle of the map", "wrong bits", kMapSwizzle);
  expect("stride of the atoms", "that are not in shared memory", kAtomStride);
  expect("ring one short", "deadlock: ", kRingOneShort);
  expect("segment off by one", "wrong bits", kSegmentOffByOne);
  expect("unmasked tokens", "wrong bits", kUnmaskedTokens);
  expect("copy nobody waits for", "nobody had waited for a copy", kCopyNobodyWaitsFor);
}

class Pairs : public testing::Test {
 protected:
  using Shape = PairsShape;

  Pairs()
      : x_(bf16_matrix(Shape::kTokens, Shape::kK, 74)),
        w_(bf16_matrix(Shape::kOutputs, Shape::kK, 75)),
        want_(product(x_, w_, Shape::kTokens, Shape::kK, 2 * Shape::kTile)) {}

  bool is_right(PairsBug bug) { return same(run_pairs(bug, x_, w_), want_); }

  void expect(const char* name, const char* words, PairsBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  std::vector<uint16_t> x_;
  std::vector<uint16_t> w_;
  std::vector<float> want_;
};

TEST_F(Pairs, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(PairsBug::kNone)); });
}

TEST_F(Pairs, EveryPlantedBugIsCaught) {
  using enum PairsBug;
  constexpr const char* kOvertakes = "race: a write that a read may overtake: copy to mbarrier";
  expect("no fence after a pair's init", "no fence_mbar_init follows", kNoFenceAfterInit);
  expect("block's barrier after init", "not initialized", kBlockBarrierAfterInit);
  expect("no wait after init", "not initialized", kNoWaitAfterInit);
  expect("empty of one block", kOvertakes, kEmptyOfOneBlock);
  expect("empty counts one block", kOvertakes, kEmptyCountsOneBlock);
  expect("no arrival at the peer", "deadlock: ", kNoArrivalAtThePeer);
  expect("arrivals at one block", kOvertakes, kArrivalsAtOneBlock);
  expect("arrive before the products", "race: ", kArriveBeforeTheProducts);
  expect("wait of the block's scope", kOvertakes, kWaitOfTheBlock);
  expect("mask of itself", "deadlock: ", kMaskOfItself);
  expect("mask of the peer", "deadlock: ", kMaskOfThePeer);
  expect("mask of three", "of mask 7 of a cluster of 2", kMaskOfThree);
  expect("half to the same place", "race: a read of what nobody wrote", kHalfToTheSamePlace);
  expect("half from the same place", "wrong bits", kHalfFromTheSamePlace);
  expect("expect_tx of one half", "race: ", kExpectOneHalf);
  expect("tokens for both", "wrong bits", kTokensForBoth);
  expect("no barrier before the end", "may have ended before", kNoBarrierBeforeTheEnd);
}

class Stores : public testing::Test {
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
  expect("wrong swizzle of stores", "wrong bits", kWrongSwizzle);
  expect("reuse before wgmma_wait", "race: a write that a read may overtake", kReuseBeforeWait);
  expect("part of a warpgroup", "by a part of the warpgroup", kPartOfAWarpgroup);
}

class Attention : public testing::Test {
 protected:
  using Shape = AttentionShape;
  static constexpr size_t kDim = Shape::kDim;
  static constexpr int32_t kKeys = Shape::kBlocks * Shape::kSlots;

  Attention() {
    Random random(56);
    q_ = random.normals(Shape::kRows * kDim);
    k_ = random.normals(kKeys * kDim);
    v_ = random.normals(kKeys * kDim);
    for (int32_t i = 0; i < Shape::kBlocks; ++i) table_.push_back(Shape::kBlocks - 1 - i);
    for (int32_t row = 0; row < Shape::kRows; ++row) add_row(row);
    const std::vector<float> once = want_;
    want_.insert(want_.end(), once.begin(), once.end());
  }

  // Adds a row by plain loops, except for the library's exp.
  void add_row(int32_t row) {
    float m = -0x1.fffffep127F;
    float l = 0;
    float o[kDim] = {};
    const int32_t last = Shape::kPosition + row;
    for (int32_t begin = 0; begin <= last; begin += Shape::kPartition) {
      float part_m = -0x1.fffffep127F;
      float part_o[kDim] = {};
      float weights[Shape::kPartition] = {};
      for (int32_t j = 0; j < Shape::kPartition; ++j) {
        if (!sees(last, begin + j)) continue;
        for (size_t d = 0; d < kDim; ++d) {
          weights[j] = std::fmaf(
              q_[static_cast<size_t>(row) * kDim + d], k_[slot(begin + j) + d], weights[j]);
        }
        part_m = std::max(part_m, weights[j]);
      }
      for (int32_t j = 0; j < Shape::kPartition; ++j) {
        if (!sees(last, begin + j)) continue;
        weights[j] = cuda::exp_of(weights[j] - part_m);
        for (size_t d = 0; d < kDim; ++d) {
          part_o[d] = std::fmaf(weights[j], v_[slot(begin + j) + d], part_o[d]);
        }
      }
      for (int32_t half = 16; half >= 1; half /= 2) {
        for (int32_t j = 0; j < half; ++j) weights[j] += weights[j + half];
      }
      const float both = std::max(m, part_m);
      const float keep = cuda::exp_of(m - both);
      const float add = cuda::exp_of(part_m - both);
      m = both;
      l = std::fmaf(weights[0], add, l * keep);
      for (size_t d = 0; d < kDim; ++d) o[d] = std::fmaf(part_o[d], add, o[d] * keep);
    }
    for (const float value : o) want_.push_back(value / l);
  }

  static bool sees(int32_t position, int32_t key) {
    return key > position - Shape::kWindow && key <= position;
  }

  [[nodiscard]] size_t slot(int32_t key) const {
    const int32_t block = table_[static_cast<size_t>(key / Shape::kSlots)];
    return static_cast<size_t>(block * Shape::kSlots + key % Shape::kSlots) * kDim;
  }

  bool is_right(AttentionBug bug) { return same(run_attention(bug, q_, k_, v_, table_), want_); }

  void expect(const char* name, const char* words, AttentionBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  std::vector<float> q_;
  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<int32_t> table_;
  std::vector<float> want_;
};

TEST_F(Attention, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(AttentionBug::kNone)); });
}

TEST_F(Attention, EveryPlantedBugIsCaught) {
  using enum AttentionBug;
  expect("no barrier after scores", "race: ", kNoBarrierAfterScores);
  expect("no barrier after weights", "race: ", kNoBarrierAfterWeights);
  expect(
      "no barrier before reuse", "race: a write that a read may overtake", kNoBarrierBeforeReuse);
  expect("partitions overlap", "wrong bits", kPartitionOverlaps);
  expect("unmasked tail", "wrong bits", kUnmaskedTail);
  expect("window one early", "wrong bits", kWindowOneEarly);
  expect("block of the first key", "wrong bits", kBlockOfTheFirstKey);
  expect("no rescale", "wrong bits", kNoRescale);
  expect("merge backwards", "wrong bits", kMergeBackwards);
  expect("partial of the neighbour", "race: writes of two blocks", kPartialOfTheNeighbour);
  expect("merge one short", "wrong bits", kMergeOneShort);
}

class Tiles : public testing::Test {
 protected:
  using Shape = TilesShape;

  Tiles()
      : q_(bf16_matrix(Shape::kRows, Shape::kDim, 60)),
        k_(bf16_matrix(Shape::kDim, Shape::kKeys, 61)),
        v_(bf16_matrix(Shape::kKeys, Shape::kDim, 62)) {
    // Keys that no row sees are NaN.
    for (size_t key = Shape::kPosition + Shape::kRows; key < Shape::kKeys; ++key) {
      for (size_t d = 0; d < Shape::kDim; ++d) {
        k_[d * Shape::kKeys + key] = 0x7FC0;
        v_[key * Shape::kDim + d] = 0x7FC0;
      }
    }
    for (int row = 0; row < Shape::kRows; ++row) add_row(row);
  }

  // Adds a row by plain loops, except for exp and the tensor core's steps.
  void add_row(int row) {
    float m = kLowest;
    float l = 0;
    float o[Shape::kDim] = {};
    for (int begin = 0; begin < Shape::kKeys; begin += Shape::kPartitionTiles * Shape::kTile) {
      float part_m = kLowest;
      float part_l = 0;
      float part_o[Shape::kDim] = {};
      for (int tile = 0; tile < Shape::kPartitionTiles; ++tile) {
        const int first = begin + tile * Shape::kTile;
        add_tile(row, first, Shape::kPosition + row + 1 - first, part_m, part_l, part_o);
      }
      const float both = std::max(m, part_m);
      const float keep = cuda::exp_of(m - both);
      const float add = cuda::exp_of(part_m - both);
      m = both;
      l = std::fmaf(part_l, add, l * keep);
      for (int d = 0; d < Shape::kDim; ++d) o[d] = std::fmaf(part_o[d], add, o[d] * keep);
    }
    for (const float value : o) want_.push_back(value / l);
  }

  // Adds a tile of which the row sees the first `count` keys.
  void add_tile(int row, int first, int count, float& m, float& l, float* o) const {
    float p[Shape::kTile] = {};
    const int seen = std::min<int>(count, Shape::kTile);
    float top = m;
    for (int j = 0; j < seen; ++j) {
      for (size_t d = 0; d < Shape::kDim; d += 16) {
        uint16_t k[16];
        for (size_t i = 0; i < 16; ++i) k[i] = k_[(d + i) * Shape::kKeys + first + j];
        p[j] = simt::tensor_core_step(
            simt::Half::kBF16, &q_[static_cast<size_t>(row) * Shape::kDim + d], k, p[j]);
      }
      top = std::max(top, p[j]);
    }
    const float c = cuda::exp_of(m - top);
    m = top;
    uint16_t weights[Shape::kTile] = {};
    for (int j = 0; j < seen; ++j) {
      p[j] = cuda::exp_of(p[j] - top);
      weights[j] = cuda::to_bf16(p[j]);
    }
    float quads[4];
    for (int i = 0; i < 4; ++i) {
      const float* const of = p + 2 * i;
      quads[i] = (of[0] + of[1] + of[8] + of[9]) + (of[16] + of[17] + of[24] + of[25]);
    }
    l = std::fmaf(l, c, (quads[0] + quads[1]) + (quads[2] + quads[3]));
    for (int d = 0; d < Shape::kDim; ++d) {
      o[d] *= c;
      for (int j = 0; j < Shape::kTile; j += 16) {
        uint16_t v[16] = {};
        for (int i = j; i < std::min(j + 16, seen); ++i) {
          v[i - j] = v_[static_cast<size_t>((first + i) * Shape::kDim + d)];
        }
        o[d] = simt::tensor_core_step(simt::Half::kBF16, weights + j, v, o[d]);
      }
    }
  }

  bool is_right(TilesBug bug) {
    return same(run_tiles(bug, q_.data(), k_.data(), v_.data()), want_);
  }

  void expect(const char* name, const char* words, TilesBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  static constexpr float kLowest = -0x1.fffffep127F;

  std::vector<uint16_t> q_;
  std::vector<uint16_t> k_;
  std::vector<uint16_t> v_;
  std::vector<float> want_;
};

TEST_F(Tiles, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(TilesBug::kNone)); });
}

TEST_F(Tiles, EveryPlantedBugIsCaught) {
  using enum TilesBug;
  expect("no wait for a tile", "the kernel ended before cp_async_wait", kNoWait);
  expect("wait one tile too weak", "race: a read of what is being written", kWaitTooWeak);
  expect("no barrier after a tile", "race: ", kNoBarrierAfterWait);
  expect("copy before the barrier", "race: a write that a read may", kCopyBeforeBarrier);
  expect("stale tile of the ring", "race: a read of what is being written", kStaleSlot);
  expect("tile without swizzle", "wrong bits", kReadWithoutSwizzle);
  expect("tile not transposed", "wrong bits", kNotTransposed);
  expect("partition one tile late", "wrong bits", kPartitionOneLate);
  expect("keys after the row", "wrong bits", kUnmaskedTail);
  expect("NaN that weighs 0", "wrong bits", kNoZeroFill);
  expect("no barrier after tops", "race: ", kNoBarrierAfterTops);
  expect("weights after the barrier", "race: ", kWeightsAfterBarrier);
  expect("no rescale of a tile", "wrong bits", kNoRescale);
  expect("sum of one warp", "wrong bits", kSumOfOneWarp);
}

class Prompt : public testing::Test {
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

class Copies : public testing::Test {
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
  expect("ldmatrix without swizzle", "wrong bits", kReadWithoutSwizzle);
  expect("row of ldmatrix", "a row that is not aligned", kRowNotAligned);
  expect("no zeros past K", "wrong bits", kNoZeroFill);
  expect("halves of B swapped", "wrong bits", kHalvesSwapped);
  expect("mma by a part of a warp", "mma_bf16", kPartOfAWarp);
}

}  // namespace
}  // namespace sluice::kernels::test
