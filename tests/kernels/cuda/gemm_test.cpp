// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"
#include "tests/support/plain_matrix.h"
#ifdef SLUICE_TESTS_ON_GPU
#include "tests/support/gpu/real_shapes.h"
#endif
#include "tests/support/simt/tensorcore.h"

namespace sluice::kernels {
namespace {

using test::Random;

uint16_t bf16_of(float value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

float float_of_bf16(uint16_t code) { return std::bit_cast<float>(uint32_t{code} << 16); }

uint16_t half_of(ActivationFormat format, float value) {
  return format == ActivationFormat::kF16 ? float_to_half(value) : bf16_of(value);
}

struct HalfLayer {
  ActivationFormat format;
  int32_t n;
  int32_t k;
  int64_t stride;  // elements, in both matrices
  std::vector<uint16_t> weight;
  std::vector<uint16_t> x;
  std::vector<float> bias;
};

HalfLayer make_layer(int32_t rows,
                     int32_t n,
                     int32_t k,
                     uint64_t seed,
                     ActivationFormat format = ActivationFormat::kBF16) {
  Random random(seed);
  HalfLayer layer{
      .format = format, .n = n, .k = k, .stride = k + 8, .weight = {}, .x = {}, .bias = {}};
  for (int64_t i = 0; i < n * layer.stride; ++i) {
    layer.weight.push_back(half_of(format, random.normal()));
  }
  for (int64_t i = 0; i < rows * layer.stride; ++i) {
    layer.x.push_back(half_of(format, random.normal()));
  }
  layer.bias = random.normals(static_cast<size_t>(n));
  return layer;
}

// Returns an output by launch.h's text in plain loops, over all segments or a share of them.
float reference(const HalfLayer& layer,
                int64_t row,
                int64_t output,
                simt::TensorCore core,
                Segments segments = {}) {
  const uint16_t* const x = layer.x.data() + row * layer.stride;
  const uint16_t* const w = layer.weight.data() + output * layer.stride;
  const int64_t groups = ceil_div(layer.k, 32);
  const auto type = layer.format == ActivationFormat::kF16 ? simt::Half::kF16 : simt::Half::kBF16;
  std::array<float, 8> sums{};
  for (int64_t s = 0; s < segments.count; ++s) {
    const int64_t segment = segments.first + s;
    float sum = 0;
    for (int64_t k = segment * groups / 8 * 32; k < (segment + 1) * groups / 8 * 32; k += 16) {
      uint16_t a[16] = {};
      uint16_t b[16] = {};
      for (int64_t i = 0; i < 16 && k + i < layer.k; ++i) {
        a[i] = w[k + i];
        b[i] = x[k + i];
      }
      sum = simt::tensor_core_step(type, a, b, sum, core);
    }
    sums[static_cast<size_t>(s)] = sum;
  }
  for (size_t width = 1; width < static_cast<size_t>(segments.count); width *= 2) {
    for (size_t i = 0; i < 8; i += 2 * width) sums[i] += sums[i + width];
  }
  return sums[0];
}

enum class Split : uint8_t { kNo, kYes };

// Runs by the device's compute capability: wgmma, or mma.sync with Ampere's steps.
class OnDevice : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!device_.is_here()) GTEST_SKIP() << "the GPU is another";
  }

  [[nodiscard]] static simt::TensorCore core() {
    return GetParam() == 80 ? simt::kAmpereCore : simt::kHopperCore;
  }

 private:
  simt::GivenDevice device_{GetParam()};
};

class CudaLinearHalf : public OnDevice {};

class CudaLinearInt8 : public OnDevice {};

class CudaLinearWide : public OnDevice {};

constexpr auto kName = [](const auto& info) { return "sm_" + std::to_string(info.param); };
INSTANTIATE_TEST_SUITE_P(Devices, CudaLinearHalf, ::testing::Values(80, 90, 120), kName);
INSTANTIATE_TEST_SUITE_P(Devices, CudaLinearInt8, ::testing::Values(80, 90, 120), kName);
INSTANTIATE_TEST_SUITE_P(Devices, CudaLinearWide, ::testing::Values(90), kName);

