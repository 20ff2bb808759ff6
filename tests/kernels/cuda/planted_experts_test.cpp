// SPDX-License-Identifier: Apache-2.0
// Planted bugs of experts' kernels: routers, the placement of rows, weights in blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/math.h"
#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/planted_experts.h"
#include "tests/kernels/cuda/planted_products.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::test {
namespace {

class Place : public testing::Test {
 protected:
  using Shape = PlaceShape;

  Place()
      : ids_(Shape::kPairs),
        y_(Random(71).normals(Shape::kRoom * Shape::kWidth + 1)),
        weights_(Random(72).normals(Shape::kPairs)),
        want_(std::make_unique<Placed>(empty())) {
    Random random(73);
    for (int32_t& id : ids_) {
      // Ids are the last expert, one with more than a block of rows, or any but every third.
      const int32_t any = random.below(Shape::kExperts);
      id = any % 3 == 1 ? 7 : any % 5 == 0 ? Shape::kExperts - 1 : any;
    }
    place();
    for (int32_t i = 0; i < Shape::kTokens * Shape::kWidth; ++i) {
      float sum = 0;
      for (int32_t j = 0; j < Shape::kTopK; ++j) {
        const auto pair = static_cast<size_t>(i / Shape::kWidth * Shape::kTopK + j);
        const auto at = static_cast<size_t>(want_->rows[pair] * Shape::kWidth + i % Shape::kWidth);
        sum = std::fmaf(y_[at], weights_[pair], sum);
      }
      want_->joined[static_cast<size_t>(i)] = sum;
    }
  }

  // Places that are never written keep these values.
  static Placed empty() {
    Placed placed{};
    placed.rows.fill(-7);
    placed.first.fill(-7);
    placed.count.fill(-7);
    placed.chosen.fill(-7);
    placed.joined.fill(-7.0F);
    return placed;
  }

  void place() {
    int32_t row = 0;
    for (int32_t expert = 0; expert < Shape::kExperts; ++expert) {
      const auto of = static_cast<size_t>(expert);
      want_->first[of] = row;
      int32_t count = 0;
      for (size_t i = 0; i < ids_.size(); ++i) {
        if (ids_[i] == expert) want_->rows[i] = row + count++;
      }
      want_->count[of] = count;
      if (count > 0) want_->chosen[static_cast<size_t>(want_->num_chosen++)] = expert;
      row += (count + Shape::kAlign - 1) / Shape::kAlign * Shape::kAlign;
    }
  }

  bool is_right(PlaceBug bug) {
    const auto placed = std::make_unique<Placed>(empty());
    run_place(bug, ids_.data(), y_.data(), weights_.data(), *placed);
    return *placed == *want_;
  }

  void expect(const char* name, const char* words, PlaceBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  std::vector<int32_t> ids_;
  std::vector<float> y_;
  std::vector<float> weights_;
  std::unique_ptr<Placed> want_;
};

TEST_F(Place, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(PlaceBug::kNone)); });
}

TEST_F(Place, EveryPlantedBugIsCaught) {
  using enum PlaceBug;
  expect("counts not cleared", "race: an atomic on what nobody wrote", kNotCleared);
  expect("no __syncwarp after clear", "race: an atomic on what", kNoSyncAfterClear);
  expect("plain add of counts", "race: ", kPlainAdd);
  expect("share one short", "wrong bits", kShareOneShort);
  expect("pairs past the share", "wrong bits", kUnmaskedTail);
  expect("no barrier after counts", "race: ", kNoBarrierAfterCounts);
  expect("not the last expert", "race: a read of what nobody wrote", kNotTheLastExpert);
  expect("no barrier before begin", "race: ", kNoBarrierBeforeBegin);
  expect("experts of one round", "wrong bits", kExpertsOfOneRound);
  expect("rows not aligned", "wrong bits", kRowsNotAligned);
  expect("experts without rows", "wrong bits", kEmptyChosen);
  expect("counter not reset", "wrong bits", kChosenNotReset);
  expect("no barrier after begin", "race: ", kNoBarrierAfterBegin);
  expect("rank with itself", "wrong bits", kRankWithItself);
  expect("no __syncwarp before add", "race: a write that a read may", kNoSyncBeforeAdvance);
  expect("every lane adds", "race: two writes", kEveryLaneAdvances);
  expect("no __syncwarp after add", "race: a read of what", kNoSyncAfterAdvance);
  expect("join one short", "wrong bits", kJoinOneShort);
  expect("join past the row", "race: writes of two blocks", kJoinTail);
  expect("join backwards", "wrong bits", kJoinBackwards);
  expect("join by pair", "wrong bits", kJoinByPair);
}

class Blocks : public testing::Test {
 protected:
  using Shape = BlocksShape;

