// SPDX-License-Identifier: Apache-2.0
// GPTQ against rounding to nearest, by their effect on outputs.
#include "engine/quantize/gptq.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace sluice {
namespace {

constexpr int64_t kRows = 8;
constexpr int64_t kColumns = 256;
constexpr int64_t kInputs = 512;

std::vector<float> normal(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = draw(random);
  return values;
}

// Dependent inputs: each is a share of the previous one plus noise.
std::vector<float> correlated_inputs() {
  std::vector<float> x = normal(kInputs * kColumns, 1);
  for (int64_t r = 0; r < kInputs; ++r) {
    for (int64_t i = 1; i < kColumns; ++i) {
      float* row = x.data() + r * kColumns;
      row[i] = 0.8F * row[i - 1] + 0.6F * row[i];
    }
  }
  return x;
}

InputStatistics statistics_of(const std::vector<float>& x) {
  InputStatistics statistics;
  statistics.num_rows = kInputs;
  for (int64_t i = 0; i < kColumns; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      double sum = 0;
      for (int64_t r = 0; r < kInputs; ++r) {
        sum += double{x[static_cast<size_t>(r * kColumns + i)]} *
               double{x[static_cast<size_t>(r * kColumns + j)]};
      }
      const auto mean = static_cast<float>(sum / kInputs);
      statistics.products.push_back(mean);
      if (i == j) statistics.mean_squares.push_back(mean);
    }
  }
  return statistics;
}

struct Matrix {
  Encoding encoding;
  std::vector<float> weights = normal(kRows * kColumns, 2);
  FloatRows rows{.x = weights.data(), .rows = kRows, .k = kColumns};
  std::vector<float> scales;
  std::vector<uint8_t> zeros;
  std::vector<uint8_t> codes = std::vector<uint8_t>(kRows * kColumns);

  explicit Matrix(CodeScheme scheme)
      : encoding{
            .scheme = scheme,
            .group = scheme_info(scheme).code == CodeKind::kInt4 ? 64 : scheme_info(scheme).group} {
    scales.resize(static_cast<size_t>(kRows * (kColumns / encoding.group)));
    zeros.resize(scales.size(), kMiddleOfInt4);
    choose_scales(encoding, rows, matrix(), both());
  }

  RowScales both() {
    return {scales.data(), scheme_info(encoding.scheme).has_zeros ? zeros.data() : nullptr};
  }

  [[nodiscard]] float matrix() const { return matrix_scale(encoding, 4.0F); }

  // Mean square error of the outputs on the inputs.
  [[nodiscard]] double output_error(const std::vector<float>& x) const {
    double error = 0;
    for (int64_t n = 0; n < kRows; ++n) {
      for (int64_t r = 0; r < kInputs; ++r) {
        double difference = 0;
        for (int64_t i = 0; i < kColumns; ++i) {
          const auto at = static_cast<size_t>(n * kColumns + i);
          const size_t group = at / static_cast<size_t>(encoding.group);
          const double value = double{code_value(encoding.scheme, codes[at], zeros[group])} *
                               double{scales[group]} *
                               (encoding.scheme == CodeScheme::kNvfp4 ? double{matrix()} : 1.0);
          difference +=
              (double{weights[at]} - value) * double{x[static_cast<size_t>(r * kColumns + i)]};
        }
        error += difference * difference;
      }
    }
    return error / (kRows * kInputs);
  }
};

constexpr CodeScheme kSchemes[] = {
    CodeScheme::kInt4Group, CodeScheme::kInt4Zeros, CodeScheme::kNvfp4, CodeScheme::kMxfp4};