std::vector<float> run(const HalfLayer& layer,
                       int32_t first_row,
                       int32_t rows,
                       Split split,
                       Segments segments = {}) {
  std::vector<float> out(static_cast<size_t>(rows * (layer.n + 1)), -1.0F);
  const test::LinearWorkspace workspace(cuda::linear_workspace_bytes(rows, layer.n));
  cuda::launch_linear_half(nullptr,
                           {.format = layer.format,
                            .x = layer.x.data() + first_row * layer.stride +
                                 segments.first_column(layer.k),
                            .x_stride = layer.stride,
                            .weight = layer.weight.data(),
                            .weight_stride = layer.stride,
                            .num_rows = rows,
                            .n = layer.n,
                            .k = layer.k,
                            .out = out.data(),
                            .out_stride = layer.n + 1,
                            .workspace = split == Split::kYes ? workspace.data() : nullptr,
                            .segments = segments});
  return out;
}

// Returns what every row must be, in rows with one element more.
std::vector<float> expected(const HalfLayer& layer,
                            int32_t rows,
                            simt::TensorCore core,
                            Segments segments = {}) {
  std::vector<float> want(static_cast<size_t>(rows * (layer.n + 1)), -1.0F);
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t output = 0; output < layer.n; ++output) {
      const auto at = static_cast<size_t>(row * (layer.n + 1) + output);
      want[at] = reference(layer, row, output, core, segments);
    }
  }
  return want;
}

// 27 groups are 16 chunks: segments of 3 and 4 groups have two, one of them half full. They go
// round a ring of 6 stages twice, and one of 4 four times. The last group, the last outputs and the
// last tokens are not full.
TEST_P(CudaLinearHalf, FewAndManyTokensHaveTheBitsOfTheDefinition) {
  for (const auto& [rows, format] : {std::pair{3, ActivationFormat::kBF16},
                                     {9, ActivationFormat::kBF16},
                                     {3, ActivationFormat::kF16},
                                     {9, ActivationFormat::kF16}}) {
    SCOPED_TRACE("rows " + std::to_string(rows) +
                 (format == ActivationFormat::kF16 ? " F16" : " BF16"));
    const HalfLayer layer = make_layer(rows, 136, 840, 41, format);
    const std::vector<float> want = expected(layer, rows, core());
    test::on_schedules([&] { test::expect_same_floats(run(layer, 0, rows, Split::kNo), want); });
    if (cuda::linear_workspace_bytes(rows, layer.n) == 0) continue;
    test::on_schedules([&] { test::expect_same_floats(run(layer, 0, rows, Split::kYes), want); });
  }
}

// 130 rows are two tiles of 128, the second nearly empty, and there are two of outputs: one of the
// shim's three blocks takes two of the four. 8 chunks go round a ring of 5 twice.
TEST_P(CudaLinearWide, EveryTileHasTheBitsOfTheDefinition) {
  const HalfLayer layer = make_layer(130, 136, 328, 48);
  const std::vector<float> want = expected(layer, 130, core());
  test::on_schedules([&] { test::expect_same_floats(run(layer, 0, 130, Split::kNo), want); });
}

// Segments have 9 and 10 groups; their last chunk is half full or full.
TEST_P(CudaLinearWide, LongSegmentsAndSharesOfThemHaveTheBitsOfTheDefinition) {
  const HalfLayer layer = make_layer(129, 72, 2432, 50, ActivationFormat::kF16);
  for (const Segments segments : {Segments{}, Segments{4, 4}, Segments{2, 2}}) {
    const std::vector<float> want = expected(layer, 129, core(), segments);
    test::on_schedules(
        [&] { test::expect_same_floats(run(layer, 0, 129, Split::kNo, segments), want); },
        test::Seeds::kOne);
  }
}

// Shares have borders inside of a chunk, one segment, half of them, and the last ones.
TEST_P(CudaLinearHalf, AShareOfTheSegmentsHasTheBitsOfItsSubtree) {
  for (const Segments segments : {Segments{0, 4}, Segments{2, 2}, Segments{5, 1}, Segments{4, 4}}) {
    for (const int32_t rows : {3, 10}) {
      SCOPED_TRACE("from " + std::to_string(segments.first) + ", rows " + std::to_string(rows));
      const auto format = rows == 3 ? ActivationFormat::kBF16 : ActivationFormat::kF16;
      const HalfLayer layer = make_layer(rows, 40, 840, 47, format);
      const std::vector<float> want = expected(layer, rows, core(), segments);
      bool split = false;  // every second schedule
      test::on_schedules([&] {
        split = !split;
        const Split how = split ? Split::kYes : Split::kNo;
        test::expect_same_floats(run(layer, 0, rows, how, segments), want);
      });
    }
  }
}