  Blocks() : input_(std::make_unique<BlocksInput>()), want_(Shape::kRows * Shape::kTile, -1.0F) {
    Random random(74);
    const auto fill = [&](auto& values) {
      for (auto& value : values) value = random.normal();
    };
    for (int32_t expert = 0; expert < Shape::kExperts; ++expert) {
      fill(input_->bias[expert]);
      for (int32_t group = 0; group < Shape::kGroups; ++group) {
        fill(input_->scale[expert][group]);
        fill(input_->minimum[expert][group]);
        for (auto& of_register : input_->codes[expert][group]) {
          for (uint32_t& codes : of_register) codes = random.bits();
        }
      }
    }
    for (int32_t row = 0; row < Shape::kRows; ++row) {
      for (int32_t group = 0; group < Shape::kGroups; ++group) fill_x(row, group, random);
    }
    for (int32_t expert = 0; expert < Shape::kExperts; ++expert) {
      const auto of = static_cast<size_t>(expert);
      if (Shape::kCount[of] > 0) input_->chosen[input_->num_chosen++] = expert;
      for (int32_t i = 0; i < Shape::kCount[of]; ++i) multiply(expert, Shape::kFirst[of] + i);
    }
  }

  void fill_x(int32_t row, int32_t group, Random& random) {
    const int32_t block = row / Shape::kTokens;
    const int32_t token = row % Shape::kTokens;
    int32_t sum = 0;
    for (int8_t& code : input_->x[block][group][token]) {
      code = static_cast<int8_t>(random.below(255) - 127);
      sum += code;
    }
    const float scale = random.normal();
    input_->x_scale[block][group][token] = scale;
    input_->x_sum[block][group][token] = static_cast<float>(sum) * scale;
  }

  void multiply(int32_t expert, int32_t row) {
    const int32_t block = row / Shape::kTokens;
    const int32_t token = row % Shape::kTokens;
    for (int32_t output = 0; output < Shape::kOutputs; ++output) {
      std::array<float, Shape::kWarps> s{};
      for (int32_t segment = 0; segment < Shape::kWarps; ++segment) {
        float& acc = s[static_cast<size_t>(segment)];
        const int32_t end = (segment + 1) * Shape::kGroups / Shape::kWarps;
        for (int32_t group = segment * Shape::kGroups / Shape::kWarps; group < end; ++group) {
          int32_t sum = 0;
          for (int32_t k = 0; k < 32; ++k) {
            const uint32_t codes = input_->codes[expert][group][k % 16 / 4][output];
            const auto code = static_cast<int32_t>(codes >> (k % 4 * 8 + k / 16 * 4) & 15U);
            sum += code * input_->x[block][group][token][k];
          }
          const float scale =
              input_->scale[expert][group][output] * input_->x_scale[block][group][token];
          acc = std::fmaf(static_cast<float>(sum), scale, acc);
          acc = std::fmaf(
              input_->minimum[expert][group][output], input_->x_sum[block][group][token], acc);
        }
      }
      want_[static_cast<size_t>(row * Shape::kTile + output)] =
          (s[0] + s[1]) + (s[2] + s[3]) + input_->bias[expert][output];
    }
  }

  bool is_right(BlocksBug bug) { return same(run_blocks(bug, *input_), want_); }

  void expect(const char* name, const char* words, BlocksBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  std::unique_ptr<BlocksInput> input_;
  std::vector<float> want_;
};

TEST_F(Blocks, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(BlocksBug::kNone)); });
}

TEST_F(Blocks, EveryPlantedBugIsCaught) {
  using enum BlocksBug;
  expect("no barrier before the fold", "race: ", kNoBarrierBeforeFold);
  expect("no barrier before reuse", "race: a write that a read may", kNoBarrierBeforeReuse);
  expect("segment one group short", "wrong bits", kSegmentOneShort);
  expect("segments overlap", "wrong bits", kSegmentOverlaps);
  expect("segments share a place", "race: two writes", kSegmentsShareAPlace);
  expect("segments folded in order", "wrong bits", kFoldInOrder);
  expect("high codes first", "wrong bits", kHighCodesFirst);
  expect("chunk of the neighbour", "wrong bits", kChunkOfTheNeighbour);
  expect("sums transposed", "wrong bits", kSumsTransposed);
  expect("scale of the first half", "wrong bits", kScaleOfTheFirstHalf);
  expect("token's scale by lane", "wrong bits", kTokenScaleOfTheLane);
  expect("scale by the segment", "wrong bits", kScaleOfTheSegment);
  expect("no minimum", "wrong bits", kNoMinimum);
  expect("tokens past the expert's", "wrong bits", kUnmaskedTokens);
  expect("outputs past n", "wrong bits", kUnmaskedOutputs);
  expect("one tile only", "wrong bits", kOneTileOnly);
  expect("expert of the block", "wrong bits", kExpertOfTheBlock);
  expect("one expert more", "race: writes of two blocks", kOneExpertMore);
  expect("bias of the first expert", "wrong bits", kBiasOfTheFirstExpert);
  expect("mma_s8 by a part of a warp", "mma_s8", kPartOfAWarp);
}

