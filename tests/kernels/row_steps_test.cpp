// SPDX-License-Identifier: Apache-2.0
// Steps that follow a linear layer give the results of the operators run by themselves.
#include "kernels/row_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "kernels/recurrent.h"
#include "quant/repack.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"

namespace sluice::kernels::testing {
namespace {

constexpr int32_t kIn = 96;
constexpr int32_t kOut = 80;

std::vector<float> random_floats(size_t count, uint64_t seed) {
  test::Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = random.uniform() - 0.5F;
  return values;
}

// Two matrices over the same rows into `half`, like gate and up. The steps are half of a layer with
// a norm after it: norm, residual, norm and quantization for the next.
struct Layer {
  explicit Layer(int32_t rows)
      : num_rows(rows),
        x(int64_t{rows} * kIn * int64_t{sizeof(float)}),
        residual(random_floats(static_cast<size_t>(rows) * 2 * kOut, 2)),
        half(residual.size()),
        next_bytes(activation_bytes(ActivationFormat::kInt8, rows, int64_t{2} * kOut)),
        next(next_bytes) {
    const std::vector<float> values = random_floats(static_cast<size_t>(rows) * kIn, 1);
    std::memcpy(x.data(), values.data(), values.size() * sizeof(float));
  }

  RowSteps steps() {
    RowSteps steps;
    steps.add(HeadNormArgs{.x = half.data(),
                           .x_stride = 2 * kOut,
                           .num_rows = num_rows,
                           .num_heads = 2,
                           .n = kOut,
                           .weight = norm.data(),
                           .eps = 1e-5F});
    steps.add(AddRowsArgs{.x = residual.data(),
                          .x_stride = 2 * kOut,
                          .y = half.data(),
                          .y_stride = 2 * kOut,
                          .num_rows = num_rows,
                          .n = 2 * kOut});
    steps.add(ScaleRowsArgs{.x = residual.data(),
                            .x_stride = 2 * kOut,
                            .num_rows = num_rows,
                            .n = 2 * kOut,
                            .scale = 0.75F});
    steps.add(RmsNormArgs{.x = residual.data(),
                          .x_stride = 2 * kOut,
                          .weight = norm.data(),
                          .eps = 1e-5F,
                          .out = carve_activations(
                              ActivationFormat::kInt8, num_rows, int64_t{2} * kOut, next.data())});
    return steps;
  }

  void run(const ExecContext& ctx, const std::vector<PackedWeight>& weights, bool as_steps) {
    const Activations in = carve_activations(ActivationFormat::kFloat, num_rows, kIn, x.data());
    const RowGroup groups[] = {
        {.weight = weights.data(), .out = half.data(), .out_stride = 2 * kOut, .bias = nullptr},
        {.weight = &weights[1],
         .out = half.data() + kOut,
         .out_stride = 2 * kOut,
         .bias = nullptr}};
    const RowSteps then = steps();
    linear(ctx, {.x = in, .groups = groups, .then = as_steps ? &then : nullptr});
    if (!as_steps) run_row_steps(ctx, then);
  }

  int32_t num_rows;
  AlignedBuffer x;
  std::vector<float> residual;
  std::vector<float> half;
  std::vector<float> norm = random_floats(2 * kOut, 3);
  int64_t next_bytes;
  AlignedBuffer next;
};

// Two float matrices.
struct Weights {
  Weights() {
    const std::vector<float> values = random_floats(size_t{2} * kOut * kIn, 4);
    for (int i = 0; i < 2; ++i) {
      AlignedBuffer& bytes = packed.emplace_back(packed_bytes(WeightFormat::kF32, kOut, kIn));
      pack_weight(
          WeightFormat::kF32,
          reinterpret_cast<const std::byte*>(values.data() + static_cast<size_t>(i) * kOut * kIn),
          kOut,
          kIn,
          0,
          ceil_div(kOut, kRowTile),
          bytes.data());
      weights.push_back({.format = WeightFormat::kF32, .n = kOut, .k = kIn, .data = bytes.data()});
    }
  }