TEST_P(CudaLinearHalf, IsNearTheExactProduct) {
  const HalfLayer layer = make_layer(2, 70, 520, 42);
  simt::Run schedule(7);
  const std::vector<float> got = run(layer, 0, 2, Split::kNo);
  ASSERT_EQ(test::joined(schedule.take_reports()), "");
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t output = 0; output < layer.n; ++output) {
      double exact = 0;
      double size = 0;
      for (int64_t i = 0; i < layer.k; ++i) {
        const double term =
            static_cast<double>(
                float_of_bf16(layer.x[static_cast<size_t>(row * layer.stride + i)])) *
            static_cast<double>(
                float_of_bf16(layer.weight[static_cast<size_t>(output * layer.stride + i)]));
        exact += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(static_cast<double>(got[static_cast<size_t>(row * (layer.n + 1) + output)]),
                  exact,
                  2e-6 * size);
    }
  }
}

// 70 rows are two tiles of 64 tokens; alone, a row takes a tile of 8. Short K leaves segments
// empty.
TEST_P(CudaLinearHalf, ARowHasTheSameBitsInEveryBatch) {
  for (const int32_t k : {8, 200, 840}) {
    const auto format = k == 200 ? ActivationFormat::kF16 : ActivationFormat::kBF16;
    const HalfLayer layer = make_layer(70, 16, k, 43, format);
    simt::Run schedule(5);
    const std::vector<float> all = run(layer, 0, 70, Split::kNo);
    for (const int32_t row : {0, 7, 63, 69}) {
      const auto begin = all.begin() + row * (layer.n + 1);
      const std::vector<float> want(begin, begin + layer.n + 1);
      test::expect_same_floats(run(layer, row, 1, Split::kNo), want);
      test::expect_same_floats(run(layer, row, 1, Split::kYes), want);
    }
    ASSERT_EQ(test::joined(schedule.take_reports()), "");
  }
}

#ifdef SLUICE_TESTS_ON_GPU
TEST_P(CudaLinearHalf, ARowOfARealShapeHasTheSameBitsInEveryBatch) {
  test::expect_rows_of_real_shapes_to_be_alike(
      [](int32_t outputs) {
        return make_layer(test::kRealRows, outputs, test::kRealColumns, 47);
      },
      [](const HalfLayer& layer, int32_t rows) { return run(layer, 0, rows, Split::kYes); });
}
#endif

TEST_P(CudaLinearHalf, AddsBiasThenTheResidual) {
  const HalfLayer layer = make_layer(2, 24, 64, 44);
  Random random(45);
  const std::vector<float> residual = random.normals(2 * 24);
  std::vector<float> want = residual;
  for (int64_t i = 0; i < 48; ++i) {
    const auto at = static_cast<size_t>(i);
    const float bias = layer.bias[static_cast<size_t>(i % 24)];
    const float y = reference(layer, i / 24, i % 24, core()) + bias;
    want[at] = residual[at] + y;
  }
  test::on_schedules([&] {
    std::vector<float> out = residual;
    cuda::launch_linear_half(nullptr,
                             {.x = layer.x.data(),
                              .x_stride = layer.stride,
                              .weight = layer.weight.data(),
                              .weight_stride = layer.stride,
                              .num_rows = 2,
                              .n = 24,
                              .k = 64,
                              .bias = layer.bias.data(),
                              .epilogue = Epilogue::kAdd,
                              .out = out.data(),
                              .out_stride = 24});
    test::expect_same_floats(out, want);
  });
}

struct Int8Layer {
  Int8Layer(int32_t outputs, int32_t columns, uint64_t seed)
      : n(outputs),
        k(columns),
        random(seed),
        codes(static_cast<size_t>(n) * static_cast<size_t>(k)),
        scales(static_cast<size_t>(n)),
        packed(packed_bytes(WeightFormat::kInt8Channel, n, k)) {
    for (int8_t& code : codes) code = static_cast<int8_t>(random.below(256) - 128);
    for (float& scale : scales) scale = random.uniform() * 0.01F;
    sluice::test::pack_int8_rows(codes.data(), scales.data(), n, k, packed.data());
    bias = random.normals(static_cast<size_t>(n));
  }

