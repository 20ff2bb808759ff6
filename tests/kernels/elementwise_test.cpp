// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/isa/simd.h"
#include "quant/format.h"
#include "quant/repack.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"

namespace sluice::kernels {
namespace {

using test::Random;

struct AlignedBytes {
  explicit AlignedBytes(int64_t size) : storage(static_cast<size_t>(size) + 64, std::byte{0xCD}) {
    const auto address = reinterpret_cast<uintptr_t>(storage.data());
    data = storage.data() + (64 - address % 64) % 64;
  }

  std::vector<std::byte> storage;
  std::byte* data;
};

TEST(Embedding, RowsEqualTheExactWeightsRoundedOnce) {
  constexpr int32_t kVocab = 37;
  for (const WeightFormat format : testing::tested_formats()) {
    const FormatInfo& info = format_info(format);
    const int64_t k = layout_of(format).is_integer() ? align_up(96, info.block_elements) : 70;
    std::mt19937 rng(4);
    const testing::TestWeight table =
        testing::make_weight(info.format, kVocab, k, testing::Values::kOrdinary, rng);
    const std::vector<TokenId> tokens = {36, 0, 15, 16, 31, 32, 0, 7};
    const int64_t stride = k + 5;
    for (const auto& device : test::devices({1, 2})) {
      std::vector<float> out(tokens.size() * static_cast<size_t>(stride), std::nanf(""));
      embedding(
          device.device->context(),
          {.table = &table.view, .token_ids = tokens, .out = out.data(), .out_stride = stride});
      for (size_t i = 0; i < tokens.size(); ++i) {
        std::vector<double> exact(static_cast<size_t>(k));
        table.decode(tokens[i], exact.data());
        const float* row = out.data() + static_cast<int64_t>(i) * stride;
        for (size_t d = 0; d < exact.size(); ++d) {
          ASSERT_EQ(row[d], static_cast<float>(exact[d]))
              << device.name << " " << info.name << " element " << d;
        }
        for (int64_t d = k; d < stride; ++d) ASSERT_TRUE(std::isnan(row[d]));
      }
    }
  }
}

TEST(GateMul, MatchesLibmAndQuantizesLikeTheStandaloneOperator) {
  constexpr int32_t kRows = 5;
  constexpr int32_t kWidth = 100;
  constexpr int64_t kStride = 120;
  Random random(5);
  std::vector<float> gate = random.normals(kRows * kStride, 4);
  const std::vector<float> up = random.normals(kRows * kStride, 2);
  gate[0] = -100;
  gate[1] = 100;
  gate[2] = 0;
  std::vector<float> reference;
  std::vector<std::byte> reference_codes[4];
  for (const auto& device : test::devices({1, 3})) {
    const ExecContext& ctx = device.device->context();
    AlignedBytes plain(activation_bytes(ActivationFormat::kFloat, kRows, kWidth));
    const Activations floats =
        carve_activations(ActivationFormat::kFloat, kRows, kWidth, plain.data);
    gate_mul(ctx, {.gate = gate.data(), .up = up.data(), .stride = kStride, .out = floats});
    const auto* got = static_cast<const float*>(floats.data);
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t i = 0; i < 128; ++i) {
        if (i >= kWidth) {
          ASSERT_EQ(got[row * 128 + i], 0.0F);
          continue;
        }
        const auto x = static_cast<double>(gate[static_cast<size_t>(row * kStride + i)]);
        const double wanted = x / (1 + std::exp(-x)) *
                              static_cast<double>(up[static_cast<size_t>(row * kStride + i)]);
        ASSERT_NEAR(
            static_cast<double>(got[row * 128 + i]), wanted, 4e-7 * std::fabs(wanted) + 1e-35);
      }
    }
    std::vector<float> values(got, got + kRows * 128);
    if (reference.empty()) reference = values;
    EXPECT_EQ(std::memcmp(values.data(), reference.data(), values.size() * 4), 0) << device.name;

