// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <span>

#include "kernels/elementwise.h"
#include "kernels/moe.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"
#include "tests/support/plain_matrix.h"

namespace sluice::kernels::testing {
namespace {

constexpr int32_t kTokens = 47;
constexpr int32_t kChoices = 2;
constexpr int64_t kWidth = 512;
constexpr float kPoison = 1234.5F;
constexpr int32_t kExperts = 6;
constexpr size_t kMatrices = 2;
constexpr std::array<int64_t, kMatrices> kOutputs = {40, 21};

// Returns choices that give expert 1 nothing, 2 every token, 4 and 5 few.
std::vector<int32_t> choices() {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kTokens; ++i) {
    ids.push_back(i % 17 == 3 ? 0 : 2);
    ids.push_back(i % 17 == 3 ? 2 : i % 16 == 5 ? 5 : i % 3 == 0 ? 4 : 3);
  }
  return ids;
}

struct Placed {
  std::array<int32_t, kExperts> first{};
  std::array<int32_t, kExperts> count{};
  std::array<int32_t, kExperts> chosen{};
  int32_t num_chosen = 0;
  std::vector<int32_t> rows;
  int64_t num_rows = 0;

  [[nodiscard]] ExpertRows experts() {
    return {.num_experts = kExperts,
            .first = first.data(),
            .count = count.data(),
            .chosen = chosen.data(),
            .num_chosen = &num_chosen};
  }
};

Placed place(const ExecContext& ctx, const std::vector<int32_t>& ids) {
  Placed placed;
  placed.rows.resize(ids.size());
  const auto num_pairs = static_cast<int32_t>(ids.size());
  place_rows(ctx,
             {.ids = ids.data(),
              .num_pairs = num_pairs,
              .rows = placed.rows.data(),
              .experts = placed.experts()});
  placed.num_rows = max_expert_rows(num_pairs, kExperts);
  return placed;
}

struct Case {
  WeightFormat weight;
  ActivationFormat activation;
};

class LinearExperts : public ::testing::TestWithParam<Case> {};

TestWeight make_any_weight(WeightFormat format, int64_t n, std::mt19937& rng) {
  if (format != WeightFormat::kInt8Channel) {
    return make_weight(format, n, kWidth, Values::kOrdinary, rng);
  }
  TestWeight w{.format = format,
               .n = n,
               .k = kWidth,
               .checkpoint = {},
               .packed = AlignedBuffer(packed_bytes(format, n, kWidth)),
               .view = {format, static_cast<int32_t>(n), kWidth, nullptr}};
  std::vector<int8_t> codes(static_cast<size_t>(n * kWidth));
  for (int8_t& code : codes) code = static_cast<int8_t>(rng());
  std::vector<float> scales(static_cast<size_t>(n));
  for (float& scale : scales) scale = std::uniform_real_distribution<float>(0.0F, 0.01F)(rng);
  sluice::test::pack_int8_rows(codes.data(), scales.data(), n, kWidth, w.packed.data());
  w.view.data = w.packed.data();
  return w;
}

// Returns one row of x through one matrix, alone.
std::vector<float> alone(const ExecContext& ctx,
                         ActivationFormat format,
                         const float* x,
                         const TestWeight& weight,
                         const float* bias) {
  const AlignedBuffer buffer(activation_bytes(format, 1, kWidth));
  const Activations row = carve_activations(format, 1, kWidth, buffer.data());
  quantize_activations(ctx, {.x = x, .x_stride = kWidth, .out = row});
  std::vector<float> out(static_cast<size_t>(weight.n));
  const RowGroup group{
      .weight = &weight.view, .out = out.data(), .out_stride = weight.n, .bias = bias};
  linear(ctx, {.x = row, .groups = {&group, 1}});
  return out;
}

TEST_P(LinearExperts, GivesEachRowTheBitsItHasAlone) {
  const auto [format, activation] = GetParam();
  std::mt19937 rng(20);
  std::vector<TestWeight> weights;
  for (size_t i = 0; i < kExperts * kMatrices; ++i) {
    weights.push_back(make_any_weight(format, kOutputs[i % kMatrices], rng));
  }
  test::Random random(21);
  const std::vector<float> x = random.normals(static_cast<size_t>(kTokens * kWidth));
  const std::vector<float> bias = random.normals(static_cast<size_t>(kOutputs[1]));
  std::vector<ExpertMatrix> matrices;
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool second = i % kMatrices == 1;
    matrices.push_back({.weight = &weights[i].view,
                        .bias = second ? bias.data() : nullptr,
                        .column = second ? kOutputs[0] : 0});
  }
  const std::vector<int32_t> ids = choices();
  const int64_t stride = kOutputs[0] + kOutputs[1] + 3;
  std::vector<float> first_bits;
  for (const auto& device : test::devices({1, 2, 3})) {
    const ExecContext ctx = device.device->context();
    Placed placed = place(ctx, ids);
    const AlignedBuffer buffer(activation_bytes(activation, placed.num_rows, kWidth));
    const Activations in = carve_activations(activation, placed.num_rows, kWidth, buffer.data());
    quantize_activations(
        ctx,
        {.x = x.data(), .x_stride = kWidth, .out = in, .rows = placed.rows, .repeat = kChoices});
    std::vector<float> out(static_cast<size_t>(placed.num_rows * stride), kPoison);
    linear_experts(ctx,
                   {.x = in,
                    .matrices = matrices,
                    .matrices_per_expert = kMatrices,
                    .rows = placed.experts(),
                    .out = out.data(),
                    .out_stride = stride});
    if (first_bits.empty()) first_bits = out;
    ASSERT_EQ(std::memcmp(out.data(), first_bits.data(), out.size() * sizeof(float)), 0)
        << device.name;
    if (device.isa == Isa::kScalar && device.threads > 1) continue;  // slow, and has the same rows
    std::vector<bool> written(out.size(), false);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto expert = static_cast<size_t>(ids[i]);
      const auto row = static_cast<size_t>(placed.rows[i] * stride);
      for (size_t m = 0; m < kMatrices; ++m) {
        const ExpertMatrix& matrix = matrices[expert * kMatrices + m];
        const auto expected = alone(ctx,
                                    activation,
                                    x.data() + i / kChoices * static_cast<size_t>(kWidth),
                                    weights[expert * kMatrices + m],
                                    matrix.bias);
        const size_t at = row + static_cast<size_t>(matrix.column);
        ASSERT_EQ(std::memcmp(&out[at], expected.data(), expected.size() * sizeof(float)), 0)
            << device.name << " pair " << i << " matrix " << m;
        std::fill_n(written.begin() + static_cast<ptrdiff_t>(at), expected.size(), true);
      }
    }
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_TRUE(written[i] || out[i] == kPoison) << "wrote into a row of no expert";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats,
    LinearExperts,
    ::testing::Values(Case{WeightFormat::kQ4_K, ActivationFormat::kInt8},
                      Case{WeightFormat::kQ6_K, ActivationFormat::kInt16},
                      Case{WeightFormat::kMXFP4, ActivationFormat::kInt8},
                      Case{WeightFormat::kQ8_0, ActivationFormat::kFloat},
                      Case{WeightFormat::kBF16, ActivationFormat::kFloat},
                      Case{WeightFormat::kNVFP4, ActivationFormat::kInt8},
                      Case{WeightFormat::kInt4Group32, ActivationFormat::kInt16},
                      Case{WeightFormat::kInt4Group128, ActivationFormat::kInt8},
                      Case{WeightFormat::kInt8Group32, ActivationFormat::kInt8},
                      Case{WeightFormat::kE4M3Channel, ActivationFormat::kE4M3Token},
                      Case{WeightFormat::kE4M3Block, ActivationFormat::kE4M3Group},
                      Case{WeightFormat::kInt8Channel, ActivationFormat::kInt8Token}),
    [](const auto& row) { return test_name(row.param.weight); });