  int32_t n;
  int32_t k;
  Random random;
  std::vector<int8_t> codes;
  std::vector<float> scales;
  testing::AlignedBuffer packed;
  std::vector<float> bias;
};

// Compares with the CPU, which has its own layout of the same weights.
void expect_the_bits_of_the_cpu(Int8Layer& layer, int32_t rows, Epilogue epilogue) {
  SCOPED_TRACE("rows " + std::to_string(rows));
  const auto cpu = test::make_device("scalar", 1);
  const PackedWeight weight{.format = WeightFormat::kInt8Channel,
                            .n = layer.n,
                            .k = layer.k,
                            .data = layer.packed.data()};
  const std::vector<float> values =
      layer.random.normals(static_cast<size_t>(rows) * static_cast<size_t>(layer.k));
  test::DeviceBytes bytes(activation_bytes(ActivationFormat::kInt8Token, rows, layer.k));
  const Activations x =
      carve_activations(ActivationFormat::kInt8Token, rows, layer.k, bytes.data());
  quantize_activations(cpu->context(), {.x = values.data(), .x_stride = layer.k, .out = x});
  std::vector<float> want(static_cast<size_t>(rows * layer.n), 0.5F);
  const RowGroup group{
      .weight = &weight, .out = want.data(), .out_stride = layer.n, .bias = layer.bias.data()};
  linear(cpu->context(), {.x = x, .groups = {&group, 1}, .epilogue = epilogue});
  const test::LinearWorkspace workspace(cuda::linear_workspace_bytes(rows, layer.n, layer.k));
  bool split = false;  // every second schedule
  test::on_schedules([&] {
    split = !split && workspace.size() > 0;
    std::vector<float> out(want.size(), 0.5F);
    cuda::launch_linear_int8(nullptr,
                             {.x = x,
                              .weight = layer.codes.data(),
                              .weight_stride = layer.k,
                              .weight_scale = layer.scales.data(),
                              .n = layer.n,
                              .k = layer.k,
                              .bias = layer.bias.data(),
                              .epilogue = epilogue,
                              .out = out.data(),
                              .out_stride = layer.n,
                              .workspace = split ? workspace.data() : nullptr});
    test::expect_same_floats(out, want);
  });
}

// 13 and 14 chunks of 128 go round both rings at least twice; the last group of K is half empty.
TEST_P(CudaLinearInt8, HasTheBitsOfTheCpuForFewAndManyRows) {
  Int8Layer layer(136, 1616, 46);
  for (const int32_t rows : {5, 11}) {
    for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd}) {
      expect_the_bits_of_the_cpu(layer, rows, epilogue);
    }
  }
}

// Four tiles, of which most are nearly empty. 9 chunks go round the ring more than twice.
TEST_P(CudaLinearWide, EveryTileHasTheBitsOfTheCpu) {
  Int8Layer layer(136, 1104, 49);
  expect_the_bits_of_the_cpu(layer, 130, Epilogue::kAdd);
}

// 70 rows are a tile of 64 and another.
TEST_P(CudaLinearInt8, HasTheBitsOfTheCpuInTilesOf32And64) {
  Int8Layer layer(136, 336, 51);
  for (const int32_t rows : {20, 70}) expect_the_bits_of_the_cpu(layer, rows, Epilogue::kAdd);
}

#ifdef SLUICE_TESTS_ON_GPU
TEST_P(CudaLinearInt8, ALayerOfARealShapeHasTheBitsOfTheCpu) {
  const test::AllBlocks all_blocks;
  Int8Layer layer(4096, test::kRealColumns, 48);
  for (const int32_t rows : {1, 33, 129}) expect_the_bits_of_the_cpu(layer, rows, Epilogue::kStore);
}
#endif

