// SPDX-License-Identifier: Apache-2.0
// Rows of e4m3 that CUDA operators write, against the text of kernels/gemm.h in plain loops: a code
// is the nearest of all codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

double value_of(int magnitude) {
  const int exponent = magnitude >> 3;
  const double mantissa = magnitude & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

// Returns the nearest code, the even one of two equally near.
uint8_t nearest_code(float value) {
  const double magnitude = std::abs(static_cast<double>(value));
  int best = 0;
  for (int code = 1; code <= 0x7E; ++code) {
    const double distance = std::abs(value_of(code) - magnitude);
    const double before = std::abs(value_of(best) - magnitude);
    if (distance < before || (distance == before && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

struct Coded {
  float scale;
  std::vector<uint8_t> codes;
};

// `largest`: the largest magnitude of the group or of a wider row.
Coded code(const std::vector<float>& x, float largest, bool finite, float given) {
  const float scale = given != 0 ? given : largest / 448.0F;
  const float inverse = 1.0F / scale;
  Coded coded{.scale = scale, .codes = std::vector<uint8_t>(x.size())};
  if (!finite) {
    coded.scale = std::numeric_limits<float>::quiet_NaN();
    return coded;
  }
  if (std::isinf(inverse)) {
    coded.scale = 0;
    return coded;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    coded.codes[i] = nearest_code(std::clamp(x[i] * inverse, -448.0F, 448.0F));
  }
  return coded;
}

// Writes row `row` of `out` from the k values of x; `wider`: values of the row elsewhere.
void write_row(const Activations& out,
               int64_t row,
               const float* x,
               const std::vector<float>& wider = {}) {
  const bool groups = out.format == ActivationFormat::kE4M3Group;
  const int64_t stored = e4m3_row_bytes(out.k);
  const int64_t width = groups ? kE4M3GroupColumns : stored;
  for (int64_t begin = 0; begin < stored; begin += width) {
    std::vector<float> own(static_cast<size_t>(width));
    for (int64_t i = begin; i < std::min<int64_t>(begin + width, out.k); ++i) {
      own[static_cast<size_t>(i - begin)] = x[i];
    }
    float largest = 0;
    bool finite = true;
    for (const std::vector<float>& values : {own, wider}) {
      for (const float value : values) {
        finite = finite && std::isfinite(value);
        largest = std::max(largest, std::abs(value));
      }
    }
    const Coded coded = code(own, largest, finite, out.static_scale);
    *activation_group(out, row, begin / kQuantGroup).scale = coded.scale;
    for (int64_t i = 0; i < width; ++i) {
      const ActivationGroup group = activation_group(out, row, (begin + i) / kQuantGroup);
      static_cast<uint8_t*>(group.codes)[i % kQuantGroup] = coded.codes[static_cast<size_t>(i)];
    }
  }
}

// Returns ordinary rows of several sizes, and each kind with codes of its own: too small, infinite,
// NaN, zero, ties of codes.
std::vector<float> make_rows(int32_t rows, int32_t k, uint64_t seed) {
  Random random(seed);
  std::vector<float> x = random.normals(static_cast<size_t>(rows) * static_cast<size_t>(k));
  for (int32_t row = 0; row < rows; ++row) {
    float* const own = x.data() + int64_t{row} * k;
    const float size = std::ldexp(1.0F, row % 9 * 5 - 20);
    for (int32_t i = 0; i < k; ++i) own[i] *= size;
    if (row % 9 == 3) own[k / 2] = std::numeric_limits<float>::infinity();
    if (row % 9 == 4) own[k - 1] = -std::numeric_limits<float>::quiet_NaN();
    if (row % 9 == 5) std::fill_n(own, k, 0.0F);
    if (row % 9 == 6) std::fill_n(own, k, 0x1p-148F);
    if (row % 9 == 7) {
      for (int32_t i = 0; i < k; ++i) own[i] = static_cast<float>(i % 449) / 2;
      own[0] = 448;
    }
  }
  return x;
}

class CudaFp8Rows : public ::testing::TestWithParam<ActivationFormat> {};

constexpr auto kName = [](const auto& info) {
  return info.param == ActivationFormat::kE4M3Token ? "Token" : "Group";
};
INSTANTIATE_TEST_SUITE_P(Scales,
                         CudaFp8Rows,
                         ::testing::Values(ActivationFormat::kE4M3Token,
                                           ActivationFormat::kE4M3Group),
                         kName);

// Two buffers of as many rows: the expected contents and the operator's.
class Expected {
 public:
  Expected(ActivationFormat format, int32_t rows, int32_t k, float static_scale = 0)
      : want_(activation_bytes(format, rows, k)), got_(activation_bytes(format, rows, k)) {
    want = carve_activations(format, rows, k, want_.data());
    got = carve_activations(format, rows, k, got_.data());
    want.static_scale = static_scale;
    got.static_scale = static_scale;
  }

  // `launch` writes `got`; bytes that are never written stay the same.
  template <typename Launch>
  void check(Launch launch) {
    test::unify_nans(want);
    test::on_schedules([&] {
      got_.poison();
      launch();
      test::unify_nans(got);
      test::expect_same_bytes(got_.data(), want_.data(), want_.size());
    });
  }

  Activations want;
  Activations got;

 private:
  test::DeviceBytes want_;
  test::DeviceBytes got_;
};

TEST_P(CudaFp8Rows, QuantizedRowsHaveTheCodesOfTheDefinition) {
  for (const auto& [rows, k] : {std::pair{18, 200}, {9, 128}, {10, 1000}, {3, 4}}) {
    SCOPED_TRACE("k " + std::to_string(k));
    const std::vector<float> x = make_rows(rows, k, 301);
    Expected expected(GetParam(), rows, k);
    for (int32_t row = 0; row < rows; ++row) write_row(expected.want, row, x.data() + row * k);
    expected.check([&] {
      cuda::launch_quantize_activations(nullptr,
                                        {.x = x.data(), .x_stride = k, .out = expected.got});
    });
  }
}

TEST_P(CudaFp8Rows, RowsGoWhereTheyAreSent) {
  constexpr int32_t kK = 136;
  const std::vector<float> x = make_rows(3, kK, 302);
  const std::vector<int32_t> to = {7, 2, 0, 11, 4, 9};
  Expected expected(GetParam(), 12, kK);
  for (size_t i = 0; i < to.size(); ++i) {
    write_row(expected.want, to[i], x.data() + i / 2 * kK);
  }
  expected.check([&] {
    cuda::launch_quantize_activations(
        nullptr, {.x = x.data(), .x_stride = kK, .out = expected.got, .rows = to, .repeat = 2});
  });
}

TEST_P(CudaFp8Rows, ANormWritesTheCodesOfItsRow) {
  constexpr int32_t kRows = 9;
  constexpr int32_t kK = 712;
  const std::vector<float> x = make_rows(kRows, kK, 303);
  const std::vector<float> weight = Random(304).normals(kK);
  const auto cpu = test::make_device("scalar", 1);
  std::vector<float> normed(static_cast<size_t>(kRows * align_up(kK, 32)));
  Activations floats{.format = ActivationFormat::kFloat, .num_rows = kRows, .k = kK};
  floats.data = normed.data();
  RmsNormArgs args{
      .x = x.data(), .x_stride = kK, .weight = weight.data(), .eps = 1e-5F, .out = floats};
  rms_norm(cpu->context(), args);
  Expected expected(GetParam(), kRows, kK);
  for (int32_t row = 0; row < kRows; ++row) {
    write_row(expected.want, row, normed.data() + row * align_up(kK, 32));
  }
  args.out = expected.got;
  expected.check([&] { cuda::launch_rms_norm(nullptr, args); });
}

TEST_P(CudaFp8Rows, AGateWritesTheCodesOfItsRow) {
  constexpr int32_t kRows = 9;
  constexpr int32_t kK = 328;
  const std::vector<float> gate = Random(305).normals(kRows * kK, 3);
  const std::vector<float> up = make_rows(kRows, kK, 306);
  const auto cpu = test::make_device("scalar", 1);
  std::vector<float> gated(static_cast<size_t>(kRows * align_up(kK, 32)));
  Activations floats{.format = ActivationFormat::kFloat, .num_rows = kRows, .k = kK};
  floats.data = gated.data();
  GateMulArgs args{.gate = gate.data(), .up = up.data(), .stride = kK, .out = floats};
  gate_mul(cpu->context(), args);
  Expected expected(GetParam(), kRows, kK);
  for (int32_t row = 0; row < kRows; ++row) {
    write_row(expected.want, row, gated.data() + row * align_up(kK, 32));
  }
  args.out = expected.got;
  expected.check([&] { cuda::launch_gate_mul(nullptr, args); });
}

// Values beyond the scale's range get the largest code; rows that are not finite get a NaN scale.
TEST(CudaFp8Token, AStaticScaleIsThatOfEveryRow) {
  constexpr int32_t kRows = 9;
  constexpr int32_t kK = 200;
  for (const float scale : {0.01F, 3.5F, 0x1p-140F}) {
    const std::vector<float> x = make_rows(kRows, kK, 307);
    Expected expected(ActivationFormat::kE4M3Token, kRows, kK, scale);
    for (int32_t row = 0; row < kRows; ++row) write_row(expected.want, row, x.data() + row * kK);
    expected.check([&] {
      cuda::launch_quantize_activations(nullptr,
                                        {.x = x.data(), .x_stride = kK, .out = expected.got});
    });
  }
}

// A rank's columns are coded by the largest magnitude of all ranks.
TEST(CudaFp8Token, MagnitudesOfOtherColumnsCount) {
  constexpr int32_t kRows = 9;
  constexpr int32_t kK = 136;
  const std::vector<float> mine = make_rows(kRows, kK, 308);
  const std::vector<float> others = make_rows(kRows, kK, 309);
  std::vector<int32_t> magnitudes[2] = {std::vector<int32_t>(kRows), std::vector<int32_t>(kRows)};
  Expected expected(ActivationFormat::kE4M3Token, kRows, kK);
  for (int32_t row = 0; row < kRows; ++row) {
    const auto at = static_cast<size_t>(row);
    const float* const own = mine.data() + row * kK;
    const float* const other = others.data() + row * kK;
    for (int32_t i = 0; i < kK; ++i) {
      const auto bits = [](float value) { return std::bit_cast<int32_t>(value) & INT32_MAX; };
      magnitudes[0][at] = std::max(magnitudes[0][at], bits(own[i]));
      magnitudes[1][at] = std::max(magnitudes[1][at], bits(other[i]));
    }
    write_row(expected.want, row, own, {other, other + kK});
  }
  const int32_t* const parts[2] = {magnitudes[0].data(), magnitudes[1].data()};
  expected.check([&] {
    cuda::launch_quantize_activations(
        nullptr, {.x = mine.data(), .x_stride = kK, .out = expected.got, .magnitudes = parts});
  });
}

}  // namespace
}  // namespace sluice::kernels
