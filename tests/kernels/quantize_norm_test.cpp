// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/device.h"
#include "kernels/norm.h"
#include "quant/kv_code.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"

namespace sluice::kernels::testing {
namespace {

// A row quantized by the text of kernels/gemm.h.
struct ReferenceRow {
  std::vector<int32_t> codes;
  std::vector<float> scales, sums;
  std::vector<int32_t> code_sums, half_sums;
};

ReferenceRow quantize_reference(const std::vector<float>& x, int32_t limit) {
  ReferenceRow row;
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    const size_t end = std::min(x.size(), begin + 32);
    float largest = 0;
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
    float scale = largest / static_cast<float>(limit);
    const float inverse = 1.0F / scale;
    if (std::isinf(inverse)) scale = 0;
    int32_t sum = 0;
    int32_t half_sum = 0;
    for (size_t i = begin; i < begin + 32; ++i) {
      const bool zero = i >= end || scale == 0;
      const int32_t code = zero ? 0 : static_cast<int32_t>(std::nearbyint(x[i] * inverse));
      row.codes.push_back(code);
      sum += code;
      if (i < begin + 16) half_sum = sum;
    }
    row.scales.push_back(scale);
    row.sums.push_back(static_cast<float>(sum) * scale);
    row.code_sums.push_back(sum);
    row.half_sums.push_back(half_sum);
  }
  return row;
}

// Checks codes and scales of an e4m3 row, in groups of `span` columns.
void expect_e4m3_row(const Activations& out,
                     int64_t row,
                     const std::vector<float>& values,
                     int64_t span,
                     const std::string& where) {
  for (int64_t begin = 0; begin < e4m3_row_bytes(out.k); begin += span) {
    const int64_t end = std::min<int64_t>(out.k, begin + span);
    float largest = 0;
    for (int64_t i = begin; i < end; ++i) {
      largest = std::max(largest, std::abs(values[static_cast<size_t>(i)]));
    }
    float scale = out.static_scale != 0 ? out.static_scale : largest / 448.0F;
    const float inverse = 1.0F / scale;
    if (std::isinf(inverse)) scale = 0;
    for (int64_t i = begin; i < begin + span && i < e4m3_row_bytes(out.k); ++i) {
      const bool zero = i >= end || scale == 0;
      const float x = zero ? 0.0F : values[static_cast<size_t>(i)] * inverse;
      const ActivationGroup group = activation_group(out, row, i / 32);
      ASSERT_EQ(static_cast<const uint8_t*>(group.codes)[i % 32],
                float_to_e4m3(std::clamp(x, -448.0F, 448.0F)))
          << where << " column " << i;
      ASSERT_EQ(std::memcmp(group.scale, &scale, sizeof(scale)), 0) << where << " column " << i;
    }
  }
}

// Checks codes, scale and code sum of a row with one scale.
void expect_token_row(const Activations& out,
                      int64_t row,
                      const std::vector<float>& values,
                      const std::string& where) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  float scale = out.static_scale != 0 ? out.static_scale : largest / 127.0F;
  const float inverse = 1.0F / scale;
  if (std::isinf(inverse)) scale = 0;
  int32_t sum = 0;
  for (int64_t i = 0; i < align_up(out.k, 32); ++i) {
    const bool zero = i >= out.k || scale == 0;
    const float x = zero ? 0.0F : values[static_cast<size_t>(i)] * inverse;
    const auto code = static_cast<int32_t>(std::nearbyint(std::clamp(x, -127.0F, 127.0F)));
    sum += code;
    const ActivationGroup group = activation_group(out, row, i / 32);
    ASSERT_EQ(static_cast<const int8_t*>(group.codes)[i % 32], code) << where << " column " << i;
    ASSERT_EQ(std::memcmp(group.scale, &scale, sizeof(scale)), 0) << where;
  }
  ASSERT_EQ(*activation_group(out, row, 0).code_sum, sum) << where;
}

