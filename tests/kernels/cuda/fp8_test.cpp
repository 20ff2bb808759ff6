// SPDX-License-Identifier: Apache-2.0
// Linear layers of FP8 on Hopper: every row must have the bits of the definition in
// kernels/cuda/launch.h, whatever the launch, the schedule and the share of K.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/fp8_reference.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"
#ifdef SLUICE_TESTS_ON_GPU
#include "tests/support/gpu/real_shapes.h"
#endif

namespace sluice::kernels {
namespace {

using test::Fp8Rules;
using test::Fp8Weight;
using test::Random;

// One matrix and rows of x with the columns of `segments`.
struct Fp8Layer {
  Fp8Layer(ActivationFormat format,
           int32_t rows,
           int32_t outputs,
           int32_t columns,
           uint64_t seed,
           Segments of_k = {})
      : n(outputs),
        k(columns),
        segments(of_k),
        stride(align_up(columns, 16) + 16),
        blocks(format == ActivationFormat::kE4M3Group ? ceil_div(columns, 128) : 1) {
    Random random(seed);
    const auto own = static_cast<int32_t>(segments.num_columns(k));
    bytes = std::make_unique<test::DeviceBytes>(activation_bytes(format, rows, own));
    x = carve_activations(format, rows, own, bytes->data());
    fill_e4m3(random, x);
    codes = std::make_unique<test::DeviceBytes>(n * stride);
    for (int64_t i = 0; i < n * stride; ++i) {
      codes->data()[i] = static_cast<std::byte>(random_e4m3(random));
    }
    scales = random_scales(random, n * blocks);
    bias = random.normals(static_cast<size_t>(n));
  }

  [[nodiscard]] Fp8Weight weight() const {
    return {.codes = reinterpret_cast<const uint8_t*>(codes->data()),
            .stride = stride,
            .scales = scales.data(),
            .blocks = blocks,
            .k = k};
  }

  [[nodiscard]] cuda::LinearFp8Args args(float* out) const {
    return {.x = x,
            .weight = weight().codes,
            .weight_stride = stride,
            .weight_scale = scales.data(),
            .weight_scale_stride = blocks,
            .n = n,
            .k = k,
            .out = out,
            .out_stride = n + 1,
            .segments = segments};
  }

  // Returns what every row must be, in rows with one element more.
  [[nodiscard]] std::vector<float> want(Fp8Rules rules = {}) const {
    std::vector<float> all(static_cast<size_t>(x.num_rows * (n + 1)), -1.0F);
    for (int32_t row = 0; row < x.num_rows; ++row) {
      for (int32_t output = 0; output < n; ++output) {
        all[static_cast<size_t>(row * (n + 1) + output)] =
            fp8_value(weight(), x, row, output, segments, rules);
      }
    }
    return all;
  }

  int32_t n;
  int32_t k;
  Segments segments;
  int64_t stride;
  int64_t blocks;
  std::unique_ptr<test::DeviceBytes> bytes;
  Activations x;
  std::unique_ptr<test::DeviceBytes> codes;
  std::vector<float> scales;
  std::vector<float> bias;
};

enum class Split : uint8_t { kNo, kYes };

// Runs the layer's first `rows` rows.
std::vector<float> run(const Fp8Layer& layer, int32_t rows, Split split) {
  std::vector<float> out(static_cast<size_t>(rows * (layer.n + 1)), -1.0F);
  const test::LinearWorkspace workspace(cuda::linear_workspace_bytes(rows, layer.n));
  cuda::LinearFp8Args args = layer.args(out.data());
  args.x.num_rows = rows;
  args.workspace = split == Split::kYes && workspace.size() > 0 ? workspace.data() : nullptr;
  cuda::launch_linear_fp8(nullptr, args);
  return out;
}

// Checks both ways in turn, by the schedules.
void expect_the_definition(const Fp8Layer& layer, test::Seeds seeds = test::Seeds::kAll) {
  const std::vector<float> want = layer.want();
  bool split = false;
  test::on_schedules(
      [&] {
        split = !split;
        const Split how = split ? Split::kYes : Split::kNo;
        test::expect_same_floats(run(layer, layer.x.num_rows, how), want);
      },
      seeds);
}

class CudaLinearFp8 : public ::testing::TestWithParam<ActivationFormat> {
 protected:
  void SetUp() override {
    if (!device_.is_here()) GTEST_SKIP() << "the GPU is another";
  }

  static ActivationFormat format() { return GetParam(); }

  static bool has_blocks() { return GetParam() == ActivationFormat::kE4M3Group; }

