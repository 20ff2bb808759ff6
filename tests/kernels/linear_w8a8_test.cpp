// SPDX-License-Identifier: Apache-2.0
// INT8 weights with a scale per output times int8 rows with a scale each, compared with plain loops
// over the checkpoint's codes.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/linear/read_ahead.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_check.h"
#include "tests/kernels/linear_reference.h"
#include "tests/support/plain_matrix.h"

namespace sluice::kernels::testing {
namespace {

enum class Codes : uint8_t { kRandom, kLowest, kHighest };

struct ChannelWeight {
  int64_t n;
  int64_t k;
  std::vector<int8_t> codes;
  std::vector<float> scales;
  AlignedBuffer packed;
  PackedWeight view;
};

ChannelWeight make_channel_weight(int64_t n, int64_t k, Codes kind, std::mt19937& rng) {
  constexpr WeightFormat kFormat = WeightFormat::kInt8Channel;
  ChannelWeight w{.n = n,
                  .k = k,
                  .codes = std::vector<int8_t>(static_cast<size_t>(n * k)),
                  .scales = std::vector<float>(static_cast<size_t>(n)),
                  .packed = AlignedBuffer(packed_bytes(kFormat, n, k)),
                  .view = {}};
  std::uniform_int_distribution<int> code(-128, 127);
  for (int8_t& c : w.codes) {
    c = static_cast<int8_t>(kind == Codes::kRandom   ? code(rng)
                            : kind == Codes::kLowest ? -128
                                                     : 127);
  }
  std::uniform_real_distribution<float> scale(0.0F, 0.01F);
  for (float& s : w.scales) s = scale(rng);
  sluice::test::pack_int8_rows(w.codes.data(), w.scales.data(), n, k, w.packed.data());
  w.view = {.format = kFormat,
            .n = static_cast<int32_t>(n),
            .k = static_cast<int32_t>(k),
            .data = w.packed.data()};
  return w;
}

TestActivations make_token_rows(int64_t rows, int64_t k, Codes kind, std::mt19937& rng) {
  constexpr ActivationFormat kFormat = ActivationFormat::kInt8Token;
  TestActivations a{.buffer = AlignedBuffer(activation_bytes(kFormat, rows, k)), .view = {}};
  a.view = carve_activations(kFormat, rows, k, a.buffer.data());
  std::uniform_int_distribution<int> code(-127, 127);
  std::uniform_real_distribution<float> scale(0.0F, 0.1F);
  for (int64_t row = 0; row < rows; ++row) {
    int32_t sum = 0;
    for (int64_t i = 0; i < align_up(k, 32); ++i) {
      const int any = code(rng);
      const int extreme = kind == Codes::kLowest ? -127 : 127;
      const int c = i >= k ? 0 : kind == Codes::kRandom ? any : extreme;
      static_cast<int8_t*>(activation_group(a.view, row, i / 32).codes)[i % 32] =
          static_cast<int8_t>(c);
      sum += c;
    }
    *activation_group(a.view, row, 0).scale = scale(rng);
    *activation_group(a.view, row, 0).code_sum = sum;
  }
  return a;
}

int8_t token_code(const Activations& view, int64_t row, int64_t k) {
  return static_cast<const int8_t*>(activation_group(view, row, k / 32).codes)[k % 32];
}

// Returns [rows][n]; sums have 64 bits and cannot wrap around.
std::vector<float> reference(const ChannelWeight& w, const TestActivations& x) {
  std::vector<float> out;
  std::vector<int64_t> row(static_cast<size_t>(w.k));
  for (int64_t m = 0; m < x.view.num_rows; ++m) {
    for (int64_t i = 0; i < w.k; ++i) row[static_cast<size_t>(i)] = token_code(x.view, m, i);
    const float row_scale = *activation_group(x.view, m, 0).scale;
    for (int64_t n = 0; n < w.n; ++n) {
      int64_t sum = 0;
      for (int64_t i = 0; i < w.k; ++i) {
        sum += row[static_cast<size_t>(i)] * w.codes[static_cast<size_t>(n * w.k + i)];
      }
      EXPECT_EQ(sum, static_cast<int32_t>(sum));
      out.push_back((static_cast<float>(sum) * row_scale) * w.scales[static_cast<size_t>(n)]);
    }
  }
  return out;
}

void expect_equal_everywhere(const ChannelWeight& w,
                             const TestActivations& x,
                             const std::vector<int32_t>& row_counts) {
  expect_linear_equals(w.view, x.view, reference(w, x), row_counts);
}

TEST(Channel, EqualsThePlainLoopForEveryRowCount) {
  std::mt19937 rng(21);
  std::vector<int32_t> row_counts;
  for (int32_t rows = 1; rows <= 65; ++rows) row_counts.push_back(rows);
  const ChannelWeight w = make_channel_weight(49, 96, Codes::kRandom, rng);
  expect_equal_everywhere(w, make_token_rows(65, 96, Codes::kRandom, rng), row_counts);
}

TEST(Channel, EqualsThePlainLoopForRaggedShapes) {
  std::mt19937 rng(22);
  for (const int64_t k : {1, 3, 31, 32, 33, 100, 577}) {
    for (const int64_t n : {1, 15, 16, 17, 31, 32, 33, 48, 130}) {
      const ChannelWeight w = make_channel_weight(n, k, Codes::kRandom, rng);
      expect_equal_everywhere(w, make_token_rows(9, k, Codes::kRandom, rng), {1, 2, 5, 9});
    }
  }
}

TEST(Channel, EqualsThePlainLoopForLongRows) {
  std::mt19937 rng(23);
  for (const int64_t k : {2048, 8192}) {
    const ChannelWeight w = make_channel_weight(35, k, Codes::kRandom, rng);
    expect_equal_everywhere(w, make_token_rows(17, k, Codes::kRandom, rng), {1, 3, 8, 17});
  }
}

// If vpmaddubsw could saturate or 32 bits could wrap around, it would be here.
TEST(Channel, ExtremeCodesAreSummedExactlyUpToTheLargestK) {
  std::mt19937 rng(24);
  for (const int64_t k : {int64_t{64}, kMaxChannelK}) {
    for (const Codes weights : {Codes::kLowest, Codes::kHighest}) {
      for (const Codes rows : {Codes::kLowest, Codes::kHighest}) {
        const ChannelWeight w = make_channel_weight(17, k, weights, rng);
        expect_equal_everywhere(w, make_token_rows(2, k, rows, rng), {1, 2});
      }
    }
  }
}

TEST(Channel, BiasAndResidualComeAfterTheScales) {
  std::mt19937 rng(25);
  constexpr int32_t kRows = 70;  // more than one block of rows
  const ChannelWeight a = make_channel_weight(48, 96, Codes::kRandom, rng);
  const ChannelWeight b = make_channel_weight(21, 96, Codes::kRandom, rng);
  const TestActivations x = make_token_rows(kRows, 96, Codes::kRandom, rng);
  const std::vector<float> expected_a = reference(a, x);
  const std::vector<float> expected_b = reference(b, x);
  std::normal_distribution<float> normal;
  std::vector<float> bias(21);
  for (float& v : bias) v = normal(rng);
  for (const auto& device : test::devices({1, 2})) {
    std::vector<float> out_a(kRows * 48, -0.75F);
    std::vector<float> out_b(kRows * 21, 0.25F);
    const std::array groups = {
        RowGroup{.weight = &a.view, .out = out_a.data(), .out_stride = 48, .bias = nullptr},
        RowGroup{.weight = &b.view, .out = out_b.data(), .out_stride = 21, .bias = bias.data()}};
    linear(device.device->context(), {.x = x.view, .groups = groups, .epilogue = Epilogue::kAdd});
    for (size_t i = 0; i < out_a.size(); ++i) {
      ASSERT_EQ(out_a[i], -0.75F + expected_a[i]) << device.name;
    }
    for (size_t i = 0; i < out_b.size(); ++i) {
      ASSERT_EQ(out_b[i], 0.25F + (expected_b[i] + bias[i % 21])) << device.name;
    }
  }
}

TEST(Channel, ARowWithoutAFiniteScaleIsNanAndItsNeighboursAreNot) {
  std::mt19937 rng(26);
  const ChannelWeight w = make_channel_weight(20, 64, Codes::kRandom, rng);
  const TestActivations x = make_token_rows(3, 64, Codes::kRandom, rng);
  *activation_group(x.view, 1, 0).scale = std::nanf("");
  for (const auto& device : test::devices({1})) {
    std::vector<float> out(3 * 20);
    const RowGroup group{.weight = &w.view, .out = out.data(), .out_stride = 20, .bias = nullptr};
    linear(device.device->context(), {.x = x.view, .groups = {&group, 1}});
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 20 == 1) << i;
  }
}

TEST(Channel, IsCloseToTheDoubleProductFromFloatsOn) {
  std::mt19937 rng(27);
  constexpr int64_t kK = 1024;
  const ChannelWeight w = make_channel_weight(40, kK, Codes::kRandom, rng);
  std::normal_distribution<float> normal;
  std::vector<float> x(kK);
  for (float& v : x) v = normal(rng);
  const AlignedBuffer buffer(activation_bytes(ActivationFormat::kInt8Token, 1, kK));
  const Activations rows = carve_activations(ActivationFormat::kInt8Token, 1, kK, buffer.data());
  const auto device = test::make_device("auto", 1);
  quantize_activations(device->context(), {.x = x.data(), .x_stride = kK, .out = rows});
  std::vector<float> y(40);
  const RowGroup group{.weight = &w.view, .out = y.data(), .out_stride = 40, .bias = nullptr};
  linear(device->context(), {.x = rows, .groups = {&group, 1}});
  double errors = 0;
  double magnitudes = 0;
  for (size_t n = 0; n < y.size(); ++n) {
    double exact = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double term = static_cast<double>(w.codes[n * kK + i]) * w.scales[n] * x[i];
      exact += term;
      magnitudes += term * term;
    }
    errors += (y[n] - exact) * (y[n] - exact);
  }
  EXPECT_LE(std::sqrt(errors / magnitudes), 1.5e-2);
}

