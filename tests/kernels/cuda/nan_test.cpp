// SPDX-License-Identifier: Apache-2.0
// NaN and values out of range on a GPU: the shim's instructions give 0x7FFFFFFF like a GPU's, and
// functions that take floats apart by their bits keep NaN a NaN.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cuda/math.h"
#include "kernels/cuda/narrow.h"
#include "kernels/cuda/ptx.h"
#include "tests/support/simt/simt.h"

namespace sluice::simt {
namespace {

namespace cuda = kernels::cuda;

constexpr uint32_t kGpusNan = 0x7FFFFFFF;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> nans() {
  std::vector<float> values;
  for (const uint32_t bits : {kGpusNan,
                              0xFFFFFFFFU,
                              0x7FC00000U,
                              0xFFC00000U,
                              0x7FC000FFU,
                              0x7FC00081U,
                              0x7F800001U,
                              0xFFF00155U}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  return values;
}

uint32_t bits(float a) { return std::bit_cast<uint32_t>(a); }

TEST(SimtNan, EveryInstructionForFloatsGivesTheGpusNan) {
  for (const float nan : nans()) {
    EXPECT_EQ(bits(__fadd_rn(nan, 1.0F)), kGpusNan);
    EXPECT_EQ(bits(__fsub_rn(1.0F, nan)), kGpusNan);
    EXPECT_EQ(bits(__fmul_rn(nan, nan)), kGpusNan);
    EXPECT_EQ(bits(__fdiv_rn(1.0F, nan)), kGpusNan);
    EXPECT_EQ(bits(__fmaf_rn(1.0F, 2.0F, nan)), kGpusNan);
    EXPECT_EQ(bits(__fsqrt_rn(nan)), kGpusNan);
  }
  EXPECT_EQ(bits(__fadd_rn(kInfinity, -kInfinity)), kGpusNan);
  EXPECT_EQ(bits(__fsub_rn(kInfinity, kInfinity)), kGpusNan);
  EXPECT_EQ(bits(__fmul_rn(0.0F, kInfinity)), kGpusNan);
  EXPECT_EQ(bits(__fdiv_rn(0.0F, 0.0F)), kGpusNan);
  EXPECT_EQ(bits(__fmaf_rn(0.0F, kInfinity, 1.0F)), kGpusNan);
  EXPECT_EQ(bits(__fsqrt_rn(-1.0F)), kGpusNan);
}

TEST(SimtNan, ConversionsGiveWhatThePtxManualSays) {
  for (const float nan : nans()) {
    EXPECT_EQ(__float2int_rn(nan), 0);
    EXPECT_EQ(__float2ull_rz(nan), 0x8000000000000000U);
    EXPECT_EQ(gpu::ptx::pack_bf16(nan, 1.0F), 0x3F807FFFU);
    EXPECT_EQ(gpu::ptx::pack_f16(1.0F, nan), 0x7FFF3C00U);
  }
  EXPECT_EQ(__float2int_rn(3e9F), INT32_MAX);
  EXPECT_EQ(__float2int_rn(-kInfinity), INT32_MIN);
  EXPECT_EQ(__float2int_rn(-0x1p31F), INT32_MIN);
  EXPECT_EQ(__float2ull_rz(-1.0F), 0U);
  EXPECT_EQ(__float2ull_rz(kInfinity), UINT64_MAX);
  EXPECT_EQ(__float2ull_rz(0x1.8p63F), 0xC000000000000000U);
}

TEST(CudaMath, FunctionsOfNanAreNan) {
  for (const float nan : nans()) {
    EXPECT_TRUE(std::isnan(cuda::exp_of(nan))) << std::hex << bits(nan);
    EXPECT_TRUE(std::isnan(cuda::tanh_of(nan))) << std::hex << bits(nan);
    EXPECT_TRUE(std::isnan(cuda::silu_of(nan))) << std::hex << bits(nan);
  }
}

TEST(CudaMath, ExpIsZeroBelowItsCutAndNeverSubnormal) {
  EXPECT_GE(cuda::exp_of(kernels::kExpBottom), std::numeric_limits<float>::min());
  EXPECT_EQ(bits(cuda::exp_of(kernels::kExpUnder)), 0U);
  EXPECT_EQ(kernels::kExpUnder, std::nextafter(kernels::kExpBottom, -kInfinity));
  EXPECT_EQ(bits(cuda::exp_of(-kInfinity)), 0U);
  EXPECT_EQ(cuda::exp_of(0.0F), 1.0F);
  EXPECT_EQ(cuda::exp_of(kInfinity), cuda::exp_of(kernels::kExpTop));
}

TEST(CudaNarrow, NanStaysNanIn16BitsAndBack) {
  for (const float nan : nans()) {
    EXPECT_TRUE(std::isnan(cuda::from_bf16(cuda::to_bf16(nan)))) << std::hex << bits(nan);
    EXPECT_TRUE(std::isnan(cuda::from_half(cuda::to_half(nan)))) << std::hex << bits(nan);
  }
}

}  // namespace
}  // namespace sluice::simt