 private:
  simt::GivenDevice device_{90};
};

constexpr auto kName = [](const auto& info) {
  return info.param == ActivationFormat::kE4M3Token ? "Token" : "Group";
};
INSTANTIATE_TEST_SUITE_P(Scales,
                         CudaLinearFp8,
                         ::testing::Values(ActivationFormat::kE4M3Token,
                                           ActivationFormat::kE4M3Group),
                         kName);

// 107 groups make segments of 13 and 14 with four chunks or, if these end at multiples of 128, up
// to five, which go round a ring of 12 stages twice. The last group, outputs and tokens are not
// full.
TEST_P(CudaLinearFp8, FewRowsHaveTheBitsOfTheDefinition) {
  expect_the_definition(Fp8Layer(format(), 3, 136, 3400, 201));
}

TEST_P(CudaLinearFp8, TilesOf16To64TokensHaveTheBitsOfTheDefinition) {
  for (const auto& [rows, k] : {std::pair{11, 1400}, {23, 904}, {41, 520}}) {
    SCOPED_TRACE("rows " + std::to_string(rows));
    expect_the_definition(Fp8Layer(format(), rows, 72, k, 202), test::Seeds::kOne);
  }
}

// 130 rows are three tiles of 64, the last nearly empty, and there are two of outputs: one of the
// shim's three blocks takes two of the six. 16 chunks and more go round a ring of 7 stages twice.
TEST_P(CudaLinearFp8, ManyRowsHaveTheBitsOfTheDefinition) {
  expect_the_definition(Fp8Layer(format(), 130, 136, 1416, 203), test::Seeds::kOne);
  expect_the_definition(Fp8Layer(format(), 130, 40, 328, 204));
}

// With scales per 128, borders of shares are multiples of 128: every fourth of 32 groups.
TEST_P(CudaLinearFp8, AShareOfTheSegmentsHasTheBitsOfItsSubtree) {
  const int32_t k = has_blocks() ? 1016 : 840;
  for (const Segments segments : {Segments{0, 4}, Segments{2, 2}, Segments{5, 1}, Segments{4, 4}}) {
    for (const int32_t rows : {3, 70}) {
      SCOPED_TRACE("from " + std::to_string(segments.first) + ", rows " + std::to_string(rows));
      expect_the_definition(Fp8Layer(format(), rows, 40, k, 205, segments), test::Seeds::kOne);
    }
  }
}

// Kernels must not give what differs from the definition in one respect, or the tests above would
// not see that.
TEST_P(CudaLinearFp8, ChainsThatAreLongerOrScalesOfTheNextBlockAreOtherBits) {
  const Fp8Layer layer(format(), 2, 24, 3400, 206);
  simt::Run schedule(3);
  const std::vector<float> got = run(layer, 2, Split::kNo);
  ASSERT_EQ(test::joined(schedule.take_reports()), "");
  test::expect_same_floats(got, layer.want());
  EXPECT_NE(got, layer.want({.run = 16}));
  EXPECT_NE(got, layer.want({.run = 2}));
  if (!has_blocks()) return;
  EXPECT_NE(got, layer.want({.neighbour = 1}));
}

TEST_P(CudaLinearFp8, IsNearTheExactProduct) {
  const Fp8Layer layer(format(), 2, 40, 3400, 207);
  const auto value = [](uint8_t code) {
    const int exponent = code >> 3 & 15;
    const double mantissa = code & 7;
    const double size =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return code >= 128 ? -size : size;
  };
  simt::Run schedule(7);
  const std::vector<float> got = run(layer, 2, Split::kNo);
  ASSERT_EQ(test::joined(schedule.take_reports()), "");
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t output = 0; output < layer.n; ++output) {
      double exact = 0;
      double size = 0;
      for (int64_t i = 0; i < layer.k; ++i) {
        const ActivationGroup x = activation_group(layer.x, row, i / kQuantGroup);
        const float of_row = *x.scale;
        const float of_output =
            layer.scales[static_cast<size_t>(output * layer.blocks + (has_blocks() ? i / 128 : 0))];
        const double term = value(static_cast<const uint8_t*>(x.codes)[i % kQuantGroup]) *
                            value(layer.weight().codes[output * layer.stride + i]) *
                            static_cast<double>(of_row) * static_cast<double>(of_output);
        exact += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(static_cast<double>(got[static_cast<size_t>(row * (layer.n + 1) + output)]),
                  exact,
                  2e-3 * size);
    }
  }
}

// The batches are all that a step may have, from one row in a tile of 8 to 300 in tiles of 64.
// Short K leaves segments empty.
TEST_P(CudaLinearFp8, ARowHasTheSameBitsInEveryBatch) {
  for (const int32_t k : {16, 264}) {
    const Fp8Layer layer(format(), 300, 16, k, 208);
    const std::vector<float> all = layer.want();
    uint64_t seed = 0;
    for (const int32_t rows : {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 100, 128, 129, 192, 300}) {
      SCOPED_TRACE("rows " + std::to_string(rows) + " of k " + std::to_string(k));
      simt::Run schedule(++seed);
      const std::vector<float> want(all.begin(), all.begin() + rows * (layer.n + 1));
      test::expect_same_floats(run(layer, rows, Split::kNo), want);
      test::expect_same_floats(run(layer, rows, Split::kYes), want);
      ASSERT_EQ(test::joined(schedule.take_reports()), "");
    }
  }
}

#ifdef SLUICE_TESTS_ON_GPU
TEST_P(CudaLinearFp8, ARowOfARealShapeHasTheSameBitsInEveryBatch) {
  test::expect_rows_of_real_shapes_to_be_alike(
      [](int32_t outputs) {
        return Fp8Layer(format(), test::kRealRows, outputs, test::kRealColumns, 209);
      },
      [](const Fp8Layer& layer, int32_t rows) { return run(layer, rows, Split::kYes); });
}
#endif

TEST_P(CudaLinearFp8, AddsBiasThenTheResidual) {
  for (const int32_t rows : {2, 66}) {
    const Fp8Layer layer(format(), rows, 24, 264, 209);
    const std::vector<float> residual =
        Random(210).normals(static_cast<size_t>(rows) * static_cast<size_t>(layer.n + 1));
    std::vector<float> want = layer.want();
    for (size_t i = 0; i < want.size(); ++i) {
      const size_t output = i % static_cast<size_t>(layer.n + 1);
      want[i] = output < static_cast<size_t>(layer.n) ? residual[i] + (want[i] + layer.bias[output])
                                                      : residual[i];
    }
    test::on_schedules([&] {
      std::vector<float> out = residual;
      cuda::LinearFp8Args args = layer.args(out.data());
      args.bias = layer.bias.data();
      args.epilogue = Epilogue::kAdd;
      cuda::launch_linear_fp8(nullptr, args);
      test::expect_same_floats(out, want);
    });
  }
}

// Layers like gate and up have one x, and n, scales and codes of their own, in one launch.
TEST_P(CudaLinearFp8, LayersTogetherHaveTheBitsThatTheyHaveAlone) {
  for (const int32_t rows : {3, 70}) {
    const Fp8Layer first(format(), rows, 136, 520, 211);
    Fp8Layer second(format(), rows, 40, 520, 212);
    second.x = first.x;
    const std::vector<float> want_first = first.want();
    const std::vector<float> want_second = second.want();
    bool split = false;
    test::on_schedules(
        [&] {
          split = !split;
          const test::LinearWorkspace workspace(
              cuda::linear_workspace_bytes(rows, first.n + second.n));
          std::vector<float> out_first(want_first.size(), -1.0F);
          std::vector<float> out_second(want_second.size(), -1.0F);
          cuda::LinearFp8Args layers[2] = {first.args(out_first.data()),
                                           second.args(out_second.data())};
          for (cuda::LinearFp8Args& args : layers) {
            args.workspace = split && workspace.size() > 0 ? workspace.data() : nullptr;
          }
          cuda::launch_linear_fp8(nullptr, layers);
          test::expect_same_floats(out_first, want_first);
          test::expect_same_floats(out_second, want_second);
        },
        test::Seeds::kOne);
  }
}

// A row's scale is NaN if it had a value that is not finite (gemm.h); other rows do not see it.
TEST_P(CudaLinearFp8, ARowWhoseScaleIsNanIsNanAlone) {
  const Fp8Layer layer(format(), 3, 16, 264, 213);
  std::vector<float> want = layer.want();
  *activation_group(layer.x, 1, 0).scale = std::numeric_limits<float>::quiet_NaN();
  for (int32_t i = 0; i < layer.n; ++i) {
    want[static_cast<size_t>(layer.n + 1 + i)] = std::numeric_limits<float>::quiet_NaN();
  }
  test::on_schedules([&] { test::expect_same_floats(run(layer, 3, Split::kNo), want); });
}

// The shares of two or four ranks, by the definition, join to the whole layer.
TEST_P(CudaLinearFp8, SharesJoinToTheBitsOfTheWholeLayer) {
  const int32_t k = has_blocks() ? 1024 : 872;
  const Fp8Layer whole(format(), 5, 24, k, 214);
  const bool block = has_blocks();
  const WeightFormat weight_format = block ? WeightFormat::kE4M3Block : WeightFormat::kE4M3Channel;
  const int64_t scales_at = matrix_scales_offset(weight_format, whole.n, k);
  test::DeviceBytes matrix(matrix_bytes(weight_format, whole.n, k));
  std::copy_n(whole.scales.data(),
              whole.scales.size(),
              reinterpret_cast<float*>(matrix.data() + scales_at));
  const PackedWeight weight{.format = weight_format, .n = whole.n, .k = k, .data = matrix.data()};
  const std::vector<float> want = whole.want();
  for (const int32_t ranks : {2, 4}) {
    std::vector<std::vector<float>> values;
    std::vector<const float*> parts;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const Segments own{rank * kSegments / ranks, kSegments / ranks};
      values.emplace_back();
      for (int32_t row = 0; row < 5; ++row) {
        for (int32_t output = 0; output < whole.n; ++output) {
          values.back().push_back(fp8_value(whole.weight(), whole.x, row, output, own));
        }
      }
    }
    for (const auto& part : values) parts.push_back(part.data());
    test::on_schedules([&] {
      std::vector<float> out(want.size(), -1.0F);
      cuda::launch_join_parts(nullptr,
                              {.parts = parts,
                               .weight = &weight,
                               .x = whole.x,
                               .out = out.data(),
                               .out_stride = whole.n + 1});
      test::expect_same_floats(out, want);
    });
  }
}