class Router : public testing::Test {
 protected:
  using Shape = RouterShape;

  Router()
      : x_(size_t{Shape::kTokens} * Shape::kStride),
        w_(size_t{Shape::kExperts} * Shape::kStride, std::numeric_limits<float>::quiet_NaN()) {
    Random random(75);
    for (size_t row = 0; row < Shape::kTokens; ++row) {
      for (size_t k = 0; k < Shape::kK; ++k) x_[row * Shape::kStride + k] = random.normal();
    }
    // The second half of the experts repeats the first, so that the last one chosen is of a pair.
    constexpr size_t kHalf = Shape::kExperts / 2;
    for (size_t expert = 0; expert < kHalf; ++expert) {
      for (size_t k = 0; k < Shape::kK; ++k) {
        const float value = 0.1F * random.normal();
        w_[expert * Shape::kStride + k] = value;
        w_[(expert + kHalf) * Shape::kStride + k] = value;
      }
    }
    std::vector<float> ids;
    std::vector<float> weights;
    for (size_t row = 0; row < Shape::kTokens; ++row) {
      std::vector<float> logits(Shape::kExperts);
      for (size_t expert = 0; expert < logits.size(); ++expert) {
        logits[expert] = logit(&x_[row * Shape::kStride], &w_[expert * Shape::kStride]);
      }
      want_.insert(want_.end(), logits.begin(), logits.end());
      choose(logits, ids, weights);
    }
    want_.insert(want_.end(), Shape::kExperts, -1.0F);
    want_.insert(want_.end(), ids.begin(), ids.end());
    want_.insert(want_.end(), weights.begin(), weights.end());
  }

  static float logit(const float* x, const float* w) {
    constexpr int32_t kGroups = (Shape::kK + 31) / 32;
    std::array<float, Shape::kSegments> s{};
    for (int32_t segment = 0; segment < Shape::kSegments; ++segment) {
      const int32_t end = std::min((segment + 1) * kGroups / Shape::kSegments * 32, Shape::kK);
      float& sum = s[static_cast<size_t>(segment)];
      for (int32_t k = segment * kGroups / Shape::kSegments * 32; k < end; ++k) {
        sum = std::fmaf(w[k], x[k], sum);
      }
    }
    return (s[0] + s[1]) + (s[2] + s[3]);
  }

  static void choose(const std::vector<float>& logits,
                     std::vector<float>& ids,
                     std::vector<float>& weights) {
    std::vector<size_t> order(logits.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    const float top = logits[order[0]];
    order.resize(Shape::kTopK);
    std::ranges::sort(order);
    float sum = 0;
    for (const size_t id : order) sum += cuda::exp_of(logits[id] - top);
    for (const size_t id : order) {
      ids.push_back(static_cast<float>(id));
      weights.push_back(cuda::exp_of(logits[id] - top) / sum);
    }
  }

  bool is_right(RouterBug bug) { return same(run_router(bug, x_, w_), want_); }

  void expect(const char* name, const char* words, RouterBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  std::vector<float> x_;
  std::vector<float> w_;
  std::vector<float> want_;
};

TEST_F(Router, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(RouterBug::kNone)); });
}

TEST_F(Router, EveryPlantedBugIsCaught) {
  using enum RouterBug;
  expect("no barrier before the fold", "race: ", kNoBarrierBeforeFold);
  expect("no barrier before reuse", "race: a write that a read may", kNoBarrierBeforeReuse);
  expect("segment one group short", "wrong bits", kSegmentOneShort);
  expect("segments overlap", "wrong bits", kSegmentOverlaps);
  expect("columns past K", "wrong bits", kUnmaskedColumns);
  expect("segments folded in order", "wrong bits", kFoldInOrder);
  expect("two chains", "wrong bits", kTwoChains);
  expect("tokens past the last", "wrong bits", kUnmaskedTokens);
  expect("experts past the last", "race: writes of two blocks", kUnmaskedOutputs);
  expect("sums of one token", "wrong bits", kSumsOfOneToken);
  expect("higher id first", "wrong bits", kHigherIdFirst);
  expect("taken not kept", "wrong bits", kTakenNotKept);
  expect("experts of one round", "wrong bits", kExpertsOfOneRound);
  expect("one chosen less", "wrong bits", kOneChosenLess);
  expect("ids by rank", "wrong bits", kIdsByRank);
  expect("top not taken off", "wrong bits", kTopNotTakenOff);
  expect("no __syncwarp before the sum", "race: ", kNoSyncBeforeSum);
  expect("sum not shared", "wrong bits", kSumNotShared);
}

}  // namespace
}  // namespace sluice::kernels::test
