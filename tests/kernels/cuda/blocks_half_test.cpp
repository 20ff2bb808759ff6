// SPDX-License-Identifier: Apache-2.0
// Weights in tiles times BF16 rows: the definition of launch_linear_blocks_half in plain loops over
// the checkpoint's codes, of few and of many rows, of shares of the segments and of experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::kernels {
namespace {

using test::Random;
using testing::DecodedRow;
using testing::TestWeight;

constexpr int32_t kN = 52;  // the last tile is not full, nor the last pair of them
constexpr int64_t kPad = 3;
constexpr float kPoison = 1234.5F;

// Rows of BF16 as Activations has them.
struct Rows {
  Rows(int32_t rows, int64_t k, uint64_t seed)
      : memory(activation_bytes(ActivationFormat::kBF16, rows, k)),
        view(carve_activations(ActivationFormat::kBF16, rows, k, memory.data())) {
    Random random(seed);
    for (int64_t i = 0; i < rows * k; ++i) row(0)[i] = float_to_bf16(random.normal());
  }

  [[nodiscard]] uint16_t* row(int64_t i) const {
    return static_cast<uint16_t*>(view.data) + i * align_up(view.k, kQuantGroup);
  }

  test::DeviceBytes memory;
  Activations view;
};

// The chain over `count` products, 16 of them or 32; null weights: ones.
float chain(
    const uint16_t* w, const uint16_t* x, int64_t count, float sum, simt::TensorCore core) {
  for (int64_t step = 0; step < count; step += 16) {
    uint16_t a[16];
    uint16_t b[16];
    for (int64_t i = 0; i < 16; ++i) {
      // On Hopper 16 products have no order; on sm_8x the even ones are the first step of 8.
      const int64_t k = step + i % 8 * 2 + i / 8;
      a[i] = w == nullptr ? float_to_bf16(1) : w[k];
      b[i] = x[k];
    }
    sum = simt::tensor_core_step(simt::Half::kBF16, a, b, sum, core);
  }
  return sum;
}

uint16_t exact_bf16(float value) {
  const uint16_t code = float_to_bf16(value);
  EXPECT_EQ(bf16_to_float(code), value);
  return code;
}

bool is_bf16(WeightFormat format) { return format == WeightFormat::kMXFP4; }

// One segment; x: the first of its columns.
float segment_sum(WeightFormat format,
                  const DecodedRow& w,
                  const uint16_t* x,
                  int64_t begin,
                  int64_t end,
                  simt::TensorCore core) {
  float acc = 0;
  const int64_t unit = w.halves ? 16 : 32;
  for (int64_t k = begin; k < end; k += unit, x += unit) {
    const float d = w.scale[static_cast<size_t>(k / 16)];
    std::array<uint16_t, 32> codes;
    for (int64_t i = 0; i < unit; ++i) {
      const auto code = static_cast<float>(w.codes[static_cast<size_t>(k + i)]);
      codes[static_cast<size_t>(i)] = exact_bf16(is_bf16(format) ? code * d : code);
    }
    if (is_bf16(format)) {
      acc = chain(codes.data(), x, unit, acc, core);
      continue;
    }
    acc = std::fma(chain(codes.data(), x, unit, 0, core), d, acc);
    if (!w.has_minimum) continue;
    acc = std::fma(w.minimum[static_cast<size_t>(k / 16)], chain(nullptr, x, unit, 0, core), acc);
  }
  return acc;
}

float reference(const TestWeight& weight,
                int64_t output,
                const uint16_t* x,
                Segments segments,
                simt::TensorCore core) {
  const DecodedRow w = testing::decode_row(weight, output);
  std::array<float, 8> sums{};
  const int64_t first = segments.first_column(weight.k);
  for (int32_t i = 0; i < segments.count; ++i) {
    const Segments own{segments.first + i, 1};
    const int64_t begin = own.first_column(weight.k);
    sums[static_cast<size_t>(i)] = segment_sum(
        weight.format, w, x + (begin - first), begin, own.end_column(weight.k), core);
  }
  for (size_t width = 1; width < static_cast<size_t>(segments.count); width *= 2) {
    for (size_t i = 0; i < 8; i += 2 * width) sums[i] += sums[i + width];
  }
  return sums[0];
}

struct Case {
  int32_t rows;
  Segments segments = {};
  Epilogue epilogue = Epilogue::kStore;
};

std::vector<float> expected(const TestWeight& weight,
                            const Rows& x,
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
                    simt::TensorCore core = simt::kHopperCore) {
    const Rows x(c.rows, c.segments.num_columns(weight.k), 91);
    const std::vector<float> bias = Random(92).normals(kN);
    const std::vector<float> want = expected(weight, x, bias, c, core);
    test::on_schedules([&] {
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
    });
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
                                     WeightFormat::kMXFP4};
constexpr auto kFormatName = [](const auto& info) {
  return std::string(format_info(info.param).name);
};
INSTANTIATE_TEST_SUITE_P(Formats, CudaBlocksHalf, ::testing::ValuesIn(kFormats), kFormatName);

// 2560 leaves segments ten groups each, which go round a ring of 8 and one of 4 twice or more;
// 3 rows are few, 35 go over two tiles of tokens.
TEST_P(CudaBlocksHalf, HasTheBitsOfItsDefinition) {
  const TestWeight weight = make(4608, testing::Values::kOrdinary, 93);
  check(weight, {.rows = 3});
  check(weight, {.rows = 35, .epilogue = Epilogue::kAdd});
  check(make(256, testing::Values::kExtreme, 94), {.rows = 9});
  check(make(256, testing::Values::kDegenerate, 95), {.rows = 1});
}

TEST_P(CudaBlocksHalf, SharesOfTheSegmentsAreSubtrees) {
  const TestWeight weight = make(768, testing::Values::kOrdinary, 96);
  check(weight, {.rows = 2, .segments = {0, 4}});
  check(weight, {.rows = 11, .segments = {6, 2}});
  check(weight, {.rows = 3, .segments = {3, 1}});
}

}  // namespace
}  // namespace sluice::kernels
