// SPDX-License-Identifier: Apache-2.0
// Planted bugs of experts' products with weights in blocks.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/planted_products.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::test {
namespace {

class Blocks : public ::testing::Test {
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

}  // namespace
}  // namespace sluice::kernels::test
