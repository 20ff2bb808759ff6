// SPDX-License-Identifier: Apache-2.0
// The elementary functions, compared with libm in wider precision.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/rows/math64.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using cpu::MathFunction;

std::vector<float> map(Isa isa, MathFunction function, std::vector<float> x) {
  const size_t n = x.size();
  x.resize((n + 15) / 16 * 16, 1.0F);
  std::vector<float> out(x.size());
  cpu::simd_table(isa).map(function, x.data(), static_cast<int32_t>(x.size()), out.data());
  out.resize(n);
  return out;
}

Isa best_isa() { return test::make_device("auto", 1)->context().isa; }

// Returns every `step`-th float of [from, to], both of one sign.
std::vector<float> floats(float from, float to, uint32_t step) {
  std::vector<float> values;
  uint32_t a = std::bit_cast<uint32_t>(from);
  uint32_t b = std::bit_cast<uint32_t>(to);
  if (a > b) std::swap(a, b);
  for (uint64_t bits = a; bits <= b; bits += step) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return values;
}

double ulps(float got, double wanted) {
  const auto nearest = static_cast<float>(wanted);
  const double ulp =
      static_cast<double>(std::nextafter(std::fabs(nearest), 2e38F) - std::fabs(nearest));
  return std::fabs(static_cast<double>(got) - wanted) / ulp;
}

double worst(MathFunction function,
             const std::vector<float>& x,
             const std::function<double(double)>& exact) {
  const std::vector<float> got = map(best_isa(), function, x);
  double error = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error = std::max(error, ulps(got[i], exact(static_cast<double>(x[i]))));
  }
  return error;
}

TEST(Math, ExpStaysWithinItsBoundOverItsRange) {
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LT(worst(MathFunction::kExp, floats(-1e-8F, -87.3F, 97), exact), 1.1);
  EXPECT_LT(worst(MathFunction::kExp, floats(1e-8F, 88.0F, 97), exact), 1.1);
}

TEST(Math, ExpIsZeroBelowItsCutAndNeverDenormal) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> got = map(best_isa(),
                                     MathFunction::kExp,
                                     {-87.3F,
                                      std::nextafter(-87.3F, -100.0F),
                                      -88.0F,
                                      -1e4F,
                                      -3.4e38F,
                                      -inf,
                                      0.0F,
                                      -0.0F,
                                      88.37F,
                                      89.0F,
                                      3.4e38F,
                                      inf,
                                      std::nanf("")});
  EXPECT_GE(got[0], std::numeric_limits<float>::min());
  for (int i = 1; i <= 5; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), 0U) << i;
  EXPECT_EQ(got[6], 1.0F);
  EXPECT_EQ(got[7], 1.0F);
  for (int i = 9; i <= 11; ++i) EXPECT_EQ(got[i], got[8]) << i;
  EXPECT_GT(got[8], 2.3e38F);
  EXPECT_TRUE(std::isnan(got[12]));
}

// A GPU's NaN is 0x7FFFFFFF; files and other workers' caches may hold any.
TEST(Math, ExpAndTanhOfEveryNaNAreNaN) {
  std::vector<float> nans;
  for (const uint32_t bits : {0x7FFFFFFFU, 0xFFFFFFFFU, 0x7FC00000U, 0xFFC00000U, 0x7FC000FFU,
                              0x7FC00081U, 0x7F800001U, 0xFFF00155U}) {
    nans.push_back(std::bit_cast<float>(bits));
  }
  for (const Isa isa : {Isa::kScalar, best_isa()}) {
    for (const MathFunction function : {MathFunction::kExp, MathFunction::kTanh}) {
      const std::vector<float> got = map(isa, function, nans);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(std::isnan(got[i])) << i << ": " << got[i];
    }
  }
}