// The operator takes a matrix in rows as it is uploaded, with scales behind them; a rank has only
// its columns.
TEST_P(CudaLinearFp8, TheOperatorTakesAMatrixInRowsAndARanksShareOfIt) {
  const int32_t k = has_blocks() ? 1016 : 872;
  const WeightFormat of = has_blocks() ? WeightFormat::kE4M3Block : WeightFormat::kE4M3Channel;
  for (const Segments segments : {Segments{}, Segments{4, 4}, Segments{2, 2}}) {
    const Fp8Layer layer(format(), 3, 40, k, 215, segments);
    const auto first = static_cast<int32_t>(segments.first_column(k));
    const auto columns = static_cast<int32_t>(segments.num_columns(k));
    test::DeviceBytes matrix(matrix_bytes(of, layer.n, columns));
    const int64_t row_scales = matrix_row_scales(of, columns);
    const int64_t scales_at = matrix_scales_offset(of, layer.n, columns);
    auto* const scales = reinterpret_cast<float*>(matrix.data() + scales_at);
    for (int32_t row = 0; row < layer.n; ++row) {
      std::copy_n(layer.codes->data() + row * layer.stride + first,
                  columns,
                  matrix.data() + row * matrix_row_stride(of, columns));
      const int64_t skipped = has_blocks() ? first / 128 : 0;
      std::copy_n(layer.scales.data() + row * layer.blocks + skipped,
                  row_scales,
                  scales + row * row_scales);
    }
    const PackedWeight weight{.format = of,
                              .n = layer.n,
                              .k = k,
                              .data = matrix.data(),
                              .first_column = first,
                              .num_columns = segments.are_all() ? 0 : columns};
    const std::vector<float> want = layer.want();
    test::on_schedules([&] {
      std::vector<float> out(want.size(), -1.0F);
      const RowGroup group{
          .weight = &weight, .out = out.data(), .out_stride = layer.n + 1, .bias = nullptr};
      linear({.device = DeviceType::kCuda},
             {.x = layer.x, .groups = {&group, 1}, .segments = segments});
      test::expect_same_floats(out, want);
    });
  }
}

