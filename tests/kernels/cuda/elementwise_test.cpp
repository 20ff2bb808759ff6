// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"
#include "tests/support/plain_matrix.h"

namespace sluice::kernels {
namespace {

using test::Random;

const ExecContext& cpu() {
  static const auto device = test::make_device("scalar", 1);
  return device->context();
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Its low bits differ from x86's NaN: shifted into an exponent they give a number.
constexpr auto kGpusNan = std::bit_cast<float>(0x7FFFFFFFU);

TEST(CudaElementwise, QuantizeHasTheBytesOfTheCpu) {
  constexpr int32_t kRows = 11;  // two blocks of activations
  Random random(21);
  for (const int32_t k : {1, 50, 160}) {
    std::vector<float> x = random.normals(static_cast<size_t>(kRows * k), 2);
    x[0] = 0x1p-140F;  // alone in its group for k = 1: 1 / scale overflows
    if (k > 1) x[3] = -std::numeric_limits<float>::infinity();
    if (k > 1) x[static_cast<size_t>(2 * k)] = kNan;
    if (k > 1) x[static_cast<size_t>(3 * k)] = kGpusNan;
    if (k > 100) x[static_cast<size_t>(k) + 40] = 1e30F;
    test::expect_rows_equal(
        kRows,
        k,
        [&](const Activations& out) {
          return QuantizeArgs{.x = x.data(), .x_stride = k, .out = out};
        },
        quantize_activations,
        cuda::launch_quantize_activations);
  }
}

void expect_quantized(int32_t rows, int32_t k, const std::vector<ActivationFormat>& formats) {
  SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(k));
  const std::vector<float> x = Random(28).normals(static_cast<size_t>(rows) * k, 2);
  test::expect_rows_equal(
      rows,
      k,
      [&](const Activations& out) {
        return QuantizeArgs{.x = x.data(), .x_stride = k, .out = out};
      },
      quantize_activations,
      cuda::launch_quantize_activations,
      formats,
      test::Seeds::kOne);
}

// Rows in pieces, pieces that grow with the number of rows, rows longer than threads can hold.
TEST(CudaElementwise, LongRowsAndManyRowsAreQuantizedAsOnTheCpu) {
  expect_quantized(2, 1101, test::kAllFormats);
  expect_quantized(700, 1100, {ActivationFormat::kBF16, ActivationFormat::kInt8});
  expect_quantized(1, 2200, {ActivationFormat::kInt8Token});
  expect_quantized(1, 16500, {ActivationFormat::kInt8Token});
}

TEST(CudaElementwise, QuantizeScattersRepeatedRowsAndLeavesTheOthers) {
  constexpr int32_t kRows = 9;
  constexpr int32_t kK = 40;
  Random random(22);
  const std::vector<float> x = random.normals(3 * kK);
  const std::vector<int32_t> rows = {8, 1, 0, 3, 7, 4};
  test::expect_rows_equal(
      kRows,
      kK,
      [&](const Activations& out) {
        return QuantizeArgs{.x = x.data(), .x_stride = kK, .out = out, .rows = rows, .repeat = 2};
      },
      quantize_activations,
      cuda::launch_quantize_activations);
}

TEST(CudaElementwise, EveryGateFunctionHasTheBitsOfTheCpu) {
  constexpr int32_t kRows = 3;
  Random random(23);
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
    for (const int32_t n : {33, 300}) {
      const int64_t stride = n + 7;
      std::vector<float> gate = random.normals(static_cast<size_t>(kRows * stride), 5);
      const std::vector<float> up = random.normals(static_cast<size_t>(kRows * stride), 6);
      const std::array<float, 12> edges = {
          0.0F, -0.0F, 100.0F, -100.0F, 88.5F, 0x1p-130F, kNan, kGpusNan, -kNan, -0.25F, -0.2F,
          -0.3F};
      std::copy(edges.begin(), edges.end(), gate.begin());
      test::expect_rows_equal(
          kRows,
          n,
          [&](const Activations& out) {
            return GateMulArgs{.gate = gate.data(),
                               .up = up.data(),
                               .stride = stride,
                               .function = function,
                               .xielu = {.above = 0.75F, .below = 1.25F, .slope = 0.5F},
                               .out = out};
          },
          gate_mul,
          cuda::launch_gate_mul);
    }
  }
  const std::vector<int32_t> rows = {2, 0};
  const std::vector<float> gate = random.normals(3 * 64);
  test::expect_rows_equal(
      3,
      64,
      [&](const Activations& out) {
        return GateMulArgs{
            .gate = gate.data(), .up = gate.data(), .stride = 64, .limit = 0.5F, .out = out};
      },
      gate_mul,
      cuda::launch_gate_mul);
  test::expect_rows_equal(
      3,
      64,
      [&](const Activations& out) {
        return GateMulArgs{
            .gate = gate.data(), .up = gate.data(), .stride = 64, .out = out, .rows = rows};
      },
      gate_mul,
      cuda::launch_gate_mul);
}

TEST(CudaElementwise, AddRowsHasTheBitsOfTheCpuAndTouchesNothingBetweenRows) {
  constexpr int32_t kRows = 3;
  Random random(24);
  for (const int32_t n : {1, 511, 513, 1100}) {
    const int64_t stride = n + 2;
    const std::vector<float> x = random.normals(static_cast<size_t>(kRows * stride));
    const std::vector<float> y = random.normals(static_cast<size_t>(kRows * stride));
    std::vector<float> want = x;
    AddRowsArgs args{.x = want.data(),
                     .x_stride = stride,
                     .y = y.data(),
                     .y_stride = stride,
                     .num_rows = kRows,
                     .n = n,
                     .scale = 0.3F};
    add_rows(cpu(), args);
    test::on_schedules([&] {
      std::vector<float> got = x;
      args.x = got.data();
      cuda::launch_add_rows(nullptr, args);
      test::expect_same_floats(got, want);
    });
  }
}

TEST(CudaElementwise, ScaleRowsHasTheBitsOfTheCpuWithAndWithoutCaps) {
  constexpr int32_t kRows = 2;
  constexpr int32_t kN = 700;
  Random random(25);
  std::vector<float> x = random.normals(kRows * kN, 20);
  x[0] = 0;
  x[1] = -0.0F;
  x[2] = 1e30F;
  x[3] = kNan;
  x[4] = kGpusNan;
  for (const auto& [soft_cap, limit] :
       {std::pair(0.0F, 0.0F), {30.0F, 0.0F}, {0.0F, 9.0F}, {30.0F, 9.0F}}) {
    std::vector<float> want = x;
    ScaleRowsArgs args{.x = want.data(),
                       .x_stride = kN,
                       .num_rows = kRows,
                       .n = kN,
                       .scale = 1.7F,
                       .soft_cap = soft_cap,
                       .limit = limit};
    scale_rows(cpu(), args);
    test::on_schedules([&] {
      std::vector<float> got = x;
      args.x = got.data();
      cuda::launch_scale_rows(nullptr, args);
      test::expect_same_floats(got, want);
    });
  }
}

TEST(CudaElementwise, GatherRowsCopiesRowsThatMayRepeat) {
  constexpr int32_t kN = 530;
  Random random(26);
  const std::vector<float> x = random.normals(4 * kN);
  const std::vector<int32_t> indices = {3, 0, 3};
  std::vector<float> want(3 * (kN + 1), -1.0F);
  GatherRowsArgs args{.x = x.data(),
                      .x_stride = kN,
                      .n = kN,
                      .indices = indices,
                      .out = want.data(),
                      .out_stride = kN + 1};
  gather_rows(cpu(), args);
  test::on_schedules([&] {
    std::vector<float> got(want.size(), -1.0F);
    args.out = got.data();
    cuda::launch_gather_rows(nullptr, args);
    test::expect_same_floats(got, want);
  });
}

TEST(CudaElementwise, GatherRowsTakesRowsOfBothMatrices) {
  constexpr int32_t kN = 530;
  Random random(27);
  const std::vector<float> x = random.normals(4 * kN);
  const std::vector<float> others = random.normals(3 * (kN + 2));
  const std::vector<int32_t> indices = {-1, 3, -3, 0, -1};
  std::vector<float> want(5 * kN, -1.0F);
  GatherRowsArgs args{.x = x.data(),
                      .x_stride = kN,
                      .n = kN,
                      .indices = indices,
                      .out = want.data(),
                      .out_stride = kN,
                      .others = others.data(),
                      .others_stride = kN + 2};
  gather_rows(cpu(), args);
  test::on_schedules([&] {
    std::vector<float> got(want.size(), -1.0F);
    args.out = got.data();
    cuda::launch_gather_rows(nullptr, args);
    test::expect_same_floats(got, want);
  });
}

TEST(CudaElementwise, SelectColumnsIsTheCpus) {
  constexpr int32_t kN = 1100;  // more than a block's piece of a row
  constexpr int32_t kFrom = 70;
  Random random(28);
  const std::vector<float> x = random.normals(3 * kFrom);
  std::vector<int32_t> columns(kN);
  for (int32_t i = 0; i < kN; ++i) {
    columns[static_cast<size_t>(i)] = i % 3 == 1 ? -1 : i * 37 % kFrom;
  }
  std::vector<float> want(3 * (kN + 5), -1.0F);
  SelectColumnsArgs args{.x = x.data(),
                         .x_stride = kFrom,
                         .num_rows = 3,
                         .columns = columns,
                         .absent = -1e30F,
                         .out = want.data(),
                         .out_stride = kN + 5};
  select_columns(cpu(), args);
  test::on_schedules([&] {
    std::vector<float> got(want.size(), -1.0F);
    args.out = got.data();
    cuda::launch_select_columns(nullptr, args);
    test::expect_same_floats(got, want);
  });
}

// One matrix in the layouts of the two backends.
struct Table {
  testing::AlignedBuffer tiles;
  std::vector<std::byte> rows;
  PackedWeight on_cpu;
  PackedWeight on_cuda;
};

Table make_table(WeightFormat format, int32_t n, int32_t k) {
  std::mt19937 rng(4);
  Table table{.tiles = testing::AlignedBuffer(packed_bytes(format, n, k)),
              .rows = std::vector<std::byte>(static_cast<size_t>(matrix_bytes(format, n, k))),
              .on_cpu = {format, n, k, nullptr},
              .on_cuda = {format, n, k, nullptr}};
  table.on_cpu.data = table.tiles.data();
  table.on_cuda.data = table.rows.data();
  if (format != WeightFormat::kInt8Channel) {
    const testing::TestWeight weight =
        testing::make_weight(format, n, k, testing::Values::kOrdinary, rng);
    std::memcpy(
        table.tiles.data(), weight.packed.data(), static_cast<size_t>(packed_bytes(format, n, k)));
    copy_matrix_rows(format, weight.checkpoint.data(), k, 0, n, table.rows.data());
    return table;
  }
  std::vector<int8_t> codes(static_cast<size_t>(n) * static_cast<size_t>(k));
  std::vector<float> scales(static_cast<size_t>(n));
  for (int8_t& code : codes) code = static_cast<int8_t>(rng() % 256);
  for (float& scale : scales) scale = static_cast<float>(rng() % 1000) * 1e-4F;
  sluice::test::pack_int8_rows(codes.data(), scales.data(), n, k, table.tiles.data());
  copy_matrix_rows(
      format, reinterpret_cast<const std::byte*>(codes.data()), k, 0, n, table.rows.data());
  std::memcpy(table.rows.data() + matrix_scales_offset(format, n, k),
              scales.data(),
              scales.size() * sizeof(float));
  return table;
}

TEST(CudaElementwise, EmbeddingHasTheBitsOfTheCpu) {
  constexpr int32_t kVocab = 37;
  constexpr int32_t kK = 70;
  const std::vector<TokenId> tokens = {36, 0, 15, 16, 31, 0};
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16, WeightFormat::kInt8Channel}) {
    const Table table = make_table(format, kVocab, kK);
    std::vector<float> want(tokens.size() * (kK + 5), -1.0F);
    EmbeddingArgs args{
        .table = &table.on_cpu, .token_ids = tokens, .out = want.data(), .out_stride = kK + 5};
    embedding(cpu(), args);
    args.table = &table.on_cuda;
    test::on_schedules([&] {
      std::vector<float> got(want.size(), -1.0F);
      args.out = got.data();
      cuda::launch_embedding(nullptr, args);
      test::expect_same_floats(got, want);
    });
  }
}

}  // namespace
}  // namespace sluice::kernels