  std::vector<AlignedBuffer> packed;
  std::vector<PackedWeight> weights;
};

TEST(RowSteps, OfALinearLayerEqualTheOperators) {
  const Weights two;
  const std::vector<test::NamedDevice> devices = test::devices({1, 2, 3, 8});
  for (const int32_t rows : {1, 2, 3, 8, 9, 16, 33, 64, 130, 200}) {
    Layer expected(rows);
    expected.run(devices.front().device->context(), two.weights, false);
    for (const test::NamedDevice& device : devices) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        Layer layer(rows);
        layer.run(device.device->context(), two.weights, true);
        ASSERT_EQ(layer.residual, expected.residual) << device.name << " rows " << rows;
        ASSERT_EQ(
            std::memcmp(
                layer.next.data(), expected.next.data(), static_cast<size_t>(layer.next_bytes)),
            0)
            << device.name << " rows " << rows;
      }
    }
  }
}

// The rows are more than the row blocks hold.
TEST(RowSteps, TakeAnyNumberOfRows) {
  const Weights two;
  const auto device = test::make_device("auto", 2);
  constexpr int32_t kRows = 65600;
  Layer expected(kRows);
  expected.run(device->context(), two.weights, false);
  Layer layer(kRows);
  layer.run(device->context(), two.weights, true);
  EXPECT_EQ(
      std::memcmp(layer.next.data(), expected.next.data(), static_cast<size_t>(layer.next_bytes)),
      0);
}

// Compares a sum of each row as a step of a layer of integers and as an operator.
void expect_same_sums(const ExecContext& ctx, int32_t rows, int32_t n) {
  std::mt19937 rng(1);
  const TestWeight weight = make_weight(WeightFormat::kQ4_1, n, kIn, Values::kOrdinary, rng);
  const TestActivations x =
      make_activations(ActivationFormat::kInt8, rows, kIn, Values::kOrdinary, rng);
  const auto run = [&](bool as_steps) {
    std::vector<float> half(static_cast<size_t>(rows) * static_cast<size_t>(n));
    std::vector<float> sum(half.size(), 1.0F);
    const RowGroup group = {
        .weight = &weight.view, .out = half.data(), .out_stride = n, .bias = nullptr};
    RowSteps then;
    then.add(AddRowsArgs{
        .x = sum.data(), .x_stride = n, .y = half.data(), .y_stride = n, .num_rows = rows, .n = n});
    linear(ctx, {.x = x.view, .groups = {&group, 1}, .then = as_steps ? &then : nullptr});
    if (!as_steps) run_row_steps(ctx, then);
    return sum;
  };
  EXPECT_TRUE(run(true) == run(false)) << "rows " << rows << " n " << n;
}

// Integer kernels keep a row block's state on the stack.
TEST(RowSteps, TakeAnyNumberOfRowsOfIntegers) {
  expect_same_sums(test::make_device("auto", 2)->context(), 65600, kOut);
}

// Rows are cut for their steps unless there are tiles for every thread; both are tested.
TEST(RowSteps, FollowFewRowsOfIntegersOverAnyNumberOfTiles) {
  for (const test::NamedDevice& device : test::devices({1, 2, 3})) {
    SCOPED_TRACE(device.name);
    for (const int32_t rows : {3, 4, 5, 8, 9, 15, 16, 40, 127, 128}) {
      for (const int32_t n : {kOut, 16 * 12 * 2, 16 * 12 * 3 + 5}) {
        expect_same_sums(device.device->context(), rows, n);
      }
    }
  }
}

// In double: the gate, then the norm of each group.
std::vector<double> gated_and_normed(const std::vector<float>& x,
                                     const std::vector<float>& gate,
                                     const std::vector<float>& weight,
                                     int32_t groups) {
  std::vector<double> y(x.begin(), x.end());
  for (size_t i = 0; i < y.size(); ++i) y[i] *= gate[i] / (1 + std::exp(-double{gate[i]}));
  const size_t width = weight.size();
  const size_t n = width / static_cast<size_t>(groups);
  for (size_t first = 0; first < y.size(); first += n) {
    double sum = 0;
    for (size_t i = first; i < first + n; ++i) sum += y[i] * y[i];
    const double r = 1 / std::sqrt(sum / static_cast<double>(n) + 1e-5);
    for (size_t i = first; i < first + n; ++i) y[i] *= r * weight[i % width];
  }
  return y;
}