    for (const ActivationFormat format :
         {ActivationFormat::kInt8, ActivationFormat::kInt16, ActivationFormat::kInt8Token}) {
      const int64_t bytes = activation_bytes(format, kRows, kWidth);
      AlignedBytes fused(bytes);
      AlignedBytes apart(bytes);
      std::memset(fused.data, 0, static_cast<size_t>(bytes));
      std::memset(apart.data, 0, static_cast<size_t>(bytes));
      gate_mul(ctx,
               {.gate = gate.data(),
                .up = up.data(),
                .stride = kStride,
                .out = carve_activations(format, kRows, kWidth, fused.data)});
      quantize_activations(ctx,
                           {.x = values.data(),
                            .x_stride = 128,
                            .out = carve_activations(format, kRows, kWidth, apart.data)});
      EXPECT_EQ(std::memcmp(fused.data, apart.data, static_cast<size_t>(bytes)), 0) << device.name;
      std::vector<std::byte> codes(fused.data, fused.data + bytes);
      auto& wanted = reference_codes[static_cast<size_t>(format)];
      if (wanted.empty()) wanted = codes;
      EXPECT_EQ(codes, wanted) << device.name;
    }
  }
}

// Returns one row through a gate, as floats.
std::vector<float> gated(const ExecContext& ctx,
                         GateFunction function,
                         const std::vector<float>& gate,
                         const std::vector<float>& up) {
  const auto n = static_cast<int32_t>(gate.size());
  AlignedBytes bytes(activation_bytes(ActivationFormat::kFloat, 1, n));
  const Activations out = carve_activations(ActivationFormat::kFloat, 1, n, bytes.data);
  gate_mul(ctx,
           {.gate = gate.data(),
            .up = up.data(),
            .stride = n,
            .function = function,
            .xielu = {.above = 0.75F, .below = 1.25F, .slope = 0.5F},
            .out = out});
  const auto* values = static_cast<const float*>(out.data);
  return {values, values + align_up(n, 32)};
}