TEST(Gptq, OutputsAreNearerThanByTheNearestCodes) {
  const std::vector<float> x = correlated_inputs();
  const auto gptq = Gptq::create(statistics_of(x), 0.01);
  ASSERT_TRUE(gptq.has_value());
  for (const CodeScheme scheme : kSchemes) {
    Matrix matrix(scheme);
    encode_codes(matrix.encoding, matrix.rows, matrix.matrix(), matrix.both(), matrix.codes.data());
    const double nearest = matrix.output_error(x);
    gptq->encode(matrix.encoding, matrix.rows, matrix.matrix(), matrix.both(), matrix.codes.data());
    const double ours = matrix.output_error(x);
    EXPECT_LT(ours, nearest * 0.7) << static_cast<int>(scheme);
    std::printf("scheme %d: %.5f of %.5f\n", static_cast<int>(scheme), ours, nearest);
  }
}

// Blocks of GGUF keep their scales.
TEST(Gptq, BlocksHaveOutputsNearerThanByTheNearestCodes) {
  const std::vector<float> x = correlated_inputs();
  const auto gptq = Gptq::create(statistics_of(x), 0.01);
  ASSERT_TRUE(gptq.has_value());
  const std::vector<float> weights = normal(kRows * kColumns, 2);
  const FloatRows in{.x = weights.data(), .rows = kRows, .k = kColumns};
  for (const FormatInfo& info : format_table()) {
    const bool has_room = kColumns % info.block_elements == 0;
    const bool is_integer = layout_of(info.format).is_integer();
    if (!is_integer || info.format == WeightFormat::kQ8_0 || !has_room) continue;
    const auto bytes = static_cast<size_t>(row_bytes(info.format, kColumns));
    std::vector<std::byte> rows(kRows * bytes);
    const auto output_error = [&] {
      double error = 0;
      std::vector<double> values(kColumns);
      for (size_t n = 0; n < kRows; ++n) {
        dequantize_row_f64(info.format, rows.data() + n * bytes, kColumns, values.data());
        for (size_t r = 0; r < kInputs; ++r) {
          double difference = 0;
          for (size_t i = 0; i < kColumns; ++i) {
            difference +=
                (double{weights[n * kColumns + i]} - values[i]) * double{x[r * kColumns + i]};
          }
          error += difference * difference;
        }
      }
      return error / (kRows * kInputs);
    };
    for (size_t n = 0; n < kRows; ++n) {
      encode_blocks(
          info.format, in.row(static_cast<int64_t>(n)), nullptr, kColumns, rows.data() + n * bytes);
    }
    const double nearest = output_error();
    gptq->encode_blocks(info.format, in, rows.data());
    const double ours = output_error();
    EXPECT_LT(ours, nearest * 0.8) << info.name;
    std::printf("%s: %.5f of %.5f\n", std::string(info.name).c_str(), ours, nearest);
  }
}

// With independent inputs no error can be compensated.
TEST(Gptq, IndependentInputsGiveTheNearestCodes) {
  InputStatistics statistics;
  statistics.mean_squares.assign(kColumns, 2.0F);
  statistics.products.assign(kColumns * kColumns, 0.0F);
  for (size_t i = 0; i < kColumns; ++i) statistics.products[i * kColumns + i] = 2.0F;
  const auto gptq = Gptq::create(statistics, 0.01);
  ASSERT_TRUE(gptq.has_value());
  for (const CodeScheme scheme : kSchemes) {
    Matrix matrix(scheme);
    std::vector<uint8_t> nearest(matrix.codes.size());
    encode_codes(matrix.encoding, matrix.rows, matrix.matrix(), matrix.both(), nearest.data());
    gptq->encode(matrix.encoding, matrix.rows, matrix.matrix(), matrix.both(), matrix.codes.data());
    EXPECT_EQ(matrix.codes, nearest);
  }
}

TEST(Gptq, InputsThatNeverComeAreNoDivisionByZero) {
  InputStatistics statistics;
  statistics.mean_squares.assign(kColumns, 0.0F);
  statistics.products.assign(kColumns * kColumns, 0.0F);
  EXPECT_TRUE(Gptq::create(statistics, 0.01).has_value());
  statistics.products[0] = INFINITY;
  EXPECT_FALSE(Gptq::create(statistics, 0.01).has_value());
}

}  // namespace
}  // namespace sluice