std::vector<float> norm_reference(const std::vector<float>& x,
                                  const std::vector<float>& weight,
                                  float eps) {
  std::array<float, 16> lanes{};
  for (size_t i = 0; i < x.size(); ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  for (size_t half = 8; half >= 1; half /= 2) {
    for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  const float r = 1.0F / std::sqrt(lanes[0] / static_cast<float>(x.size()) + eps);
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = (x[i] * r) * weight[i];
  return y;
}

void expect_row(const Activations& out,
                int64_t row,
                const std::vector<float>& values,
                const std::string& where) {
  const int64_t groups = ceil_div(out.k, 32);
  if (out.format == ActivationFormat::kInt8Token) return expect_token_row(out, row, values, where);
  if (out.format == ActivationFormat::kE4M3Token) {
    return expect_e4m3_row(out, row, values, e4m3_row_bytes(out.k), where);
  }
  if (out.format == ActivationFormat::kE4M3Group) {
    return expect_e4m3_row(out, row, values, kE4M3GroupColumns, where);
  }
  if (out.format == ActivationFormat::kFloat) {
    const float* data = static_cast<const float*>(out.data) + row * groups * 32;
    for (size_t i = 0; i < static_cast<size_t>(groups * 32); ++i) {
      const float expected = i < values.size() ? values[i] : 0.0F;
      ASSERT_EQ(std::memcmp(&data[i], &expected, 4), 0)
          << where << " element " << i << ": " << data[i] << " vs " << expected;
    }
    return;
  }
  const bool int8 = out.format == ActivationFormat::kInt8;
  const ReferenceRow expected = quantize_reference(values, int8 ? 127 : 32767);
  for (int64_t g = 0; g < groups; ++g) {
    const ActivationGroup group = activation_group(out, row, g);
    const auto at = static_cast<size_t>(g);
    for (int64_t i = 0; i < 32; ++i) {
      const int32_t code = int8 ? static_cast<const int8_t*>(group.codes)[i]
                                : static_cast<const int16_t*>(group.codes)[i];
      ASSERT_EQ(code, expected.codes[static_cast<size_t>(g * 32 + i)]) << where << " group " << g;
    }
    ASSERT_EQ(std::memcmp(group.scale, &expected.scales[at], 4), 0) << where << " group " << g;
    ASSERT_EQ(std::memcmp(group.sum, &expected.sums[at], 4), 0) << where << " group " << g;
    ASSERT_EQ(*group.code_sum, expected.code_sums[at]) << where << " group " << g;
    ASSERT_EQ(*group.half_sum, expected.half_sums[at]) << where << " group " << g;
  }
}

constexpr std::array kFormats = {ActivationFormat::kInt8,
                                 ActivationFormat::kInt16,
                                 ActivationFormat::kFloat,
                                 ActivationFormat::kInt8Token,
                                 ActivationFormat::kE4M3Token,
                                 ActivationFormat::kE4M3Group};

// Returns rows of ordinary and of awkward values: ties, zeros, subnormals, the largest floats.
std::vector<std::vector<float>> make_rows(size_t n, std::mt19937& rng) {
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> rows(6, std::vector<float>(n));
  for (size_t i = 0; i < n; ++i) {
    rows[0][i] = normal(rng);
    rows[1][i] = i % 32 == 0 ? 127.0F : static_cast<float>(i % 32) + 0.5F;  // ties
    rows[2][i] = 0.0F;
    rows[3][i] = normal(rng) * 1e-40F;
    rows[4][i] = (i % 2 != 0 ? -1.0F : 1.0F) * std::numeric_limits<float>::max();
    rows[5][i] = normal(rng) * 3e-37F;  // scales around the smallest usable one
  }
  return rows;
}

TEST(Quantize, EqualsThePlainLoopForEveryInstructionSet) {
  std::mt19937 rng(3);
  for (const int32_t n : {1, 16, 31, 32, 33, 47, 64, 576, 1000}) {
    const auto rows = make_rows(static_cast<size_t>(n), rng);
    const int64_t stride = n + 5;
    std::vector<float> x(rows.size() * static_cast<size_t>(stride), 99.0F);
    for (size_t r = 0; r < rows.size(); ++r) {
      std::copy(rows[r].begin(), rows[r].end(), x.begin() + static_cast<int64_t>(r) * stride);
    }
    for (const auto& [name, isa, threads, device] : test::devices({2})) {
      for (const ActivationFormat format : kFormats) {
        const auto count = static_cast<int64_t>(rows.size());
        const AlignedBuffer buffer(activation_bytes(format, count, n));
        const Activations out = carve_activations(format, count, n, buffer.data());
        quantize_activations(device->context(), {.x = x.data(), .x_stride = stride, .out = out});
        for (int64_t r = 0; r < count; ++r) {
          expect_row(out,
                     r,
                     rows[static_cast<size_t>(r)],
                     name + " n " + std::to_string(n) + " row " + std::to_string(r));
        }
      }
    }
  }
}

// A checkpoint's scale is every row's; values beyond its largest code take that code.
TEST(Quantize, AStaticScaleTakesThePlaceOfEachRowsOwn) {
  std::mt19937 rng(6);
  for (const int32_t n : {33, 200}) {
    auto rows = make_rows(static_cast<size_t>(n), rng);
    std::vector<float> x;
    for (const auto& row : rows) x.insert(x.end(), row.begin(), row.end());
    for (const auto& [name, isa, threads, device] : test::devices({2})) {
      for (const auto format : {ActivationFormat::kInt8Token, ActivationFormat::kE4M3Token}) {
        for (const float scale : {0.0031F, 0.25F, 1e-39F}) {
          const auto count = static_cast<int64_t>(rows.size());
          const AlignedBuffer buffer(activation_bytes(format, count, n));
          Activations out = carve_activations(format, count, n, buffer.data());
          out.static_scale = scale;
          quantize_activations(device->context(), {.x = x.data(), .x_stride = n, .out = out});
          for (int64_t r = 0; r < count; ++r) {
            expect_row(out, r, rows[static_cast<size_t>(r)], name + " row " + std::to_string(r));
          }
        }
      }
    }
  }
}

TEST(Quantize, ANonFiniteValueIsVisibleInE4M3Rows) {
  for (const auto& [name, isa, threads, device] : test::devices({2})) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      for (const float static_scale : {0.0F, 0.5F}) {
        std::vector<float> x(2 * 300, 1.0F);
        x[300 + 200] = bad;
        for (const auto format : {ActivationFormat::kE4M3Token, ActivationFormat::kE4M3Group}) {
          const AlignedBuffer buffer(activation_bytes(format, 2, 300));
          Activations out = carve_activations(format, 2, 300, buffer.data());
          const bool token = format == ActivationFormat::kE4M3Token;
          if (token) out.static_scale = static_scale;
          quantize_activations(device->context(), {.x = x.data(), .x_stride = 300, .out = out});
          const ActivationGroup hit = activation_group(out, 1, 6);
          EXPECT_TRUE(std::isnan(*hit.scale)) << name;
          EXPECT_EQ(static_cast<const uint8_t*>(hit.codes)[3], 0) << name;
          EXPECT_EQ(std::isnan(*activation_group(out, 1, 0).scale), token) << name;
          EXPECT_FALSE(std::isnan(*activation_group(out, 0, 6).scale)) << name;
        }
      }
    }
  }
}

