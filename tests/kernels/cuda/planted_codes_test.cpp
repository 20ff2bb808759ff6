// SPDX-License-Identifier: Apache-2.0
// Checks that the shim sees bugs of linear layers whose weights become BF16 in registers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "quant/format.h"
#include "tests/kernels/cuda/planted_check.h"
#include "tests/kernels/cuda/planted_codes.h"
#include "tests/kernels/devices.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::kernels::test {
namespace {

class Codes : public testing::Test {
 protected:
  using Shape = CodesShape;

  Codes() : groups_(sizeof(CodesGroup) * Shape::kGroups), x_(Shape::kRows * Shape::kK * 2) {
    Random random(77);
    for (int32_t i = 0; i < Shape::kGroups; ++i) {
      CodesGroup& group = groups()[i];
      for (auto& of_register : group.codes) {
        for (uint32_t& codes : of_register) codes = random.bits();
      }
      for (float& scale : group.scale) scale = random.normal();
      for (uint8_t& zero : group.zero) zero = static_cast<uint8_t>(random.below(256));
    }
    for (int32_t i = 0; i < Shape::kRows * Shape::kK; ++i) x()[i] = float_to_bf16(random.normal());
    for (int32_t token = 0; token < Shape::kRows; ++token) {
      for (int32_t output = 0; output < Shape::kTile; ++output) {
        want_.push_back(segment(0, token, output) + segment(1, token, output));
      }
    }
  }

  [[nodiscard]] CodesGroup* groups() const { return reinterpret_cast<CodesGroup*>(groups_.data()); }

  [[nodiscard]] uint16_t* x() const { return reinterpret_cast<uint16_t*>(x_.data()); }

  [[nodiscard]] float segment(int32_t number, int32_t token, int32_t output) const {
    float acc = 0;
    for (int32_t i = Shape::first_group(number); i < Shape::first_group(number + 1); ++i) {
      const CodesGroup& group = groups()[i];
      float sum = 0;
      for (int32_t step = 0; step < 2; ++step) {
        uint16_t w[16];
        for (int32_t k = 0; k < 16; ++k) {
          const uint32_t codes = group.codes[k / 4][output] >> (k % 4 * 8 + step * 4) & 15U;
          w[k] = float_to_bf16(
              static_cast<float>(static_cast<int32_t>(codes) - int32_t{group.zero[output]}));
        }
        sum = simt::tensor_core_step(
            simt::Half::kBF16, w, x() + token * Shape::kK + i * 32 + step * 16, sum);
      }
      acc = std::fmaf(sum, group.scale[output], acc);
    }
    return acc;
  }

  bool is_right(CodesBug bug) { return same(run_codes(bug, groups(), x()), want_); }

  void expect(const char* name, const char* words, CodesBug bug) {
    expect_caught(name, words, [&] { return is_right(bug); });
  }

 private:
  DeviceBytes groups_;
  DeviceBytes x_;
  std::vector<float> want_;
};

TEST_F(Codes, WithoutABugNothingIsReported) {
  on_schedules([&] { ASSERT_TRUE(is_right(CodesBug::kNone)); });
}

TEST_F(Codes, EveryPlantedBugIsCaught) {
  using enum CodesBug;
  expect("no wait for the copies", "race: ", kNoWait);
  expect("wait too weak", "race: ", kWaitTooWeak);
  expect("no sync after the wait", "race: ", kNoSyncAfterWait);
  expect("copy before the sync", "race: ", kCopyBeforeSync);
  expect("stage of the next", "wrong bits", kStageOfTheNext);
  expect("high codes first", "wrong bits", kHighCodesFirst);
  expect("chunk of the neighbour", "wrong bits", kChunkOfTheNeighbour);
  expect("odd codes first", "wrong bits", kOddCodesFirst);
  expect("tokens in order", "wrong bits", kTokensInOrder);
  expect("scale of the group beside", "wrong bits", kScaleOfTheNeighbourGroup);
  expect("scale of the first half", "wrong bits", kScaleOfTheFirstHalf);
  expect("zero point minus one", "wrong bits", kZeroMinusOne);
  expect("zero of the group beside", "wrong bits", kZeroOfTheNeighbourGroup);
  expect("no zero point", "wrong bits", kNoZero);
  expect("no promotion", "wrong bits", kNoPromotion);
  expect("promoted every second group", "wrong bits", kPromotedByTwos);
  expect("promoted by halves", "wrong bits", kPromotedByHalves);
  expect("segment one group short", "wrong bits", kSegmentOneShort);
  expect("no barrier before the fold", "race: ", kNoBarrierBeforeFold);
}

}  // namespace
}  // namespace sluice::kernels::test
