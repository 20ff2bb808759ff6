// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cfloat>
#include <set>

#include "kernels/device.h"
#include "tests/kernels/linear_check.h"
#include "tests/kernels/linear_reference.h"

namespace sluice::kernels::testing {
namespace {

struct Combination {
  WeightFormat weight;
  ActivationFormat activation;
};

// Returns every format with every activation width it takes.
std::vector<Combination> combinations() {
  std::vector<Combination> all;
  for (const WeightFormat format : tested_formats()) {
    if (layout_of(format).is_integer()) {
      all.push_back({format, ActivationFormat::kInt8});
      all.push_back({format, ActivationFormat::kInt16});
    }
    if (layout_of(format).is_e4m3()) all.push_back({format, activation_format(format, 8)});
    all.push_back({format, ActivationFormat::kFloat});
  }
  return all;
}

std::string name_of(const Combination& c) {
  constexpr std::array<const char*, kNumActivationFormats> kNames = {
      "Int8", "Int16", "Float", "Int8Token", "Bf16", "F16", "E4M3Token", "E4M3Group"};
  return test_name(c.weight) + "x" + kNames[static_cast<size_t>(c.activation)];
}

class Linear : public ::testing::TestWithParam<Combination> {
 protected:
  // Returns the reference of every output, [rows][n]; checks it against fp64 on the way.
  static std::vector<float> reference(const TestWeight& w, const TestActivations& x) {
    const int64_t rows = x.view.num_rows;
    std::vector<float> out(static_cast<size_t>(rows * w.n));
    const bool integer = x.view.format != ActivationFormat::kFloat && !is_e4m3(x.view.format);
    const double chain = (integer ? 4.0 : 32.0) * (static_cast<double>(w.k) / 32 / 8 + 1) + 8;
    for (int64_t n = 0; n < w.n; ++n) {
      const DecodedRow decoded = decode_row(w, n);
      for (int64_t m = 0; m < rows; ++m) {
        const ReferenceOutput y = reference_output(decoded, x, m);
        EXPECT_LE(std::abs(y.tree - y.exact), chain * 0x1p-24 * y.magnitude + FLT_MIN)
            << "row " << m << " output " << n;
        out[static_cast<size_t>(m * w.n + n)] = y.tree;
      }
    }
    return out;
  }

  static void expect_equal_everywhere(const TestWeight& w,
                                      const TestActivations& x,
                                      std::span<const int32_t> row_counts) {
    expect_linear_equals(w.view, x.view, reference(w, x), row_counts);
  }