TEST(CudaFp8, IsRefusedWhereThereIsNoWgmma) {
  const auto refused = [](WeightFormat weight, int32_t bits) {
    const Expected<void> known = check_activations(
        DeviceType::kCuda, weight, activation_format(weight, bits, DeviceType::kCuda));
    return known ? "" : known.error().message;
  };
  {
    const simt::GivenDevice hopper(90);
    if (!hopper.is_here()) GTEST_SKIP() << "the GPU is another";
    EXPECT_EQ(refused(WeightFormat::kE4M3Channel, 8), "");
    EXPECT_EQ(refused(WeightFormat::kE4M3Block, 8), "");
    for (const int32_t bits : {16, 32}) {
      const std::string message = refused(WeightFormat::kE4M3Block, bits);
      EXPECT_NE(message.find("take --activation-bits 8 on a GPU"), std::string::npos) << message;
    }
  }
  const simt::GivenDevice ampere(80);
  if (!ampere.is_here()) GTEST_SKIP() << "the GPU is another";
  for (const WeightFormat weight : {WeightFormat::kE4M3Channel, WeightFormat::kE4M3Block}) {
    const std::string message = refused(weight, 8);
    EXPECT_NE(message.find(format_info(weight).name), std::string::npos) << message;
    EXPECT_NE(message.find("Hopper"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace sluice::kernels
