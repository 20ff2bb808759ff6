// SPDX-License-Identifier: Apache-2.0
// Linear layers and embeddings of weights in blocks, and float weights times float rows, have the
// CPU's bits: few and many rows, all segments and a share of them.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"

namespace sluice::kernels {
namespace {

using test::Random;
using testing::TestWeight;

constexpr int32_t kN = 52;  // the last tile is not full, nor the last pair of them
constexpr int64_t kPad = 3;

// A matrix in the CPU's and in the device's layout.
struct Matrix {
  TestWeight cpu;
  std::vector<std::byte> rows;
  PackedWeight device;
};

Matrix make_matrix(WeightFormat format, int64_t k, testing::Values values, uint32_t seed) {
  std::mt19937 rng(seed);
  Matrix matrix{.cpu = testing::make_weight(format, kN, k, values, rng), .rows = {}, .device = {}};
  matrix.device = matrix.cpu.view;
  if (has_rows(format)) {
    matrix.rows.resize(static_cast<size_t>(matrix_bytes(format, kN, k)));
    copy_matrix_rows(format, matrix.cpu.checkpoint.data(), k, 0, kN, matrix.rows.data());
    matrix.device.data = matrix.rows.data();
  }
  return matrix;
}

// The part of a matrix that a device has if it takes some of the segments.
struct CutMatrix {
  CutMatrix(const Matrix& matrix, const Segments& segments) : view(matrix.device) {
    const MatrixForm form = has_rows(view.format) ? MatrixForm::kRows : MatrixForm::kTiles;
    const ColumnRange columns = columns_to_store(
        view.format, form, segments.first_column(view.k), segments.end_column(view.k), view.k);
    view.first_column = static_cast<int32_t>(columns.first);
    view.num_columns = static_cast<int32_t>(columns.count);
    bytes = std::make_unique<test::DeviceBytes>(
        has_rows(view.format) ? matrix_bytes(view.format, view.n, columns.count)
                              : packed_bytes(view.format, view.n, columns.count));
    cut_columns(view.format, form, view.k, columns, view.n, matrix.device.data, bytes->data());
    view.data = bytes->data();
  }

  std::unique_ptr<test::DeviceBytes> bytes;
  PackedWeight view;
};

class CudaMatrix : public ::testing::TestWithParam<WeightFormat> {
 protected:
  [[nodiscard]] static ActivationFormat activations() {
    return layout_of(GetParam()).is_integer() ? ActivationFormat::kInt8 : ActivationFormat::kFloat;
  }

  [[nodiscard]] static auto launch() {
    return layout_of(GetParam()).is_integer() ? cuda::launch_linear_blocks
                                              : cuda::launch_linear_float;
  }