  static int64_t whole_blocks(int64_t k) {
    return align_up(k, format_info(GetParam().weight).block_elements);
  }
};

constexpr std::array<int32_t, 13> kRowCounts = {1, 2, 3, 7, 8, 9, 15, 17, 31, 32, 33, 64, 100};

TEST_P(Linear, EqualsThePlainLoopForEveryRowCountThreadCountAndInstructionSet) {
  std::mt19937 rng(7);
  for (const int64_t k :
       std::set<int64_t>{whole_blocks(32), whole_blocks(64), whole_blocks(96), whole_blocks(576)}) {
    const TestWeight w = make_weight(GetParam().weight, 40, k, Values::kOrdinary, rng);
    const TestActivations x =
        make_activations(GetParam().activation, 100, k, Values::kOrdinary, rng);
    expect_equal_everywhere(w, x, kRowCounts);
  }
}

TEST_P(Linear, EqualsThePlainLoopForLongRows) {
  std::mt19937 rng(8);
  for (const int64_t k : {2048, 8192}) {
    const TestWeight w = make_weight(GetParam().weight, 50, k, Values::kOrdinary, rng);
    const TestActivations x =
        make_activations(GetParam().activation, 17, k, Values::kOrdinary, rng);
    expect_equal_everywhere(w, x, std::array<int32_t, 4>{1, 8, 9, 17});
  }
}

TEST_P(Linear, EqualsThePlainLoopForRaggedShapes) {
  std::mt19937 rng(9);
  for (const int64_t k : {1, 31, 33, 100, 577}) {
    const int64_t rounded = whole_blocks(k);
    for (const int64_t n : {1, 15, 16, 17, 130}) {
      const TestWeight w = make_weight(GetParam().weight, n, rounded, Values::kOrdinary, rng);
      const TestActivations x =
          make_activations(GetParam().activation, 17, rounded, Values::kOrdinary, rng);
      expect_equal_everywhere(w, x, std::array<int32_t, 3>{1, 5, 17});
    }
  }
}

TEST_P(Linear, ExtremeCodesAreSummedExactly) {
  std::mt19937 rng(10);
  for (const int64_t k : {whole_blocks(32), whole_blocks(1100)}) {
    const TestWeight w = make_weight(GetParam().weight, 33, k, Values::kExtreme, rng);
    const TestActivations x = make_activations(GetParam().activation, 17, k, Values::kExtreme, rng);
    expect_equal_everywhere(w, x, std::array<int32_t, 4>{1, 4, 9, 17});
  }
}

TEST_P(Linear, ZeroAndSubnormalScalesAreNotFlushed) {
  std::mt19937 rng(11);
  const TestWeight w = make_weight(GetParam().weight, 33, 256, Values::kDegenerate, rng);
  const TestActivations x =
      make_activations(GetParam().activation, 17, 256, Values::kOrdinary, rng);
  expect_equal_everywhere(w, x, std::array<int32_t, 4>{1, 4, 9, 17});
}

TEST_P(Linear, RowGroupsBiasAndResidualFollowTheTree) {
  std::mt19937 rng(12);
  const int64_t k = whole_blocks(96);
  constexpr int32_t kRows = 70;  // more than one block of rows
  const TestWeight a = make_weight(GetParam().weight, 48, k, Values::kOrdinary, rng);
  const TestWeight b = make_weight(GetParam().weight, 21, k, Values::kOrdinary, rng);
  const TestActivations x =
      make_activations(GetParam().activation, kRows, k, Values::kOrdinary, rng);
  const std::vector<float> expected_a = reference(a, x);
  const std::vector<float> expected_b = reference(b, x);
  std::normal_distribution<float> normal;
  std::vector<float> bias(21);
  for (float& v : bias) v = normal(rng);
  std::vector<float> residual(kRows * 48);
  for (float& v : residual) v = normal(rng);
  for (const auto& [name, isa, threads, device] : test::devices({1, 2, 3})) {
    std::vector<float> out_a = residual;
    std::vector<float> out_b(kRows * 21, 0.25F);
    const std::array groups = {
        RowGroup{.weight = &a.view, .out = out_a.data(), .out_stride = 48, .bias = nullptr},
        RowGroup{.weight = &b.view, .out = out_b.data(), .out_stride = 21, .bias = bias.data()}};
    linear(device->context(), {.x = x.view, .groups = groups, .epilogue = Epilogue::kAdd});
    for (size_t i = 0; i < out_a.size(); ++i) {
      ASSERT_EQ(out_a[i], residual[i] + expected_a[i]) << name;
    }
    for (size_t i = 0; i < out_b.size(); ++i) {
      ASSERT_EQ(out_b[i], 0.25F + (expected_b[i] + bias[i % 21])) << name;
    }
  }
}

// The check starts at floats: it includes the quantization of activations, and takes weights as the
// checkpoint decodes.
TEST_P(Linear, IsCloseToTheDoubleProductOfTheDecodedWeights) {
  std::mt19937 rng(13);
  constexpr int64_t kK = 1024;
  constexpr int64_t kOutputs = 40;
  const TestWeight w = make_weight(GetParam().weight, kOutputs, kK, Values::kOrdinary, rng);
  std::vector<float> x(kK);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(rng);
  const AlignedBuffer buffer(activation_bytes(GetParam().activation, 1, kK));
  const Activations rows = carve_activations(GetParam().activation, 1, kK, buffer.data());
  auto device = Device::create({.threads = 1});
  ASSERT_TRUE(device.has_value());
  quantize_activations((*device)->context(), {.x = x.data(), .x_stride = kK, .out = rows});
  std::vector<float> y(kOutputs);
  const RowGroup group{.weight = &w.view, .out = y.data(), .out_stride = kOutputs, .bias = nullptr};
  linear((*device)->context(), {.x = rows, .groups = {&group, 1}});
  const double bound = is_e4m3(rows.format)                      ? 4e-2
                       : rows.format == ActivationFormat::kInt8  ? 1e-2
                       : rows.format == ActivationFormat::kInt16 ? 4e-5
                                                                 : 5e-7;
  std::vector<double> decoded(kK);
  double errors = 0;
  double magnitudes = 0;
  for (int64_t n = 0; n < kOutputs; ++n) {
    w.decode(n, decoded.data());
    double exact = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double term = decoded[i] * x[i];
      exact += term;
      magnitudes += term * term;
    }
    errors += (y[static_cast<size_t>(n)] - exact) * (y[static_cast<size_t>(n)] - exact);
  }
  EXPECT_LE(std::sqrt(errors / magnitudes), bound);
  RecordProperty("relative_error", std::to_string(std::sqrt(errors / magnitudes)));
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         Linear,
                         ::testing::ValuesIn(combinations()),
                         [](const auto& test) { return name_of(test.param); });

TEST(LinearShapes, NoRowsIsNoWork) {
  std::mt19937 rng(1);
  const TestWeight w = make_weight(WeightFormat::kF32, 16, 32, Values::kOrdinary, rng);
  TestActivations x = make_activations(ActivationFormat::kFloat, 1, 32, Values::kOrdinary, rng);
  x.view.num_rows = 0;
  auto device = Device::create({});
  ASSERT_TRUE(device.has_value());
  const RowGroup group{.weight = &w.view, .out = nullptr, .out_stride = 16, .bias = nullptr};
  linear((*device)->context(), {.x = x.view, .groups = {&group, 1}});
}

}  // namespace
}  // namespace sluice::kernels::testing