TEST(GatedNorm, GatesAndThenNormsEachGroup) {
  constexpr int32_t kRows = 3;
  constexpr int32_t kHeads = 3;
  constexpr int32_t kHead = 32;
  constexpr int32_t kNormed = kHeads * kHead;
  constexpr int32_t kStride = 128;
  test::Random random(13);
  const std::vector<float> x = random.normals(kRows * kNormed);
  const std::vector<float> gate = random.normals(kRows * kNormed);
  const std::vector<float> weight = random.normals(kNormed);
  for (const int32_t groups : {1, 3}) {
    const std::vector<double> exact = gated_and_normed(x, gate, weight, groups);
    std::vector<float> first;
    for (const auto& device : test::devices({1, 2})) {
      std::vector<float> y(kRows * kStride);
      for (int32_t row = 0; row < kRows; ++row) {
        std::copy_n(x.data() + row * kNormed, kNormed, y.data() + row * kStride);
      }
      // Two ranks' heads, which join a group's norm.
      std::vector<std::vector<float>> sums(2, std::vector<float>(kRows * kHeads));
      const std::array<std::pair<int32_t, int32_t>, 2> ranks = {{{0, 2}, {2, 1}}};
      for (size_t rank = 0; rank < 2; ++rank) {
        const auto [begin, count] = ranks[rank];
        gated_squares(device.device->context(),
                      {.x = y.data() + begin * kHead,
                       .x_stride = kStride,
                       .gate = gate.data() + begin * kHead,
                       .gate_stride = kNormed,
                       .num_rows = kRows,
                       .num_heads = count,
                       .n = kHead,
                       .sums = sums[rank].data(),
                       .first = begin,
                       .whole = kHeads});
      }
      for (const auto& [begin, count] : ranks) {
        group_norm(device.device->context(),
                   {.x = y.data() + begin * kHead,
                    .x_stride = kStride,
                    .num_rows = kRows,
                    .num_heads = count,
                    .n = kHead,
                    .parts = {sums[0].data(), sums[1].data()},
                    .num_parts = 2,
                    .first = begin,
                    .whole = kHeads,
                    .num_groups = groups,
                    .weight = weight.data() + begin * kHead,
                    .eps = 1e-5F});
      }
      if (first.empty()) first = y;
      ASSERT_EQ(std::memcmp(y.data(), first.data(), y.size() * 4), 0) << device.name;
      for (int32_t i = 0; i < kRows * kNormed; ++i) {
        const int32_t at = i / kNormed * kStride + i % kNormed;
        ASSERT_NEAR(y[static_cast<size_t>(at)], exact[static_cast<size_t>(i)], 3e-6) << groups;
      }
    }
  }
}

TEST(HeadNorm, HeadsMayHaveWeightsOfTheirOwn) {
  constexpr int32_t kRows = 2;
  constexpr int32_t kHeads = 3;
  constexpr int32_t kWidth = 21;
  constexpr int64_t kStride = 70;
  test::Random random(33);
  const std::vector<float> x = random.normals(kRows * kStride);
  const std::vector<float> weight = random.normals(kHeads * kWidth);
  for (const auto& device : test::devices({1, 2})) {
    HeadNormArgs args{.x = nullptr,
                      .x_stride = kStride,
                      .num_rows = kRows,
                      .num_heads = kHeads,
                      .n = kWidth,
                      .weight = weight.data(),
                      .eps = 1e-6F,
                      .subtracts_mean = true,
                      .weight_step = kWidth};
    std::vector<float> together = x;
    args.x = together.data();
    head_norm(device.device->context(), args);
    std::vector<float> apart = x;
    args.num_heads = 1;
    for (int32_t head = 0; head < kHeads; ++head) {
      args.x = apart.data() + head * kWidth;
      args.weight = weight.data() + head * kWidth;
      head_norm(device.device->context(), args);
    }
    EXPECT_EQ(together, apart) << device.name;
  }
}

}  // namespace
}  // namespace sluice::kernels::testing
