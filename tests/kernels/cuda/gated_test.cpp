// SPDX-License-Identifier: Apache-2.0
// Gate, up and their gate function as one launch (kernels/cuda/gemm_gated.cu): it has the bits of
// the layers and then gate_mul(), and is taken where it is no slower.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/row_steps.h"
#include "tests/kernels/cuda/fp8_reference.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::DeviceBytes;
using test::Random;

constexpr int32_t kN = 200;  // two tiles, the second one in part, and no multiple of 32
constexpr int32_t kColumns = 264;
constexpr float kUnwritten = -1.0F;

WeightFormat weight_of(ActivationFormat rows) {
  switch (rows) {
    case ActivationFormat::kF16:
      return WeightFormat::kF16;
    case ActivationFormat::kE4M3Group:
      return WeightFormat::kE4M3Block;
    case ActivationFormat::kE4M3Token:
      return WeightFormat::kE4M3Channel;
    case ActivationFormat::kInt8Token:
      return WeightFormat::kInt8Channel;
    default:
      return WeightFormat::kBF16;
  }
}

// A matrix as it is uploaded.
struct UploadedMatrix {
  UploadedMatrix(WeightFormat format, int32_t n, uint64_t seed)
      : bytes(matrix_bytes(format, n, kColumns)),
        view{.format = format, .n = n, .k = kColumns, .data = bytes.data()} {
    Random random(seed);
    std::fill_n(bytes.data(), bytes.size(), std::byte{});
    for (int32_t row = 0; row < n; ++row) {
      std::byte* const codes = bytes.data() + row * matrix_row_stride(format, kColumns);
      for (int32_t i = 0; i < kColumns; ++i) fill(format, codes, i, random);
    }
    if (format == WeightFormat::kBF16 || format == WeightFormat::kF16) return;
    auto* const scales =
        reinterpret_cast<float*>(bytes.data() + matrix_scales_offset(format, n, kColumns));
    const std::vector<float> made =
        test::random_scales(random, n * matrix_row_scales(format, kColumns));
    std::copy(made.begin(), made.end(), scales);
  }

  static void fill(WeightFormat format, std::byte* codes, int32_t i, Random& random) {
    if (format == WeightFormat::kBF16 || format == WeightFormat::kF16) {
      const float value = random.normal() / 4;
      reinterpret_cast<uint16_t*>(codes)[i] =
          format == WeightFormat::kF16 ? float_to_half(value) : float_to_bf16(value);
    } else {
      codes[i] = static_cast<std::byte>(test::random_e4m3(random));
    }
  }

  DeviceBytes bytes;
  PackedWeight view;
};

struct Case {
  ActivationFormat rows;
  GateFunction function = GateFunction::kSilu;
  float limit = 0;
  int32_t num_rows = 100;
};

// Gate and up of one input, and what they and their gate function put out.
class GateAndUp {
 public:
  explicit GateAndUp(const Case& own)
      : own_(own),
        gate_(weight_of(own.rows), kN, 91),
        up_(weight_of(own.rows), kN, 92),
        x_bytes_(activation_bytes(own.rows, own.num_rows, kColumns)),
        out_bytes_(activation_bytes(own.rows, own.num_rows, kN)),
        outputs_(static_cast<size_t>(2 * own.num_rows * kStride)) {
    x_ = carve_activations(own.rows, own.num_rows, kColumns, x_bytes_.data());
    const std::vector<float> values =
        Random(93).normals(static_cast<size_t>(own.num_rows * kColumns));
    quantize_activations({.device = DeviceType::kCuda},
                         {.x = values.data(), .x_stride = kColumns, .out = x_});
  }

