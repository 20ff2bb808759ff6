// SPDX-License-Identifier: Apache-2.0
// Linear layers and embeddings of NVFP4, INT4 and INT8 per 32: the tree of kernels/gemm.h for
// int8 rows, the definition of launch.h for rows of BF16; of few and of many rows, of shares of the
// segments and their join, and of experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/half_definition.h"
#include "tests/kernels/cuda/plain_weight.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::PlainWeight;
using test::Random;

constexpr int32_t kN = 36;  // the last tile is not full, nor the last pair of them
constexpr int64_t kPad = 3;

constexpr WeightFormat kFormats[] = {WeightFormat::kNVFP4,
                                     WeightFormat::kInt4Group32,
                                     WeightFormat::kInt4Group128,
                                     WeightFormat::kInt8Group32};

std::string without_spaces(WeightFormat format) {
  std::string name(format_info(format).name);
  std::ranges::replace(name, ' ', '_');
  return name;
}

// Rows of either kind of activations, of some columns of `values`.
class AnyRows {
 public:
  AnyRows(ActivationFormat format, const std::vector<float>& values, int64_t k, Segments segments)
      : first_(segments.first_column(k)),
        rows_(static_cast<int32_t>(static_cast<int64_t>(values.size()) / k)),
        ints_{.buffer = testing::AlignedBuffer(
                  activation_bytes(ActivationFormat::kInt8, rows_, segments.num_columns(k))),
              .view = {}},
        halves_(rows_, segments.num_columns(k), 1),
        is_half_(format == ActivationFormat::kBF16) {
    const int64_t columns = segments.num_columns(k);
    ints_.view = carve_activations(ActivationFormat::kInt8, rows_, columns, ints_.buffer.data());
    quantize_activations(test::make_device("scalar", 1)->context(),
                         {.x = values.data() + first_, .x_stride = k, .out = ints_.view});
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t i = 0; i < columns; ++i) {
        halves_.row(row)[i] = float_to_bf16(values[static_cast<size_t>(row * k + first_ + i)]);
      }
    }
  }

  [[nodiscard]] Activations view() const { return is_half_ ? halves_.view : ints_.view; }

  // Of rows with all columns.
  [[nodiscard]] float output(const PlainWeight& weight, int64_t row, int64_t output) const {
    const testing::DecodedRow w = weight.decoded(output);
    const float sum = is_half_
                          ? test::half_reference(
                                weight.format, w, weight.k, halves_.row(row), {}, simt::kHopperCore)
                          : testing::reference_output(w, ints_, row).tree;
    return sum * weight.row_scale(output);
  }

 private:
  int64_t first_;
  int32_t rows_;
  testing::TestActivations ints_;
  test::HalfRows halves_;
  bool is_half_;
};

using Parameters = std::tuple<WeightFormat, ActivationFormat>;

class CudaPlainMatrix : public ::testing::TestWithParam<Parameters> {
 protected:
  [[nodiscard]] static WeightFormat format() { return std::get<0>(GetParam()); }

  [[nodiscard]] static ActivationFormat activations() { return std::get<1>(GetParam()); }

  static void launch(const cuda::LinearMatrixArgs& args,
                     const cuda::ExpertMatrices* experts = nullptr) {
    if (activations() == ActivationFormat::kBF16) {
      return cuda::launch_linear_blocks_half(nullptr, args, experts);
    }
    cuda::launch_linear_blocks(nullptr, args, experts);
  }

  static std::vector<float> values(int64_t rows, int64_t k) {
    return Random(111).normals(static_cast<size_t>(rows * k));
  }

  static std::vector<float> expected(const PlainWeight& weight,
                                     const AnyRows& x,
                                     const std::vector<float>& bias,
                                     Epilogue epilogue) {
    const int32_t rows = x.view().num_rows;
    std::vector<float> want(static_cast<size_t>(rows * (kN + kPad)), 0.5F);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < kN; ++i) {
        float& out = want[static_cast<size_t>(row * (kN + kPad) + i)];
        const float y = x.output(weight, row, i) + bias[static_cast<size_t>(i)];
        out = epilogue == Epilogue::kAdd ? out + y : y;
      }
    }
    return want;
  }

  static void check(int32_t rows, int64_t k, Epilogue epilogue) {
    const PlainWeight weight = test::make_plain(format(), kN, k, 112);
    const AnyRows x(activations(), values(rows, k), k, {});
    const std::vector<float> bias = Random(113).normals(kN);
    const std::vector<float> want = expected(weight, x, bias, epilogue);
    test::on_schedules([&] {
      std::vector<float> out(want.size(), 0.5F);
      launch({.x = x.view(),
              .weight = &weight.view,
              .bias = bias.data(),
              .epilogue = epilogue,
              .out = out.data(),
              .out_stride = kN + kPad});
      test::expect_same_floats(out, want);
    });
  }
};

constexpr auto kName = [](const auto& info) {
  const bool half = std::get<1>(info.param) == ActivationFormat::kBF16;
  return without_spaces(std::get<0>(info.param)) + (half ? "_bf16" : "_int8");
};
INSTANTIATE_TEST_SUITE_P(Formats,
                         CudaPlainMatrix,
                         ::testing::Combine(::testing::ValuesIn(kFormats),
                                            ::testing::Values(ActivationFormat::kInt8,
                                                              ActivationFormat::kBF16)),
                         kName);

// 1000 columns leave segments of 4 groups, the last of which is cut; 3 rows are few, 35 go over two
// tiles of 32 tokens, 67 over two of 64.
TEST_P(CudaPlainMatrix, HasTheBitsOfItsDefinition) {
  check(3, 1000, Epilogue::kStore);
  check(35, 512, Epilogue::kAdd);
  check(67, 512, Epilogue::kAdd);
}

