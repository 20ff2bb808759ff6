// SPDX-License-Identifier: Apache-2.0
// Weights in tiles times BF16 rows, against the definition of launch_linear_blocks_half in plain
// loops over the checkpoint's codes: few and many rows, shares of the segments, experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/half_definition.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"

namespace sluice::kernels {
namespace {

using test::Random;
using testing::DecodedRow;
using testing::TestWeight;

constexpr int32_t kN = 52;  // the last tile is not full, nor the last pair of them
constexpr int64_t kPad = 3;

using test::HalfRows;

float reference(const TestWeight& weight,
                int64_t output,
                const uint16_t* x,
                Segments segments,
                simt::TensorCore core) {
  const DecodedRow w = testing::decode_row(weight, output);
  return test::half_reference(weight.format, w, weight.k, x, segments, core);
}

struct Case {
  int32_t rows;
  Segments segments = {};
  Epilogue epilogue = Epilogue::kStore;
};

std::vector<float> expected(const TestWeight& weight,
                            const HalfRows& x,
                            const std::vector<float>& bias,
                            const Case& c,
                            simt::TensorCore core) {
  std::vector<float> want(static_cast<size_t>(c.rows * (kN + kPad)), 0.5F);
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t output = 0; output < kN; ++output) {
      float& out = want[static_cast<size_t>(row * (kN + kPad) + output)];
      float y = reference(weight, output, x.row(row), c.segments, core);
      if (c.segments.are_all()) y += bias[static_cast<size_t>(output)];
      out = c.epilogue == Epilogue::kAdd ? out + y : y;
    }
  }
  return want;
}

class CudaBlocksHalf : public ::testing::TestWithParam<WeightFormat> {
 protected:
  static TestWeight make(int64_t k, testing::Values values, uint32_t seed) {
    std::mt19937 rng(seed);
    return testing::make_weight(GetParam(), kN, k, values, rng);
  }

  static void check(const TestWeight& weight,
                    const Case& c,
                    test::Seeds seeds = test::Seeds::kAll,
                    simt::TensorCore core = simt::kHopperCore) {
    const HalfRows x(c.rows, c.segments.num_columns(weight.k), 91);
    const std::vector<float> bias = Random(92).normals(kN);
    const std::vector<float> want = expected(weight, x, bias, c, core);
    test::on_schedules(
        [&] {
          std::vector<float> out(want.size(), 0.5F);
          cuda::launch_linear_blocks_half(nullptr,
                                          {.x = x.view,
                                           .weight = &weight.view,
                                           .bias = c.segments.are_all() ? bias.data() : nullptr,
                                           .epilogue = c.epilogue,
                                           .out = out.data(),
                                           .out_stride = kN + kPad,
                                           .segments = c.segments});
          test::expect_same_floats(out, want);
        },
        seeds);
  }
};

constexpr WeightFormat kFormats[] = {WeightFormat::kQ4_0,
                                     WeightFormat::kQ4_1,
                                     WeightFormat::kQ5_0,
                                     WeightFormat::kQ5_1,
                                     WeightFormat::kQ8_0,
                                     WeightFormat::kQ2_K,
                                     WeightFormat::kQ3_K,
                                     WeightFormat::kQ4_K,
                                     WeightFormat::kQ5_K,
                                     WeightFormat::kQ6_K,
                                     WeightFormat::kIQ4_NL,
                                     WeightFormat::kIQ4_XS,
                                     WeightFormat::kMXFP4,
                                     WeightFormat::kNVFP4,
                                     WeightFormat::kInt4Group32,
                                     WeightFormat::kInt4Group128,
                                     WeightFormat::kInt8Group32};
constexpr auto kFormatName = [](const auto& info) { return testing::test_name(info.param); };
INSTANTIATE_TEST_SUITE_P(Formats, CudaBlocksHalf, ::testing::ValuesIn(kFormats), kFormatName);

// 4608 leaves segments 18 groups each, which go round a ring of 8 stages twice and more. 3 rows are
// few, 35 go over two tiles of 32 tokens, 67 over two of 64, with one group a segment.
TEST_P(CudaBlocksHalf, HasTheBitsOfItsDefinition) {
  check(make(4608, testing::Values::kOrdinary, 93), {.rows = 3}, test::Seeds::kOne);
  check(make(512, testing::Values::kOrdinary, 97), {.rows = 35, .epilogue = Epilogue::kAdd});
  check(make(256, testing::Values::kOrdinary, 98), {.rows = 67}, test::Seeds::kOne);
  check(make(256, testing::Values::kExtreme, 94), {.rows = 9});
  check(make(256, testing::Values::kDegenerate, 95), {.rows = 1});
}

TEST_P(CudaBlocksHalf, SharesOfTheSegmentsAreSubtrees) {
  const TestWeight weight = make(768, testing::Values::kOrdinary, 96);
  check(weight, {.rows = 2, .segments = {0, 4}});
  check(weight, {.rows = 11, .segments = {6, 2}});
  check(weight, {.rows = 3, .segments = {3, 1}});
}

// A group's columns past k weigh nothing.
TEST_P(CudaBlocksHalf, TakesRowsThatEndInsideOfAGroup) {
  if (!testing::is_plain(GetParam())) GTEST_SKIP() << "its rows are whole blocks";
  check(make(1000, testing::Values::kOrdinary, 102), {.rows = 3});
}

