// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

TEST(CudaNorm, RmsNormHasTheBitsOfTheCpuInEveryFormat) {
  constexpr int32_t kRows = 3;
  Random random(11);
  for (const int32_t n : {1, 40, 576, 1000}) {
    SCOPED_TRACE("n " + std::to_string(n));
    const int64_t stride = n + 3;
    std::vector<float> x = random.normals(static_cast<size_t>(kRows * stride), 3);
    const std::vector<float> weight = random.normals(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) x[static_cast<size_t>(stride + i)] = 0;  // row 1
    test::expect_rows_equal(
        kRows,
        n,
        [&](const Activations& out) {
          return RmsNormArgs{
              .x = x.data(), .x_stride = stride, .weight = weight.data(), .eps = 1e-5F, .out = out};
        },
        rms_norm,
        cuda::launch_rms_norm);
  }
}

void expect_normed(int32_t rows,
                   int32_t n,
                   const std::vector<ActivationFormat>& formats,
                   bool subtracts_mean = false) {
  SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(n));
  Random random(13);
  const std::vector<float> x = random.normals(static_cast<size_t>(rows) * n);
  const std::vector<float> weight = random.normals(static_cast<size_t>(n));
  test::expect_rows_equal(
      rows,
      n,
      [&](const Activations& out) {
        return RmsNormArgs{.x = x.data(),
                           .x_stride = n,
                           .weight = weight.data(),
                           .eps = 1e-5F,
                           .out = out,
                           .subtracts_mean = subtracts_mean,
                           .bias = subtracts_mean && rows > 1 ? x.data() : nullptr};
      },
      rms_norm,
      cuda::launch_rms_norm,
      formats,
      test::Seeds::kOne);
}

// Rows are longer than the weights that a thread holds, or more than blocks of many threads.
TEST(CudaNorm, LongRowsAndManyRowsHaveTheBitsOfTheCpu) {
  expect_normed(1, 2600, {ActivationFormat::kInt8});
  expect_normed(1, 8500, {ActivationFormat::kBF16, ActivationFormat::kInt8Token});
  expect_normed(265, 600, {ActivationFormat::kBF16, ActivationFormat::kInt8Token});
}

TEST(CudaNorm, NormsThatSubtractTheMeanHaveTheBitsOfTheCpu) {
  const std::vector<ActivationFormat> formats = {
      ActivationFormat::kFloat, ActivationFormat::kInt8, ActivationFormat::kInt8Token};
  for (const int32_t n : {1, 70, 1000}) {
    for (const int32_t rows : {1, 3}) expect_normed(rows, n, formats, true);
  }
}

TEST(CudaNorm, AnInfiniteValueMakesItsRowsScalesNaN) {
  constexpr int32_t kN = 64;
  std::vector<float> x(2 * kN, 1.0F);
  const std::vector<float> weight(kN, 1.0F);
  x[5] = std::numeric_limits<float>::infinity();
  test::DeviceBytes bytes(activation_bytes(ActivationFormat::kInt8Token, 2, kN));
  const Activations out = carve_activations(ActivationFormat::kInt8Token, 2, kN, bytes.data());
  test::on_schedules([&] {
    cuda::launch_rms_norm(
        nullptr, {.x = x.data(), .x_stride = kN, .weight = weight.data(), .eps = 0, .out = out});
    EXPECT_TRUE(std::isnan(*activation_group(out, 0, 0).scale));
    EXPECT_FLOAT_EQ(*activation_group(out, 1, 0).scale, 1.0F / 127);
  });
}

void expect_heads_normed(int32_t n, bool subtracts_mean, int64_t weight_step = 0) {
  constexpr int32_t kRows = 3;
  constexpr int32_t kHeads = 3;  // 9 heads: the last block is not full
  SCOPED_TRACE("n " + std::to_string(n));
  Random random(12);
  const int64_t stride = int64_t{kHeads} * n + 5;
  // A row follows that is not theirs.
  const std::vector<float> x = random.normals(static_cast<size_t>((kRows + 1) * stride));
  const std::vector<float> weight =
      random.normals(static_cast<size_t>(n + (kHeads - 1) * weight_step));
  HeadNormArgs args{.x = nullptr,
                    .x_stride = stride,
                    .num_rows = kRows,
                    .num_heads = kHeads,
                    .n = n,
                    .weight = weight.data(),
                    .eps = 1e-6F,
                    .subtracts_mean = subtracts_mean,
                    .bias = subtracts_mean ? x.data() : nullptr,
                    .weight_step = weight_step};
  std::vector<float> want = x;
  args.x = want.data();
  head_norm(test::make_device("scalar", 1)->context(), args);
  test::on_schedules([&] {
    std::vector<float> got = x;
    args.x = got.data();
    cuda::launch_head_norm(nullptr, args);
    test::expect_same_floats(got, want);
    std::vector<float> source = x;
    got = x;
    args.x = source.data();
    args.out = got.data();
    cuda::launch_head_norm(nullptr, args);
    args.out = nullptr;
    test::expect_same_floats(got, want);
    test::expect_same_floats(source, x);
  });
}

TEST(CudaNorm, JoinedNormsHaveTheBitsOfTheCpu) {
  constexpr int32_t kRows = 3;
  constexpr int32_t kHeads = 3;  // of five
  constexpr int32_t kWhole = 5;
  Random random(14);
  for (const int32_t n : {16, 70}) {
    const int64_t stride = int64_t{kHeads} * n + 5;
    const std::vector<float> x = random.normals(static_cast<size_t>(kRows * stride));
    const std::vector<float> weight = random.normals(static_cast<size_t>(kHeads * n));
    std::vector<float> others = random.normals(kRows * kWhole);
    for (float& value : others) value = std::fabs(value) * static_cast<float>(n);
    std::vector<float> sums(kRows * kWhole, -1.0F);
    const auto squares_args = [&](std::vector<float>& out) {
      return HeadSquaresArgs{.x = x.data(),
                             .x_stride = stride,
                             .num_rows = kRows,
                             .num_heads = kHeads,
                             .n = n,
                             .out = out.data(),
                             .out_stride = kWhole,
                             .first = 1,
                             .whole = kWhole};
    };
    const auto norm_args = [&](std::vector<float>& out) {
      return JoinedNormArgs{.x = out.data(),
                            .x_stride = stride,
                            .num_rows = kRows,
                            .num_heads = kHeads,
                            .n = n,
                            .parts = {sums.data(), others.data()},
                            .num_parts = 2,
                            .parts_stride = kWhole,
                            .whole = kWhole,
                            .weight = weight.data(),
                            .eps = 1e-5F};
    };
    const auto device = test::make_device("scalar", 1);
    head_squares(device->context(), squares_args(sums));
    std::vector<float> want = x;
    joined_norm(device->context(), norm_args(want));
    test::on_schedules([&] {
      std::vector<float> got_sums(sums.size(), -1.0F);
      cuda::launch_head_squares(nullptr, squares_args(got_sums));
      test::expect_same_floats(got_sums, sums);
      std::vector<float> got = x;
      cuda::launch_joined_norm(nullptr, norm_args(got));
      test::expect_same_floats(got, want);
    });
  }
}

TEST(CudaNorm, HeadNormHasTheBitsOfTheCpu) {
  for (const int32_t n : {16, 70, 128, 515}) {  // the last one takes a block a head
    expect_heads_normed(n, false);
  }
  expect_heads_normed(70, true);
  expect_heads_normed(515, true);
  expect_heads_normed(70, true, 71);
  expect_heads_normed(515, false, 515);
}

}  // namespace
}  // namespace sluice::kernels
