// SPDX-License-Identifier: Apache-2.0
// Attention by partitions, by mma.sync and by wgmma: planted bugs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/math.h"
#include "kernels/cuda/narrow.h"
#include "tests/kernels/cuda/planted_attention.h"
#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::kernels::test {
namespace {

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

}  // namespace
}  // namespace sluice::kernels::test
