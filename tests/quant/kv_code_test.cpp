// SPDX-License-Identifier: Apache-2.0
// Cached int8 and fp8 rows against numpy and torch (tests/golden/quant/make_kv_goldens.py).
#include "quant/kv_code.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/quant/golden.h"

namespace sluice {
namespace {

constexpr size_t kWidth = 64;

void expect_golden(DType dtype, const std::string& name) {
  const auto rows = read_golden<float>("kv.f32");
  const auto codes = read_golden<uint8_t>("kv." + name);
  const auto scales = read_golden<float>("kv." + name + "_scale");
  ASSERT_EQ(codes.size(), rows.size());
  ASSERT_EQ(scales.size() * kWidth, rows.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    std::vector<uint8_t> own(kWidth);
    const float scale =
        encode_kv_row(dtype, std::span(rows).subspan(i * kWidth, kWidth), own.data());
    if (std::isnan(scales[i])) {
      EXPECT_TRUE(std::isnan(scale)) << "row " << i;
    } else {
      EXPECT_EQ(std::memcmp(&scale, &scales[i], sizeof(float)), 0) << "row " << i;
    }
    EXPECT_EQ(std::memcmp(own.data(), codes.data() + i * kWidth, kWidth), 0) << "row " << i;
  }
}

TEST(KvCode, Int8RowsEqualNumpys) { expect_golden(DType::kI8, "int8"); }

TEST(KvCode, Fp8RowsEqualTorchs) { expect_golden(DType::kF8E4M3, "e4m3"); }

TEST(KvCode, EveryE4m3CodeHasTorchsValueAndComesBack) {
  const auto values = read_golden<float>("e4m3.f32");
  ASSERT_EQ(values.size(), 256U);
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    const float wanted = values[static_cast<size_t>(code)];
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    EXPECT_EQ(std::memcmp(&value, &wanted, sizeof(float)), 0) << code;
    EXPECT_EQ(float_to_e4m3(value), code);
  }
  EXPECT_EQ(float_to_e4m3(464.0F), 0x7E);
  EXPECT_EQ(float_to_e4m3(-465.0F), 0xFF);
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::infinity()), 0x7F);
}

TEST(KvCode, TheCodeOfEachValueOfE4M3IsItsOwn) {
  for (int code = 0; code < 0x100; ++code) {
    if ((code & 0x7F) == 0x7F) continue;
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    EXPECT_EQ(e4m3_code(value), code);
    EXPECT_EQ(float_to_e4m3(value), code);
  }
}

// A value is off by at most half a step of its code: scale / 2, or 1/16 of itself.
TEST(KvCode, ValuesComeBackWithinHalfAStep) {
  const auto rows = read_golden<float>("kv.f32");
  for (const DType dtype : {DType::kI8, DType::kF8E4M3}) {
    for (size_t i = 0; i < rows.size(); i += kWidth) {
      uint8_t codes[kWidth];
      const float scale = encode_kv_row(dtype, std::span(rows).subspan(i, kWidth), codes);
      if (std::isnan(scale) || scale == 0) continue;
      for (size_t d = 0; d < kWidth; ++d) {
        const double x = double{rows[i + d]};
        const double step = dtype == DType::kI8 ? 0.5 * double{scale}
                                                : std::max(std::fabs(x) / 16, double{scale} / 1024);
        EXPECT_NEAR(double{kv_code_value(dtype, codes[d])} * double{scale}, x, step * 1.00001)
            << "row " << i / kWidth << " element " << d;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