TEST(GateMul, OfSomeRowsLeavesTheOthers) {
  constexpr int64_t kColumns = 40;
  test::Random random(22);
  const std::vector<float> gate = random.normals(5 * kColumns);
  const std::vector<float> up = random.normals(5 * kColumns);
  constexpr std::array<int32_t, 2> kRows = {3, 1};
  for (const auto& device : test::devices({1, 2})) {
    const ExecContext ctx = device.device->context();
    const int64_t bytes = activation_bytes(ActivationFormat::kFloat, 5, kColumns);
    const AlignedBuffer all(bytes);
    const AlignedBuffer some(bytes);
    const auto run = [&](const AlignedBuffer& out, std::span<const int32_t> rows) {
      gate_mul(ctx,
               {.gate = gate.data(),
                .up = up.data(),
                .stride = kColumns,
                .out = carve_activations(ActivationFormat::kFloat, 5, kColumns, out.data()),
                .rows = rows});
    };
    run(all, {});
    const std::vector<std::byte> before(some.data(), some.data() + bytes);
    run(some, kRows);
    const size_t row_bytes = static_cast<size_t>(bytes) / 5;
    for (size_t row = 0; row < 5; ++row) {
      const bool named = row == 1 || row == 3;
      const std::byte* expected = (named ? all.data() : before.data()) + row * row_bytes;
      EXPECT_EQ(std::memcmp(some.data() + row * row_bytes, expected, row_bytes), 0)
          << device.name << " row " << row;
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::testing