  // Compares the CPU's outputs with the device's, on each schedule.
  static void check(const Matrix& matrix, int32_t rows, Segments segments, Epilogue epilogue) {
    const auto cpu = test::make_device("scalar", 1);
    const int64_t k = segments.num_columns(matrix.device.k);
    const std::vector<float> values = Random(81).normals(static_cast<size_t>(rows * k));
    const std::vector<float> bias = Random(82).normals(kN);
    const float* const with_bias = segments.are_all() ? bias.data() : nullptr;
    const test::DeviceBytes bytes(activation_bytes(activations(), rows, k));
    const Activations x = carve_activations(activations(), rows, k, bytes.data());
    quantize_activations(cpu->context(), {.x = values.data(), .x_stride = k, .out = x});
    std::vector<float> want(static_cast<size_t>(rows * (kN + kPad)), 0.5F);
    const RowGroup group{
        .weight = &matrix.cpu.view, .out = want.data(), .out_stride = kN + kPad, .bias = with_bias};
    linear(cpu->context(),
           {.x = x, .groups = {&group, 1}, .epilogue = epilogue, .segments = segments});
    const CutMatrix cut(matrix, segments);
    bool is_cut = false;  // on every second schedule
    test::on_schedules([&] {
      std::vector<float> out(want.size(), 0.5F);
      is_cut = !is_cut && !segments.are_all();
      launch()(nullptr,
               {.x = x,
                .weight = is_cut ? &cut.view : &matrix.device,
                .bias = with_bias,
                .epilogue = epilogue,
                .out = out.data(),
                .out_stride = kN + kPad,
                .segments = segments},
               nullptr);
      test::expect_same_floats(out, want);
    });
  }
};

constexpr WeightFormat kFormats[] = {
    WeightFormat::kF32,          WeightFormat::kF16,        WeightFormat::kBF16,
    WeightFormat::kQ4_0,         WeightFormat::kQ4_1,       WeightFormat::kQ5_0,
    WeightFormat::kQ5_1,         WeightFormat::kQ8_0,       WeightFormat::kQ2_K,
    WeightFormat::kQ3_K,         WeightFormat::kQ4_K,       WeightFormat::kQ5_K,
    WeightFormat::kQ6_K,         WeightFormat::kIQ4_NL,     WeightFormat::kIQ4_XS,
    WeightFormat::kMXFP4,        WeightFormat::kNVFP4,      WeightFormat::kInt4Group32,
    WeightFormat::kInt4Group128, WeightFormat::kInt8Group32};
constexpr auto kFormatName = [](const auto& info) { return testing::test_name(info.param); };
INSTANTIATE_TEST_SUITE_P(Formats, CudaMatrix, ::testing::ValuesIn(kFormats), kFormatName);

// 512 leaves segments two groups each, 256 one. 3 rows are few, 35 go over two tiles of 32 tokens,
// 67 over two of 64.
TEST_P(CudaMatrix, HasTheBitsOfTheCpu) {
  const Matrix matrix = make_matrix(GetParam(), 512, testing::Values::kOrdinary, 83);
  check(matrix, 3, {}, Epilogue::kStore);
  check(matrix, 35, {}, Epilogue::kAdd);
  check(matrix, 67, {}, Epilogue::kAdd);
  check(make_matrix(GetParam(), 256, testing::Values::kExtreme, 84), 9, {}, Epilogue::kStore);
}

TEST_P(CudaMatrix, SharesOfTheSegmentsHaveTheBitsOfTheCpu) {
  const Matrix matrix = make_matrix(GetParam(), 768, testing::Values::kOrdinary, 85);
  check(matrix, 2, {0, 4}, Epilogue::kStore);
  check(matrix, 11, {6, 2}, Epilogue::kStore);
  check(matrix, 65, {4, 4}, Epilogue::kStore);
  check(matrix, 3, {3, 1}, Epilogue::kStore);
  // Two groups leave the first half of four ranks' shares without a column.
  if (format_info(GetParam()).block_elements > kQuantGroup) return;
  check(make_matrix(GetParam(), 64, testing::Values::kOrdinary, 87), 9, {0, 2}, Epilogue::kStore);
}

TEST_P(CudaMatrix, SharesJoinToTheBitsOfTheCpu) {
  constexpr int32_t kRows = 3;
  constexpr int64_t kK = 768;
  const auto cpu = test::make_device("scalar", 1);
  const Matrix matrix = make_matrix(GetParam(), kK, testing::Values::kOrdinary, 88);
  const std::vector<float> values = Random(89).normals(kRows * kK);
  const std::vector<float> bias = Random(90).normals(kN);
  const auto quantized = [&](const test::DeviceBytes& memory, Segments own) {
    const int64_t columns = own.num_columns(kK);
    const Activations x = carve_activations(activations(), kRows, columns, memory.data());
    quantize_activations(cpu->context(),
                         {.x = values.data() + own.first_column(kK), .x_stride = kK, .out = x});
    return x;
  };
  const test::DeviceBytes whole(activation_bytes(activations(), kRows, kK));
  std::vector<float> want(kRows * kN);
  const RowGroup group{
      .weight = &matrix.cpu.view, .out = want.data(), .out_stride = kN, .bias = bias.data()};
  linear(cpu->context(), {.x = quantized(whole, {}), .groups = {&group, 1}});
  constexpr Segments kShares[] = {{0, 4}, {4, 4}};
  const CutMatrix cut[] = {{matrix, kShares[0]}, {matrix, kShares[1]}};
  test::on_schedules([&] {
    std::vector<float> parts[2];
    for (size_t i = 0; i < 2; ++i) {
      const test::DeviceBytes memory(activation_bytes(activations(), kRows, kK));
      parts[i].resize(want.size());
      launch()(nullptr,
               {.x = quantized(memory, kShares[i]),
                .weight = &cut[i].view,
                .out = parts[i].data(),
                .out_stride = kN,
                .segments = kShares[i]},
               nullptr);
    }
    const float* const both[] = {parts[0].data(), parts[1].data()};
    std::vector<float> out(want.size());
    cuda::launch_join_parts(nullptr,
                            {.parts = both,
                             .weight = &cut[1].view,
                             .x = carve_activations(activations(), kRows, kK, whole.data()),
                             .bias = bias.data(),
                             .out = out.data(),
                             .out_stride = kN});
    test::expect_same_floats(out, want);
  });
}

TEST_P(CudaMatrix, EmbeddingsHaveTheBitsOfTheCpu) {
  const Matrix matrix = make_matrix(GetParam(), 256, testing::Values::kOrdinary, 86);
  const std::vector<TokenId> ids = {0, 17, 51, 17, 5};
  std::vector<float> want(ids.size() * 260, -1);
  EmbeddingArgs args{
      .table = &matrix.cpu.view, .token_ids = ids, .out = want.data(), .out_stride = 260};
  embedding(test::make_device("scalar", 1)->context(), args);
  test::on_schedules([&] {
    std::vector<float> out(want.size(), -1);
    args.table = &matrix.device;
    args.out = out.data();
    cuda::launch_embedding(nullptr, args);
    test::expect_same_floats(out, want);
  });
}

TEST(CudaMatrixActivations, OthersThanOf8And16BitsAreRefusedWithWhatHelps) {
  const auto refused = [](WeightFormat weight, ActivationFormat activations) {
    const Expected<void> known = check_activations(DeviceType::kCuda, weight, activations);
    return known ? "" : known.error().message;
  };
  EXPECT_EQ(refused(WeightFormat::kQ4_0, ActivationFormat::kInt8), "");
  EXPECT_EQ(refused(WeightFormat::kF32, ActivationFormat::kFloat), "");
  for (const WeightFormat format : {WeightFormat::kQ4_0, WeightFormat::kNVFP4}) {
    const auto at = [&](int32_t bits) {
      return activation_format(format, bits, DeviceType::kCuda);
    };
    EXPECT_EQ(at(8), ActivationFormat::kInt8);
    EXPECT_EQ(at(16), ActivationFormat::kBF16);
    EXPECT_EQ(refused(format, at(8)), "");
    EXPECT_EQ(refused(format, at(16)), "");
    for (const ActivationFormat other : {at(32), ActivationFormat::kInt16}) {
      const std::string message = refused(format, other);
      EXPECT_NE(message.find(format_info(format).name), std::string::npos) << message;
      EXPECT_NE(message.find("--activation-bits 8 or 16"), std::string::npos) << message;
    }
  }
  EXPECT_NE(refused(WeightFormat::kInt8Channel, ActivationFormat::kInt8), "");
}

}  // namespace
}  // namespace sluice::kernels