TEST(GateMul, EveryFunctionMatchesDoublesAndEveryInstructionSet) {
  Random random(15);
  std::vector<float> gate = random.normals(77, 5);
  std::vector<float> up = random.normals(77, 6);
  gate[0] = -60;
  gate[1] = 60;
  up[2] = -9;
  const auto gelu = [](double g, double u) {
    return 0.5 * g * (1 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u;
  };
  const auto clamped = [](double g, double u) {
    g = std::min(g, 7.0);
    u = std::min(std::max(u, -7.0), 7.0);
    return g / (1 + std::exp(-1.702 * g)) * (u + 1);
  };
  const auto exact = [&](GateFunction function, double g, double u) {
    if (function == GateFunction::kSilu) return g / (1 + std::exp(-g)) * u;
    if (function == GateFunction::kSigmoid) return u / (1 + std::exp(-g));
    if (function == GateFunction::kSquaredRelu) return g > 0 ? g * g : 0.0;
    const double normal = 0.5 * g * std::erfc(-g / std::sqrt(2.0));
    if (function == GateFunction::kGelu) return normal;
    if (function == GateFunction::kGeluErf) return normal * u;
    if (function == GateFunction::kGeluTanhAlone) return gelu(g, 1);
    if (function == GateFunction::kRelu) return std::max(g, 0.0);
    if (function == GateFunction::kXielu) {
      return (g > 0 ? 0.75 * g * g : 1.25 * (std::expm1(g) - g)) + 0.5 * g;
    }
    return function == GateFunction::kGeluTanh ? gelu(g, u) : clamped(g, u);
  };
  for (const GateFunction function : {GateFunction::kSilu,
                                      GateFunction::kGeluTanh,
                                      GateFunction::kClampedSwiglu,
                                      GateFunction::kSigmoid,
                                      GateFunction::kSquaredRelu,
                                      GateFunction::kGelu,
                                      GateFunction::kGeluErf,
                                      GateFunction::kGeluTanhAlone,
                                      GateFunction::kRelu,
                                      GateFunction::kXielu}) {
    std::vector<float> reference;
    for (const auto& device : test::devices({1})) {
      const std::vector<float> got = gated(device.device->context(), function, gate, up);
      for (size_t i = 0; i < got.size(); ++i) {
        if (i >= gate.size()) {
          ASSERT_EQ(got[i], 0.0F) << device.name;
          continue;
        }
        const double wanted =
            exact(function, static_cast<double>(gate[i]), static_cast<double>(up[i]));
        // GeLU's 1 + tanh cancels for negative gates: the error is relative to the gate.
        ASSERT_NEAR(static_cast<double>(got[i]), wanted, 2e-6 * (std::fabs(wanted) + 10))
            << device.name << ", function " << static_cast<int>(function) << ", element " << i;
      }
      if (reference.empty()) reference = got;
      EXPECT_EQ(std::memcmp(got.data(), reference.data(), got.size() * 4), 0) << device.name;
    }
  }
}

// Below 0 its curve is what is left of an exponential without its first two terms: without a slope
// to hide it the error is relative, near 0 as well.
TEST(GateMul, XieluIsExactNearZero) {
  std::vector<float> gate;
  for (float g = -8; g < -1e-6F; g *= 0.83F) gate.push_back(g);
  gate.push_back(-0.25F);
  const auto n = static_cast<int32_t>(gate.size());
  std::vector<float> reference;
  for (const auto& device : test::devices({1})) {
    AlignedBytes bytes(activation_bytes(ActivationFormat::kFloat, 1, n));
    const Activations out = carve_activations(ActivationFormat::kFloat, 1, n, bytes.data);
    gate_mul(device.device->context(),
             {.gate = gate.data(),
              .up = nullptr,
              .stride = n,
              .function = GateFunction::kXielu,
              .xielu = {.above = 0, .below = 1, .slope = 0},
              .out = out});
    const auto* const values = static_cast<const float*>(out.data);
    for (size_t i = 0; i < gate.size(); ++i) {
      const long double g = gate[i];
      const long double near = g * g * (0.5L + g / 6 + g * g / 24);
      const auto wanted = static_cast<double>(g > -1e-3L ? near : std::expm1(g) - g);
      EXPECT_NEAR(double{values[i]}, wanted, 2e-6 * wanted) << device.name << gate[i];
    }
    if (reference.empty()) reference = {values, values + n};
    EXPECT_EQ(std::memcmp(values, reference.data(), reference.size() * 4), 0) << device.name;
  }
}

TEST(AddRows, AddsScaledRowsAndTouchesNothingElse) {
  constexpr int32_t kRows = 3;
  constexpr int32_t kWidth = 37;
  constexpr int64_t kStride = 40;
  Random random(16);
  const std::vector<float> x = random.normals(kRows * kStride);
  const std::vector<float> y = random.normals(kRows * kWidth);
  for (const auto& device : test::devices({1, 2})) {
    std::vector<float> out = x;
    add_rows(device.device->context(),
             {.x = out.data(),
              .x_stride = kStride,
              .y = y.data(),
              .y_stride = kWidth,
              .num_rows = kRows,
              .n = kWidth,
              .scale = 0.3F});
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t i = 0; i < kStride; ++i) {
        const size_t at = row * kStride + i;
        const float wanted = i < kWidth ? std::fma(y[row * kWidth + i], 0.3F, x[at]) : x[at];
        ASSERT_EQ(out[at], wanted) << device.name;
      }
    }
  }
}