  // Returns the rows' bytes. `bias`: of both layers, or null.
  std::vector<std::byte> run(bool together, const float* bias = nullptr) {
    const ExecContext context = {.device = DeviceType::kCuda};
    std::ranges::fill(outputs_, kUnwritten);
    out_bytes_.poison();
    float* const gate = outputs_.data();
    float* const up = gate + kN;
    const std::array groups = {
        RowGroup{.weight = &gate_.view, .out = gate, .out_stride = kStride, .bias = bias},
        RowGroup{.weight = &up_.view, .out = up, .out_stride = kStride, .bias = bias}};
    const GateMulArgs args = {
        .gate = gate,
        .up = up,
        .stride = kStride,
        .function = own_.function,
        .limit = own_.limit,
        .out = carve_activations(own_.rows, own_.num_rows, kN, out_bytes_.data())};
    RowSteps steps;
    steps.add(args);
    linear(context, {.x = x_, .groups = groups, .then = together ? &steps : nullptr});
    if (!together) gate_mul(context, args);
    return out_bytes_.copy();
  }

  // Whether up's outputs are those that were there before.
  [[nodiscard]] bool is_up_unwritten() const {
    for (int64_t row = 0; row < own_.num_rows; ++row) {
      const float* const up = outputs_.data() + row * kStride + kN;
      if (std::any_of(up, up + kN, [](float value) { return value != kUnwritten; })) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr int64_t kStride = 2 * kN + 4;

  const Case own_;
  const UploadedMatrix gate_;
  const UploadedMatrix up_;
  DeviceBytes x_bytes_;
  DeviceBytes out_bytes_;
  std::vector<float> outputs_;
  Activations x_;
};

class CudaGated : public ::testing::TestWithParam<ActivationFormat> {
 protected:
  void SetUp() override {
    if (!device_.is_here()) GTEST_SKIP() << "the GPU is another";
  }

 private:
  simt::GivenDevice device_{90};
};

constexpr auto kName = [](const auto& info) {
  return std::string(info.param == ActivationFormat::kBF16 ? "bf16" : "f16");
};
INSTANTIATE_TEST_SUITE_P(Rows,
                         CudaGated,
                         ::testing::Values(ActivationFormat::kBF16, ActivationFormat::kF16),
                         kName);

// A block has one pair of tiles, or two one after the other, with a tile of few rows among them.
TEST_P(CudaGated, OneLaunchHasTheBitsOfTheLayersAndThenTheFunction) {
  for (const Case& own : {Case{.rows = GetParam(), .num_rows = 300},
                          Case{.rows = GetParam(), .function = GateFunction::kGeluTanh},
                          Case{.rows = GetParam(), .limit = 0.5F}}) {
    std::vector<std::byte> want;
    test::on_schedules(
        [&] {
          GateAndUp layers(own);
          if (want.empty()) want = layers.run(false);
          const std::vector<std::byte> got = layers.run(true);
          EXPECT_TRUE(layers.is_up_unwritten());
          test::expect_same_bytes(got.data(), want.data(), want.size());
        },
        test::Seeds::kOne);
  }
}

// `bias`: of both layers, or null.
void expect_apart(const Case& own, const float* bias = nullptr) {
  simt::Run schedule(1);
  GateAndUp layers(own);
  const std::vector<std::byte> want = layers.run(false, bias);
  const std::vector<std::byte> got = layers.run(true, bias);
  EXPECT_FALSE(layers.is_up_unwritten());
  test::expect_same_bytes(got.data(), want.data(), want.size());
  EXPECT_EQ(test::joined(schedule.take_reports()), "");
}

TEST(CudaGatedOthers, AreRunAsTheLayersAndThenTheFunction) {
  const simt::GivenDevice device(90);
  if (!device.is_here()) GTEST_SKIP() << "the GPU is another";
  constexpr ActivationFormat kRows = ActivationFormat::kBF16;
  expect_apart({.rows = kRows, .num_rows = 64});
  // Four pairs take three blocks two rounds of two tiles, and eight tiles three rounds.
  expect_apart({.rows = kRows, .num_rows = 200});
  expect_apart({.rows = kRows, .function = GateFunction::kSigmoid});
  const std::vector<float> bias = Random(94).normals(kN);
  expect_apart({.rows = kRows}, bias.data());
  for (const ActivationFormat codes :
       {ActivationFormat::kE4M3Token, ActivationFormat::kE4M3Group, ActivationFormat::kInt8Token}) {
    expect_apart({.rows = codes});
  }
}

}  // namespace
}  // namespace sluice::kernels