TEST(Quantize, ANonFiniteValueMakesItsGroupsScaleNan) {
  for (const auto& [name, isa, threads, device] : test::devices({2})) {
    for (const float bad : {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      for (const size_t at : {size_t{32}, size_t{50}, size_t{63}}) {
        std::vector<float> x(96, 1.0F);
        x[at] = bad;
        const AlignedBuffer buffer(activation_bytes(ActivationFormat::kInt8, 1, 96));
        const Activations out = carve_activations(ActivationFormat::kInt8, 1, 96, buffer.data());
        quantize_activations(device->context(), {.x = x.data(), .x_stride = 96, .out = out});
        EXPECT_EQ(*activation_group(out, 0, 0).scale, 1.0F / 127.0F);
        const ActivationGroup hit = activation_group(out, 0, 1);
        EXPECT_TRUE(std::isnan(*hit.scale)) << name;
        EXPECT_TRUE(std::isnan(*hit.sum)) << name;
        EXPECT_EQ(*hit.code_sum, 0);
        EXPECT_EQ(static_cast<const int8_t*>(hit.codes)[8], 0);
        EXPECT_EQ(*activation_group(out, 0, 2).scale, 1.0F / 127.0F);
      }
    }
  }
}

TEST(Quantize, ANonFiniteValueMakesItsTokensScaleNanAndNoOther) {
  constexpr int32_t kWidth = 96;
  for (const auto& [name, isa, threads, device] : test::devices({2})) {
    for (const float bad : {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x(size_t{3} * kWidth, -2.0F);
      x[kWidth + 50] = bad;
      const AlignedBuffer buffer(activation_bytes(ActivationFormat::kInt8Token, 3, kWidth));
      const Activations out =
          carve_activations(ActivationFormat::kInt8Token, 3, kWidth, buffer.data());
      quantize_activations(device->context(), {.x = x.data(), .x_stride = kWidth, .out = out});
      const ActivationGroup hit = activation_group(out, 1, 0);
      EXPECT_TRUE(std::isnan(*hit.scale)) << name;
      EXPECT_EQ(*hit.code_sum, 0);
      EXPECT_EQ(static_cast<const int8_t*>(hit.codes)[8], 0);
      for (const int64_t row : {0, 2}) {
        EXPECT_EQ(*activation_group(out, row, 0).scale, 2.0F / 127.0F);
        EXPECT_EQ(*activation_group(out, row, 0).code_sum, -127 * kWidth);
      }
    }
  }
}

TEST(RmsNorm, EqualsThePlainLoopForEveryInstructionSet) {
  std::mt19937 rng(4);
  std::normal_distribution<float> normal;
  for (const int32_t n : {1, 15, 16, 33, 64, 576, 2048, 1000}) {
    auto rows = make_rows(static_cast<size_t>(n), rng);
    rows.erase(rows.begin() + 4);  // the largest floats overflow the sum of squares
    std::vector<float> weight(static_cast<size_t>(n));
    for (float& w : weight) w = normal(rng);
    std::vector<float> x;
    for (const auto& row : rows) x.insert(x.end(), row.begin(), row.end());
    for (const auto& [name, isa, threads, device] : test::devices({2})) {
      for (const ActivationFormat format : kFormats) {
        const auto count = static_cast<int64_t>(rows.size());
        const AlignedBuffer buffer(activation_bytes(format, count, n));
        const Activations out = carve_activations(format, count, n, buffer.data());
        rms_norm(device->context(),
                 {.x = x.data(), .x_stride = n, .weight = weight.data(), .eps = 1e-5F, .out = out});
        for (int64_t r = 0; r < count; ++r) {
          expect_row(out,
                     r,
                     norm_reference(rows[static_cast<size_t>(r)], weight, 1e-5F),
                     name + " n " + std::to_string(n) + " row " + std::to_string(r));
        }
      }
    }
  }
}

TEST(RmsNorm, AgreesWithDoublePrecision) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  constexpr size_t kN = 576;
  std::vector<float> x(kN);
  std::vector<float> weight(kN);
  double squares = 0;
  for (size_t i = 0; i < kN; ++i) {
    x[i] = normal(rng);
    weight[i] = normal(rng);
    squares += static_cast<double>(x[i]) * x[i];
  }
  const double r = 1.0 / std::sqrt(squares / kN + 1e-5);
  const AlignedBuffer buffer(activation_bytes(ActivationFormat::kFloat, 1, kN));
  const Activations out = carve_activations(ActivationFormat::kFloat, 1, kN, buffer.data());
  auto device = Device::create({});
  ASSERT_TRUE(device.has_value());
  rms_norm((*device)->context(),
           {.x = x.data(), .x_stride = kN, .weight = weight.data(), .eps = 1e-5F, .out = out});
  for (size_t i = 0; i < kN; ++i) {
    const double expected = x[i] * r * weight[i];
    EXPECT_NEAR(static_cast<const float*>(out.data)[i], expected, std::abs(expected) * 1e-5);
  }
}

// Also of a row whose mean is far from 0, with and without a bias; in place and to another row.
TEST(LayerNorm, AgreesWithDoublesAndEveryInstructionSet) {
  for (const int32_t n : {1, 15, 33, 64, 100}) {
    test::Random random(33);
    std::vector<float> x = random.normals(static_cast<size_t>(n));
    for (float& value : x) value += 5;
    const std::vector<float> weight = random.normals(static_cast<size_t>(n));
    const std::vector<float> bias = random.normals(static_cast<size_t>(n));
    double mean = 0;
    for (const float value : x) mean += double{value} / n;
    double variance = 0;
    for (const float value : x) variance += (double{value} - mean) * (double{value} - mean) / n;
    for (const float* added : {static_cast<const float*>(nullptr), bias.data()}) {
      std::vector<float> reference;
      for (const auto& device : test::devices({1})) {
        const AlignedBuffer buffer(activation_bytes(ActivationFormat::kFloat, 1, n));
        const Activations out = carve_activations(ActivationFormat::kFloat, 1, n, buffer.data());
        rms_norm(device.device->context(),
                 {.x = x.data(),
                  .x_stride = n,
                  .weight = weight.data(),
                  .eps = 1e-3F,
                  .out = out,
                  .subtracts_mean = true,
                  .bias = added});
        const auto* values = static_cast<const float*>(out.data);
        const std::vector<float> got(values, values + n);
        for (size_t i = 0; i < got.size(); ++i) {
          const double wanted = (double{x[i]} - mean) / std::sqrt(variance + 1e-3) * weight[i] +
                                (added == nullptr ? 0.0 : double{added[i]});
          ASSERT_NEAR(got[i], wanted, 3e-5 * (1 + std::fabs(wanted))) << device.name << " n " << n;
        }
        if (reference.empty()) reference = got;
        EXPECT_EQ(got, reference) << device.name;
        std::vector<float> in_place = x;
        head_norm(device.device->context(),
                  {.x = in_place.data(),
                   .x_stride = n,
                   .num_rows = 1,
                   .num_heads = 1,
                   .n = n,
                   .weight = weight.data(),
                   .eps = 1e-3F,
                   .subtracts_mean = true,
                   .bias = added});
        EXPECT_EQ(in_place, reference) << device.name;
      }
    }
  }
}

// Columns behind the parts stay, as do the rows that are read.
TEST(HeadNorm, MayGoToAnotherPlaceOfTheRows) {
  constexpr int32_t kRows = 3;
  constexpr int32_t kHeads = 2;
  constexpr int32_t kWidth = 20;
  constexpr int64_t kStride = 100;
  test::Random random(32);
  const std::vector<float> before = random.normals(kRows * kStride);
  const std::vector<float> weight = random.normals(kWidth);
  for (const auto& device : test::devices({1, 2})) {
    std::vector<float> wanted = before;
    std::vector<float> x = before;
    HeadNormArgs args{.x = wanted.data(),
                      .x_stride = kStride,
                      .num_rows = kRows,
                      .num_heads = kHeads,
                      .n = kWidth,
                      .weight = weight.data(),
                      .eps = 1e-6F};
    head_norm(device.device->context(), args);
    for (size_t row = 0; row < kRows; ++row) {
      float* const normed = wanted.data() + row * kStride;
      std::copy_n(normed, kHeads * kWidth, normed + 50);
      std::copy_n(before.data() + row * kStride, kHeads * kWidth, normed);
    }
    args.x = x.data();
    args.out = x.data() + 50;
    head_norm(device.device->context(), args);
    EXPECT_EQ(x, wanted) << device.name;
  }
}

TEST(HeadNorm, EqualsTheNormOfEachPartAndTouchesNothingElse) {
  constexpr int32_t kRows = 3;
  constexpr int32_t kHeads = 4;
  constexpr int64_t kStride = 200;
  for (const int32_t width : {16, 40, 47}) {
    test::Random random(31);
    const std::vector<float> x = random.normals(kRows * kStride, 3);
    const std::vector<float> weight = random.normals(static_cast<size_t>(width));
    std::vector<float> reference;
    for (const auto& device : test::devices({1, 2})) {
      std::vector<float> out = x;
      head_norm(device.device->context(),
                {.x = out.data(),
                 .x_stride = kStride,
                 .num_rows = kRows,
                 .num_heads = kHeads,
                 .n = width,
                 .weight = weight.data(),
                 .eps = 1e-6F});
      for (int32_t row = 0; row < kRows; ++row) {
        for (int32_t i = 0; i < kStride; ++i) {
          const auto at = static_cast<size_t>(row * kStride + i);
          if (i >= kHeads * width) {
            ASSERT_EQ(out[at], x[at]) << device.name;
            continue;
          }
          const float* part = x.data() + row * kStride + i / width * width;
          double squares = 0;
          for (int32_t j = 0; j < width; ++j)
            squares += static_cast<double>(part[j]) * static_cast<double>(part[j]);
          const double wanted = static_cast<double>(x[at]) / std::sqrt(squares / width + 1e-6) *
                                static_cast<double>(weight[static_cast<size_t>(i % width)]);
          ASSERT_NEAR(static_cast<double>(out[at]), wanted, 1e-6 * (1 + std::fabs(wanted)))
              << device.name;
        }
      }
      if (reference.empty()) reference = out;
      EXPECT_EQ(std::memcmp(out.data(), reference.data(), out.size() * 4), 0) << device.name;
    }
  }
}

// A row's heads on one rank, and on two which share the middle one.
TEST(JoinedNorm, HasTheBitsOfOneRankAndAgreesWithDoubles) {
  constexpr int32_t kRows = 2;
  constexpr int32_t kHeads = 5;
  constexpr int32_t kWidth = 20;
  constexpr int64_t kStride = kHeads * kWidth;
  test::Random random(34);
  const std::vector<float> x = random.normals(kRows * kStride, 3);
  const std::vector<float> weight = random.normals(kStride);

  struct Share {
    int32_t first, count;
  };

  // Norms each share's heads, given the sums of all shares.
  const auto normed = [&](const ExecContext& ctx, const std::vector<Share>& shares) {
    std::vector<float> out = x;
    std::vector<std::vector<float>> sums(shares.size(), std::vector<float>(kRows * kHeads, -1));
    for (size_t i = 0; i < shares.size(); ++i) {
      head_squares(ctx,
                   {.x = x.data() + shares[i].first * kWidth,
                    .x_stride = kStride,
                    .num_rows = kRows,
                    .num_heads = shares[i].count,
                    .n = kWidth,
                    .out = sums[i].data(),
                    .out_stride = kHeads,
                    .first = shares[i].first,
                    .whole = kHeads});
    }
    for (const Share& share : shares) {
      std::vector<float> own = x;
      JoinedNormArgs args{.x = own.data() + share.first * kWidth,
                          .x_stride = kStride,
                          .num_rows = kRows,
                          .num_heads = share.count,
                          .n = kWidth,
                          .parts = {},
                          .num_parts = static_cast<int32_t>(shares.size()),
                          .parts_stride = kHeads,
                          .whole = kHeads,
                          .weight = weight.data() + share.first * kWidth,
                          .eps = 1e-5F};
      for (size_t i = 0; i < shares.size(); ++i) args.parts[i] = sums[i].data();
      joined_norm(ctx, args);
      for (int64_t row = 0; row < kRows; ++row) {
        const auto from = own.begin() + row * kStride + share.first * kWidth;
        std::copy_n(from, share.count * kWidth, out.begin() + row * kStride + share.first * kWidth);
      }
    }
    return out;
  };
  std::vector<float> reference;
  for (const auto& device : test::devices({1, 2})) {
    const ExecContext& ctx = device.device->context();
    const std::vector<float> alone = normed(ctx, {{0, kHeads}});
    EXPECT_EQ(normed(ctx, {{0, 3}, {2, 3}}), alone) << device.name;
    if (reference.empty()) reference = alone;
    EXPECT_EQ(alone, reference) << device.name;
    for (size_t i = 0; i < alone.size(); ++i) {
      const size_t row = i / kStride * kStride;
      double squares = 0;
      for (size_t j = row; j < row + kStride; ++j) squares += double{x[j]} * double{x[j]};
      const double wanted = x[i] / std::sqrt(squares / kStride + 1e-5) * weight[i - row];
      ASSERT_NEAR(alone[i], wanted, 1e-6 * (1 + std::fabs(wanted))) << device.name;
    }
  }
}

// A rank whose sum is not a number makes the row of every rank none.
TEST(JoinedNorm, ANonFiniteSumIsVisible) {
  const float nan = -std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> sums = {1, 0};
  const std::vector<float> others = {0, nan};
  const std::vector<float> weight(4, 1.0F);
  std::vector<float> x(4, 1.0F);
  auto device = Device::create({});
  ASSERT_TRUE(device.has_value());
  joined_norm((*device)->context(),
              {.x = x.data(),
               .x_stride = 4,
               .num_rows = 1,
               .num_heads = 1,
               .n = 4,
               .parts = {sums.data(), others.data()},
               .num_parts = 2,
               .parts_stride = 2,
               .whole = 2,
               .weight = weight.data(),
               .eps = 1e-5F});
  EXPECT_TRUE(std::isnan(x[0]));
}

TEST(ActivationFormatOf, FollowsTheWeightAndTheBits) {
  EXPECT_EQ(activation_format(WeightFormat::kF32, 8), ActivationFormat::kFloat);
  EXPECT_EQ(activation_format(WeightFormat::kF16, 16), ActivationFormat::kFloat);
  EXPECT_EQ(activation_format(WeightFormat::kQ4_1, 8), ActivationFormat::kInt8);
  EXPECT_EQ(activation_format(WeightFormat::kQ8_0, 16), ActivationFormat::kInt16);
  EXPECT_EQ(activation_format(WeightFormat::kQ8_0, 32), ActivationFormat::kFloat);
  for (const int32_t bits : {8, 16, 32}) {
    EXPECT_EQ(activation_format(WeightFormat::kInt8Channel, bits), ActivationFormat::kInt8Token);
  }
  EXPECT_EQ(activation_format(WeightFormat::kNVFP4, 8), ActivationFormat::kInt8);
  EXPECT_EQ(activation_format(WeightFormat::kInt4Group128, 16), ActivationFormat::kInt16);
  EXPECT_EQ(activation_format(WeightFormat::kE4M3Channel, 8), ActivationFormat::kE4M3Token);
  EXPECT_EQ(activation_format(WeightFormat::kE4M3Block, 8), ActivationFormat::kE4M3Group);
  EXPECT_EQ(activation_format(WeightFormat::kE4M3Block, 16), ActivationFormat::kFloat);
  EXPECT_EQ(activation_format(WeightFormat::kE4M3Channel, 16, DeviceType::kCuda),
            ActivationFormat::kBF16);
}

TEST(CheckActivations, RefusesRowsThatNoKernelTakes) {
  const auto takes = [](WeightFormat weight, ActivationFormat rows) {
    return check_activations(DeviceType::kCpu, weight, rows).has_value();
  };
  EXPECT_TRUE(takes(WeightFormat::kE4M3Channel, ActivationFormat::kE4M3Token));
  EXPECT_FALSE(takes(WeightFormat::kE4M3Channel, ActivationFormat::kE4M3Group));
  EXPECT_FALSE(takes(WeightFormat::kE4M3Block, ActivationFormat::kInt8));
  EXPECT_FALSE(takes(WeightFormat::kInt8Channel, ActivationFormat::kFloat));
  EXPECT_FALSE(takes(WeightFormat::kBF16, ActivationFormat::kBF16));
  EXPECT_TRUE(takes(WeightFormat::kNVFP4, ActivationFormat::kInt16));
}

}  // namespace
}  // namespace sluice::kernels::testing