// Segments of 18 groups go round a ring of 8 stages twice.
TEST_P(CudaPlainMatrix, GoesRoundTheRing) { check(1, 4608, Epilogue::kStore); }

struct Share {
  Share(const PlainWeight& weight, ActivationFormat format, Segments own, int32_t rows)
      : segments(own),
        view(weight.view),
        x(format, Random(111).normals(static_cast<size_t>(rows * weight.k)), weight.k, own),
        out(static_cast<size_t>(rows * kN)) {
    const ColumnRange columns = columns_to_store(
        view.format, own.first_column(weight.k), own.end_column(weight.k), weight.k);
    view.first_column = static_cast<int32_t>(columns.first);
    view.num_columns = static_cast<int32_t>(columns.count);
    bytes = std::make_unique<test::DeviceBytes>(packed_bytes(view.format, kN, columns.count));
    cut_columns(view.format, weight.k, columns, kN, weight.view.data, bytes->data());
    view.data = bytes->data();
  }

  Segments segments;
  std::unique_ptr<test::DeviceBytes> bytes;
  PackedWeight view;
  AnyRows x;
  std::vector<float> out;
};

TEST_P(CudaPlainMatrix, SharesJoinToTheBitsOfTheWhole) {
  constexpr int32_t kRows = 3;
  constexpr int64_t kK = 768;
  const PlainWeight weight = test::make_plain(format(), kN, kK, 114);
  const std::vector<float> bias = Random(115).normals(kN);
  const AnyRows x(activations(), values(kRows, kK), kK, {});
  const std::vector<float> want = expected(weight, x, bias, Epilogue::kAdd);
  Share low(weight, activations(), {0, 4}, kRows);
  Share high(weight, activations(), {4, 4}, kRows);
  test::on_schedules([&] {
    for (Share* share : {&low, &high}) {
      launch({.x = share->x.view(),
              .weight = &share->view,
              .out = share->out.data(),
              .out_stride = kN,
              .segments = share->segments});
    }
    const std::array<const float*, 2> parts = {low.out.data(), high.out.data()};
    std::vector<float> out(want.size(), 0.5F);
    cuda::launch_join_parts(nullptr,
                            {.parts = parts,
                             .weight = &high.view,
                             .x = high.x.view(),
                             .bias = bias.data(),
                             .out = out.data(),
                             .out_stride = kN + kPad,
                             .epilogue = Epilogue::kAdd});
    test::expect_same_floats(out, want);
  });
}

// Three experts, the second without rows; the third has more than a tile of few tokens.
TEST_P(CudaPlainMatrix, ExpertsHaveTheBitsOfTheirRowsAlone) {
  constexpr int64_t kK = 256;
  constexpr int32_t kRows = 24;  // a bound
  std::vector<int32_t> first = {0, 8, 8};
  std::vector<int32_t> count = {3, 0, 11};
  std::vector<int32_t> chosen = {0, 2, 1 << 20};
  std::vector<int32_t> num_chosen = {2};
  const int64_t stride = align_up(packed_bytes(format(), kN, kK), 64);
  const test::DeviceBytes memory(3 * stride);
  std::vector<PlainWeight> weights;
  for (uint32_t expert = 0; expert < 3; ++expert) {
    weights.push_back(test::make_plain(format(), kN, kK, 116 + expert));
    std::copy_n(
        weights.back().view.data, packed_bytes(format(), kN, kK), memory.data() + expert * stride);
  }
  const AnyRows x(activations(), values(kRows, kK), kK, {});
  std::vector<float> want(static_cast<size_t>(kRows * kN), -1);
  for (size_t expert = 0; expert < 3; ++expert) {
    for (int64_t row = first[expert]; row < first[expert] + count[expert]; ++row) {
      for (int64_t i = 0; i < kN; ++i) {
        want[static_cast<size_t>(row * kN + i)] = x.output(weights[expert], row, i);
      }
    }
  }
  PackedWeight matrix = weights[0].view;
  matrix.data = memory.data();
  const cuda::ExpertMatrices experts{.rows = {.num_experts = 3,
                                              .first = first.data(),
                                              .count = count.data(),
                                              .chosen = chosen.data(),
                                              .num_chosen = num_chosen.data()},
                                     .stride = stride};
  test::on_schedules([&] {
    std::vector<float> out(want.size(), -1);
    launch({.x = x.view(), .weight = &matrix, .out = out.data(), .out_stride = kN}, &experts);
    test::expect_same_floats(out, want);
  });
}

TEST_P(CudaPlainMatrix, EmbeddingsAreTheWeights) {
  if (activations() == ActivationFormat::kBF16) return;
  constexpr int64_t kK = 264;
  const PlainWeight weight = test::make_plain(format(), kN, kK, 119);
  const std::vector<TokenId> ids = {0, 17, 35, 17, 5};
  std::vector<float> want;
  for (const TokenId id : ids) {
    const testing::DecodedRow w = weight.decoded(id);
    for (size_t i = 0; i < static_cast<size_t>(kK); ++i) {
      const float code = std::fma(static_cast<float>(w.codes[i]), w.scale[i / 16], 0.0F);
      want.push_back(code * weight.row_scale(id));
    }
  }
  test::on_schedules([&] {
    std::vector<float> out(want.size(), -1);
    cuda::launch_embedding(
        nullptr, {.table = &weight.view, .token_ids = ids, .out = out.data(), .out_stride = kK});
    test::expect_same_floats(out, want);
  });
}

}  // namespace
}  // namespace sluice::kernels