TEST_P(CudaLinearInt8, TheWorkspaceOfTheLargestMatricesHoldsThatOfEveryLaunch) {
  const LargestMatrices largest = {.outputs = 40'000, .int8_columns = 4096};
  for (const int32_t most : {1, 8, 100, 3000}) {
    const int64_t room = workspace_bytes(DeviceType::kCuda, most, largest);
    for (const int32_t rows : {1, 8, 64, 65, 100, 128, 129, 3000}) {
      if (rows > most) continue;
      for (const int32_t n : {16, 6144, 40'000, 160'000}) {  // the last one: four layers'
        for (const int32_t k : {0, 100, 4096}) {
          ASSERT_LE(cuda::linear_workspace_bytes(rows, n, k), room) << rows << " " << n << " " << k;
        }
      }
    }
    ASSERT_GT(room, 0);
  }
}

// Layers have different widths: one of the shim's three blocks has the end of one layer and the
// beginning of the next, and some of the four tiles are cut.
struct HalfLayers {
  HalfLayers(int32_t rows, int32_t k, ActivationFormat format) : num_rows(rows) {
    for (const int32_t n : {72, 136, 24}) {
      all.push_back(make_layer(rows, n, k, 60 + static_cast<uint64_t>(n), format));
      all.back().x = all.front().x;
    }
  }

  [[nodiscard]] int32_t num_outputs() const {
    int32_t n = 0;
    for (const HalfLayer& layer : all) n += layer.n;
    return n;
  }

  // Returns each layer's outputs from one launch, in rows with one element more.
  std::vector<std::vector<float>> run(void* workspace, Segments segments) const {
    std::vector<std::vector<float>> out;
    for (const HalfLayer& layer : all) {
      out.emplace_back(static_cast<size_t>(num_rows * (layer.n + 1)), -1.0F);
    }
    std::vector<cuda::LinearHalfArgs> args;
    for (size_t i = 0; i < all.size(); ++i) {
      const HalfLayer& layer = all[i];
      args.push_back({.format = layer.format,
                      .x = all[0].x.data() + segments.first_column(layer.k),
                      .x_stride = layer.stride,
                      .weight = layer.weight.data(),
                      .weight_stride = layer.stride,
                      .num_rows = num_rows,
                      .n = layer.n,
                      .k = layer.k,
                      .out = out[i].data(),
                      .out_stride = layer.n + 1,
                      .workspace = workspace,
                      .segments = segments});
    }
    cuda::launch_linear_half(nullptr, args);
    return out;
  }

  int32_t num_rows;
  std::vector<HalfLayer> all;
};

class CudaLinearTogether : public OnDevice {};

INSTANTIATE_TEST_SUITE_P(Devices, CudaLinearTogether, ::testing::Values(80, 90), kName);

TEST_P(CudaLinearTogether, LayersOfOneInputHaveTheBitsOfEachAlone) {
  struct Case {
    int32_t rows;
    int32_t k;
    ActivationFormat format;
    Segments segments;
  };
  for (const Case& c : {Case{3, 840, ActivationFormat::kBF16, {}},
                        Case{20, 328, ActivationFormat::kF16, {}},
                        Case{3, 840, ActivationFormat::kF16, {4, 4}},
                        Case{130, 328, ActivationFormat::kBF16, {}}}) {
    SCOPED_TRACE("rows " + std::to_string(c.rows) + ", k " + std::to_string(c.k));
    const HalfLayers layers(c.rows, c.k, c.format);
    std::vector<std::vector<float>> want;
    for (const HalfLayer& layer : layers.all) {
      want.push_back(expected(layer, c.rows, core(), c.segments));
    }
    const test::LinearWorkspace workspace(
        cuda::linear_workspace_bytes(c.rows, layers.num_outputs()));
    for (void* const room : {static_cast<void*>(nullptr), static_cast<void*>(workspace.data())}) {
      if (room != nullptr && workspace.size() == 0) continue;
      test::on_schedules(
          [&] {
            const auto out = layers.run(room, c.segments);
            for (size_t i = 0; i < want.size(); ++i) test::expect_same_floats(out[i], want[i]);
          },
          c.rows == 3 && c.segments.are_all() ? test::Seeds::kAll : test::Seeds::kOne);
    }
  }
}

#ifndef SLUICE_TESTS_ON_GPU  // a GPU does not count launches
TEST(CudaLinearLaunches, LayersOfOneInputAreOneOnHopper) {
  const HalfLayers layers(3, 328, ActivationFormat::kBF16);
  const test::LinearWorkspace workspace(cuda::linear_workspace_bytes(3, layers.num_outputs()));
  simt::Run schedule(2);
  layers.run(nullptr, {});
  EXPECT_EQ(schedule.num_launches(), 1);
  layers.run(workspace.data(), {});
  EXPECT_EQ(schedule.num_launches(), 2);
  EXPECT_EQ(test::joined(schedule.take_reports()), "");
}
#endif

// A layer's matrix in a device's layout.
struct DeviceMatrix {
  explicit DeviceMatrix(const Int8Layer& layer)
      : bytes(matrix_bytes(WeightFormat::kInt8Channel, layer.n, layer.k)),
        view{.format = WeightFormat::kInt8Channel,
             .n = layer.n,
             .k = layer.k,
             .data = bytes.data()} {
    const int64_t stride = matrix_row_stride(view.format, layer.k);
    for (int64_t row = 0; row < layer.n; ++row) {
      std::memcpy(bytes.data() + row * stride,
                  &layer.codes[static_cast<size_t>(row * layer.k)],
                  static_cast<size_t>(layer.k));
    }
    std::memcpy(bytes.data() + matrix_scales_offset(view.format, layer.n, layer.k),
                layer.scales.data(),
                layer.scales.size() * sizeof(float));
  }

  test::DeviceBytes bytes;
  PackedWeight view;
};

// The operator's groups are q, k and v, or gate and up.
TEST_P(CudaLinearTogether, GroupsOfInt8HaveTheBitsOfTheCpu) {
  constexpr int32_t kColumns = 336;
  Int8Layer q(264, kColumns, 55);
  Int8Layer k(72, kColumns, 56);
  const PackedWeight weights[] = {
      {.format = WeightFormat::kInt8Channel, .n = q.n, .k = q.k, .data = q.packed.data()},
      {.format = WeightFormat::kInt8Channel, .n = k.n, .k = k.k, .data = k.packed.data()}};
  const DeviceMatrix on_device[] = {DeviceMatrix(q), DeviceMatrix(k)};
  const auto cpu = test::make_device("scalar", 1);
  for (const int32_t rows : {5, 130}) {
    SCOPED_TRACE("rows " + std::to_string(rows));
    const std::vector<float> values = q.random.normals(static_cast<size_t>(rows * kColumns));
    test::DeviceBytes bytes(activation_bytes(ActivationFormat::kInt8Token, rows, kColumns));
    const Activations x =
        carve_activations(ActivationFormat::kInt8Token, rows, kColumns, bytes.data());
    quantize_activations(cpu->context(), {.x = values.data(), .x_stride = kColumns, .out = x});
    const int32_t n = q.n + k.n;
    std::vector<float> want(static_cast<size_t>(rows * n), 0.5F);
    std::vector<float> out = want;
    const auto groups_of = [&](float* to, const PackedWeight& a, const PackedWeight& b) {
      return std::array<RowGroup, 2>{
          RowGroup{.weight = &a, .out = to, .out_stride = n, .bias = q.bias.data()},
          RowGroup{.weight = &b, .out = to + q.n, .out_stride = n, .bias = k.bias.data()}};
    };
    const auto cpu_groups = groups_of(want.data(), weights[0], weights[1]);
    linear(cpu->context(), {.x = x, .groups = cpu_groups, .epilogue = Epilogue::kAdd});
    const test::LinearWorkspace workspace(cuda::linear_workspace_bytes(rows, n, kColumns));
    ExecContext context{.device = DeviceType::kCuda};
    bool has_room = false;  // every second schedule
    test::on_schedules(
        [&] {
          has_room = !has_room;
          context.workspace = {workspace.data(), has_room ? workspace.size() : 0};
          std::ranges::fill(out, 0.5F);
          const auto groups = groups_of(out.data(), on_device[0].view, on_device[1].view);
          linear(context, {.x = x, .groups = groups, .epilogue = Epilogue::kAdd});
          test::expect_same_floats(out, want);
        },
        rows == 5 ? test::Seeds::kAll : test::Seeds::kOne);
  }
}

}  // namespace
}  // namespace sluice::kernels