TEST_P(CudaBlocksHalf, SharesJoinToTheWhole) {
  constexpr int64_t kK = 768;
  constexpr int32_t kRows = 3;
  const TestWeight weight = make(kK, testing::Values::kOrdinary, 103);
  const HalfRows x(kRows, kK, 104);
  std::vector<float> want(kRows * kN);
  std::vector<float> out(want.size());
  test::on_schedules([&] {
    cuda::launch_linear_blocks_half(
        nullptr, {.x = x.view, .weight = &weight.view, .out = want.data(), .out_stride = kN});
    std::vector<float> parts[2];
    for (size_t i = 0; i < 2; ++i) {
      const Segments own{static_cast<int32_t>(4 * i), 4};
      const int64_t first = own.first_column(kK);
      const HalfRows some(kRows, own.num_columns(kK), 1);
      for (int64_t row = 0; row < kRows; ++row) {
        std::copy_n(x.row(row) + first, own.num_columns(kK), some.row(row));
      }
      parts[i].resize(want.size());
      cuda::launch_linear_blocks_half(nullptr,
                                      {.x = some.view,
                                       .weight = &weight.view,
                                       .out = parts[i].data(),
                                       .out_stride = kN,
                                       .segments = own});
    }
    const float* const both[] = {parts[0].data(), parts[1].data()};
    cuda::launch_join_parts(
        nullptr,
        {.parts = both, .weight = &weight.view, .x = x.view, .out = out.data(), .out_stride = kN});
    test::expect_same_floats(out, want);
  });
}

// The second of three experts has no rows; the third has more than a tile of few tokens.
TEST_P(CudaBlocksHalf, ExpertsHaveTheBitsOfTheirRowsAlone) {
  constexpr int64_t kK = 256;
  constexpr int32_t kRows = 24;  // a bound
  std::vector<int32_t> first = {0, 8, 8};
  std::vector<int32_t> count = {3, 0, 11};
  std::vector<int32_t> chosen = {0, 2, 1 << 20};
  std::vector<int32_t> num_chosen = {2};
  const int64_t bytes = packed_bytes(GetParam(), kN, kK);
  const int64_t stride = align_up(bytes, 64);
  const test::DeviceBytes memory(3 * stride);
  const HalfRows x(kRows, kK, 105);
  std::vector<float> want(kRows * kN, -1);
  PackedWeight matrix;
  for (size_t expert = 0; expert < 3; ++expert) {
    const TestWeight weight =
        make(kK, testing::Values::kOrdinary, static_cast<uint32_t>(106 + expert));
    matrix = weight.view;
    std::copy_n(weight.view.data, bytes, memory.data() + static_cast<int64_t>(expert) * stride);
    for (int64_t row = first[expert]; row < first[expert] + count[expert]; ++row) {
      for (int64_t i = 0; i < kN; ++i) {
        want[static_cast<size_t>(row * kN + i)] =
            reference(weight, i, x.row(row), {}, simt::kHopperCore);
      }
    }
  }
  matrix.data = memory.data();
  const cuda::ExpertMatrices experts{.rows = {.num_experts = 3,
                                              .first = first.data(),
                                              .count = count.data(),
                                              .chosen = chosen.data(),
                                              .num_chosen = num_chosen.data()},
                                     .stride = stride};
  test::on_schedules([&] {
    std::vector<float> out(want.size(), -1);
    cuda::launch_linear_blocks_half(
        nullptr, {.x = x.view, .weight = &matrix, .out = out.data(), .out_stride = kN}, &experts);
    test::expect_same_floats(out, want);
  });
}

// In steps of 8 products, the even columns of 16 come first.
TEST_P(CudaBlocksHalf, HasTheBitsOfItsDefinitionInStepsOfEight) {
  const simt::GivenDevice ampere(80);
  if (!ampere.is_here()) GTEST_SKIP() << "the GPU is another";
  check(
      make(256, testing::Values::kOrdinary, 99), {.rows = 2}, test::Seeds::kOne, simt::kAmpereCore);
}

TEST(CudaBlocksHalfMatrix, OfMxfp4HasTheBitsOfItsWeightsInBf16) {
  constexpr int32_t kK = 512;
  constexpr int32_t kRows = 5;
  std::mt19937 rng(100);
  const TestWeight weight =
      testing::make_weight(WeightFormat::kMXFP4, kN, kK, testing::Values::kOrdinary, rng);
  const HalfRows x(kRows, kK, 101);
  const test::DeviceBytes matrix(int64_t{kN} * kK * 2);
  auto* const numbers = reinterpret_cast<uint16_t*>(matrix.data());
  for (int64_t i = 0; i < kN; ++i) {
    const DecodedRow row = testing::decode_row(weight, i);
    for (int64_t k = 0; k < kK; ++k) {
      numbers[i * kK + k] = test::exact_bf16(row.weights[static_cast<size_t>(k)]);
    }
  }
  test::on_schedules([&] {
    std::vector<float> of_matrix(kRows * kN);
    std::vector<float> of_codes(kRows * kN, -1);
    cuda::launch_linear_half(nullptr,
                             {.x = x.row(0),
                              .x_stride = kK,
                              .weight = numbers,
                              .weight_stride = kK,
                              .num_rows = kRows,
                              .n = kN,
                              .k = kK,
                              .out = of_matrix.data(),
                              .out_stride = kN});
    cuda::launch_linear_blocks_half(
        nullptr, {.x = x.view, .weight = &weight.view, .out = of_codes.data(), .out_stride = kN});
    test::expect_same_floats(of_codes, of_matrix);
  });
}

}  // namespace
}  // namespace sluice::kernels
