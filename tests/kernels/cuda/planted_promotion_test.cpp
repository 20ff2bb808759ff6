// SPDX-License-Identifier: Apache-2.0
// Checks that the tests of FP8 layers see possible bugs of their kernels: in chains, promotions and
// scales, and in the ring that feeds them.
#include "tests/kernels/cuda/planted_promotion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::kernels::test {
namespace {

using Shape = PromotionShape;

class Promotions : public testing::Test {
 protected:
  Promotions() {
    Random random(91);
    const auto fill_codes = [&](int rows) {
      std::vector<uint8_t> codes;
      for (int i = 0; i < rows * Shape::kRow; ++i) {
        const auto code = static_cast<uint8_t>(random.below(256));
        codes.push_back((code & 0x7FU) == 0x7FU ? uint8_t{0} : code);
      }
      return codes;
    };
    const auto fill_scales = [&](int count) {
      std::vector<float> scales;
      for (int i = 0; i < count; ++i) scales.push_back(random.uniform() * 0.01F + 0.001F);
      return scales;
    };
    data_ = {.x = fill_codes(Shape::kTokens),
             .w = fill_codes(Shape::kOutputs),
             .w_scales = fill_scales(Shape::kOutputs * Shape::kBlocks),
             .x_scales = fill_scales(Shape::kTokens * Shape::kBlocks)};
    for (int token = 0; token < Shape::kTokens; ++token) {
      for (int output = 0; output < Shape::kOutputs; ++output) want_.push_back(sum(token, output));
    }
  }

  // Returns a sum by launch.h's text in plain loops.
  [[nodiscard]] float sum(int token, int output) const {
    float s[Shape::kSegments] = {};
    for (int segment = 0; segment < Shape::kSegments; ++segment) {
      const int end = Shape::first_group(segment + 1);
      for (int group = Shape::first_group(segment); group < end;) {
        const int block = group / 4;
        float p = 0;
        for (; group < end && group / 4 == block; ++group) {
          uint8_t a[32] = {};
          uint8_t b[32] = {};
          for (int i = 0; i < 32 && 32 * group + i < Shape::kK; ++i) {
            a[i] = data_.w[static_cast<size_t>(output * Shape::kRow + 32 * group + i)];
            b[i] = data_.x[static_cast<size_t>(token * Shape::kRow + 32 * group + i)];
          }
          p = simt::wgmma_float8_step(simt::Float8::kE4M3, a, simt::Float8::kE4M3, b, p);
        }
        const float factor = data_.w_scales[static_cast<size_t>(output * Shape::kBlocks + block)] *
                             data_.x_scales[static_cast<size_t>(block * Shape::kTokens + token)];
        s[segment] = std::fma(p, factor, s[segment]);
      }
    }
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }

  bool is_right(PromotionBug bug) { return same(run_promotion(bug, data_), want_); }

  void expect(const char* name, const char* words, PromotionBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

  PromotionData data_;
  std::vector<float> want_;
};

TEST_F(Promotions, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(PromotionBug::kNone)); });
}

TEST_F(Promotions, EveryPlantedBugIsCaught) {
  using enum PromotionBug;
  expect("no promotion", "wrong bits", kNoPromotion);
  expect("chain goes on", "wrong bits", kChainGoesOn);
  expect("long chain", "wrong bits", kLongChain);
  expect("run past its block", "wrong bits", kRunPastItsBlock);
  expect("scale of the next block", "wrong bits", kScaleOfTheNextBlock);
  expect("scale of the next output", "wrong bits", kScaleOfTheNextOutput);
  expect("x scale of the next block", "wrong bits", kXScaleOfTheNextBlock);
  expect("x scale of the next token", "wrong bits", kXScaleOfTheNextToken);
  expect("block of the segment", "wrong bits", kBlockOfTheSegment);
  expect("product then sum", "wrong bits", kProductThenSum);
  expect("wrong segment", "wrong bits", kWrongSegment);
  expect("fold in a chain", "wrong bits", kFoldInAChain);
  expect("add before wait", "wrong bits", kAddBeforeWait);
  expect("release before wait", "race: ", kReleaseBeforeWait);
  expect("end without wait", "ended without wait_for_launches", kEndWithoutWait);
  expect("store before wait", "a write before wait_for_launches", kStoreBeforeWait);
}

}  // namespace
}  // namespace sluice::kernels::test