TEST(Math, LogStaysWithinItsBound) {
  const auto exact = [](double x) { return std::log(x); };
  EXPECT_LT(worst(MathFunction::kLog, floats(1e-37F, 3e38F, 997), exact), 1.5);
  EXPECT_LT(worst(MathFunction::kLog, floats(0.7F, 1.42F, 7), exact), 1.5);
  EXPECT_EQ(map(best_isa(), MathFunction::kLog, {1.0F})[0], 0.0F);
}

TEST(Math, TanhAndSiluStayWithinTheirBounds) {
  const auto tanh = [](double x) { return std::tanh(x); };
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  EXPECT_LT(worst(MathFunction::kTanh, floats(1e-6F, 30.0F, 97), tanh), 3.0);
  EXPECT_LT(worst(MathFunction::kTanh, floats(-1e-6F, -30.0F, 97), tanh), 3.0);
  EXPECT_LT(worst(MathFunction::kSilu, floats(1e-6F, 100.0F, 97), silu), 3.0);
  EXPECT_LT(worst(MathFunction::kSilu, floats(-1e-6F, -80.0F, 97), silu), 3.0);
}

TEST(Math, EveryInstructionSetGivesTheSameBits) {
  std::vector<float> x = floats(1e-30F, 3e38F, 30011);
  const std::vector<float> negative = floats(-1e-30F, -3e38F, 30011);

  const struct {
    MathFunction function;
    bool negative;
  } rows[] = {{MathFunction::kExp, true},
              {MathFunction::kLog, false},
              {MathFunction::kTanh, true},
              {MathFunction::kSilu, true}};

  const auto devices = test::devices({1});
  for (const auto& row : rows) {
    std::vector<float> input = x;
    if (row.negative) input.insert(input.end(), negative.begin(), negative.end());
    const std::vector<float> wanted = map(Isa::kScalar, row.function, input);
    for (const auto& device : devices) {
      const std::vector<float> got = map(device.isa, row.function, input);
      EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size() * sizeof(float)), 0)
          << device.name << " function " << static_cast<int>(row.function);
    }
  }
}

TEST(Math, DoubleLogarithmAndPowerAreAccurate) {
  test::Random random(7);
  double log_error = 0;
  double exp_error = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = std::exp2(60.0 * (static_cast<double>(random.uniform()) - 0.5));
    const long double log_exact = std::log2(static_cast<long double>(x));
    const double scale = std::max(1.0, static_cast<double>(std::fabs(log_exact)));
    log_error =
        std::max(log_error, std::fabs(static_cast<double>(cpu::log2_f64(x) - log_exact)) / scale);
    const double y = 80.0 * (static_cast<double>(random.uniform()) - 0.5);
    const long double exp_exact = std::exp2(static_cast<long double>(y));
    exp_error = std::max(
        exp_error, static_cast<double>(std::fabs((cpu::exp2_f64(y) - exp_exact) / exp_exact)));
  }
  EXPECT_LT(log_error, 4e-16);
  EXPECT_LT(exp_error, 5e-16);
  EXPECT_EQ(cpu::log2_f64(1.0), 0.0);
  EXPECT_EQ(cpu::log2_f64(1024.0), 10.0);
  EXPECT_EQ(cpu::exp2_f64(-3.0), 0.125);
}

TEST(Math, SineAndCosineStayAccurateUpToAMillionRadians) {
  test::Random random(8);
  double error = 0;
  const auto check = [&error](double x) {
    const cpu::SinCos got = cpu::sincos_f64(x);
    const auto wide = static_cast<long double>(x);
    error = std::max(error, std::fabs(static_cast<double>(got.sin - std::sin(wide))));
    error = std::max(error, std::fabs(static_cast<double>(got.cos - std::cos(wide))));
  };
  for (int i = 0; i < 200000; ++i) {
    const double unit = static_cast<double>(random.uniform());
    check(unit * 8);
    check(unit * 1e6);
    check(-unit * 1e6);
  }
  for (int64_t n = 0; n < 630000; n += 37) check(static_cast<double>(n) * 1.5707963267948966);
  EXPECT_LT(error, 3e-16);
}

}  // namespace
}  // namespace sluice::kernels