TEST(Channel, BringsWhatAttentionReads) {
  std::mt19937 rng(29);
  constexpr int64_t kN = 320;
  const ChannelWeight w = make_channel_weight(kN, 512, Codes::kRandom, rng);
  for (const int32_t rows : {8, 32}) {
    const TestActivations x = make_token_rows(rows, 512, Codes::kRandom, rng);
    std::vector<float> y(static_cast<size_t>(rows * kN));
    const RowGroup group{.weight = &w.view, .out = y.data(), .out_stride = kN, .bias = nullptr};
    for (const char* isa : {"avx2", "avx512"}) {
      const auto device = test::make_device(isa, 1);
      if (device == nullptr) continue;
      const ExecContext& ctx = device->context();
      bring_something(ctx);
      linear(ctx, {.x = x.view, .groups = {&group, 1}});
      EXPECT_EQ(ctx.read_ahead->lines(0), nullptr) << isa << " rows " << rows;
    }
  }
}

TEST(Channel, EmbeddingRowsAreCodesTimesTheirScale) {
  std::mt19937 rng(28);
  const ChannelWeight w = make_channel_weight(37, 70, Codes::kRandom, rng);
  const std::vector<TokenId> tokens = {36, 0, 17};
  for (const auto& device : test::devices({1})) {
    std::vector<float> out(3 * 70);
    embedding(device.device->context(),
              {.table = &w.view, .token_ids = tokens, .out = out.data(), .out_stride = 70});
    for (size_t i = 0; i < out.size(); ++i) {
      const auto token = static_cast<size_t>(tokens[i / 70]);
      ASSERT_EQ(out[i], static_cast<float>(w.codes[token * 70 + i % 70]) * w.scales[token])
          << device.name;
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::testing