TEST(ScaleRows, ScalesThenCaps) {
  constexpr int32_t kWidth = 43;
  Random random(17);
  const std::vector<float> x = random.normals(kWidth, 100);
  std::vector<float> reference;
  for (const auto& device : test::devices({1})) {
    for (const float cap : {0.0F, 30.0F}) {
      std::vector<float> out = x;
      scale_rows(device.device->context(),
                 {.x = out.data(),
                  .x_stride = kWidth,
                  .num_rows = 1,
                  .n = kWidth,
                  .scale = 0.5F,
                  .soft_cap = cap});
      for (size_t i = 0; i < out.size(); ++i) {
        const double scaled = 0.5 * static_cast<double>(x[i]);
        const double wanted = cap == 0 ? scaled : 30 * std::tanh(scaled / 30);
        ASSERT_NEAR(static_cast<double>(out[i]), wanted, 1e-6 * std::fabs(wanted)) << device.name;
      }
      if (cap == 0) continue;
      if (reference.empty()) reference = out;
      EXPECT_EQ(std::memcmp(out.data(), reference.data(), out.size() * 4), 0) << device.name;
    }
  }
}

// The limit is of what was scaled and capped; a NaN stays one.
TEST(ScaleRows, LimitsWhatItHasScaled) {
  std::vector<float> x = {3, -3, 10, -10, std::nanf(""), 0.5F, -0.0F};
  x.resize(19, 100);
  for (const auto& device : test::devices({1})) {
    std::vector<float> out = x;
    scale_rows(device.device->context(),
               {.x = out.data(),
                .x_stride = 19,
                .num_rows = 1,
                .n = 18,
                .scale = 2,
                .limit = 7});
    EXPECT_EQ(std::vector(out.begin(), out.begin() + 4), (std::vector<float>{6, -6, 7, -7}));
    EXPECT_TRUE(std::isnan(out[4])) << device.name;
    EXPECT_EQ(out[5], 1) << device.name;
    EXPECT_EQ(out[17], 7) << device.name;
    EXPECT_EQ(out[18], 100) << device.name;
  }
}

TEST(GatherRows, CopiesTheNamedRowsAndNothingElse) {
  Random random(6);
  const std::vector<float> x = random.normals(10 * 8);
  const std::vector<int32_t> indices = {9, 0, 3, 3};
  std::vector<float> out(4 * 7, std::nanf(""));
  const auto device = test::make_device("auto", 2);
  gather_rows(device->context(),
              {.x = x.data(),
               .x_stride = 8,
               .n = 6,
               .indices = indices,
               .out = out.data(),
               .out_stride = 7});
  for (size_t i = 0; i < indices.size(); ++i) {
    for (size_t d = 0; d < 6; ++d) {
      EXPECT_EQ(out[i * 7 + d], x[static_cast<size_t>(indices[i]) * 8 + d]);
    }
    EXPECT_TRUE(std::isnan(out[i * 7 + 6]));
  }
}

TEST(GatherRows, IndicesBelowZeroNameRowsOfTheOtherMatrix) {
  const std::vector<float> x = {0, 1, 2, 3};
  const std::vector<float> others = {10, 11, -1, 20, 21, -1};
  const std::vector<int32_t> indices = {-2, 1, -1, 0};
  std::vector<float> out(8);
  const auto device = test::make_device("auto", 2);
  gather_rows(device->context(),
              {.x = x.data(),
               .x_stride = 2,
               .n = 2,
               .indices = indices,
               .out = out.data(),
               .out_stride = 2,
               .others = others.data(),
               .others_stride = 3});
  EXPECT_EQ(out, (std::vector<float>{20, 21, 2, 3, 10, 11, 0, 1}));
}

TEST(SelectColumns, PutsColumnsInTheirPlacesAndFillsTheOthers) {
  const std::vector<float> x = {0, 1, 2, -1, 3, 4, 5, -1};
  const std::vector<int32_t> columns = {-1, 2, 0, -1, 1};
  std::vector<float> out(12, 7);
  const auto device = test::make_device("auto", 2);
  select_columns(device->context(),
                 {.x = x.data(),
                  .x_stride = 4,
                  .num_rows = 2,
                  .columns = columns,
                  .absent = -9,
                  .out = out.data(),
                  .out_stride = 6});
  EXPECT_EQ(out, (std::vector<float>{-9, 2, 0, -9, 1, 7, -9, 5, 3, -9, 4, 7}));
}

}  // namespace
}  // namespace sluice::kernels
