// SPDX-License-Identifier: Apache-2.0
// Linear layers whose K is shared out over ranks: the values of each, and their join to the bits of
// the whole layer, which for INT8 are the CPU's.
#include "kernels/partial_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/device.h"
#include "kernels/device_memory.h"
#include "kernels/row_steps.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"
#include "tests/support/plain_matrix.h"

namespace sluice::kernels {
namespace {

using test::DeviceBytes;
using test::Random;

constexpr int32_t kN = 40;
constexpr int64_t kOutStride = kN + 3;

struct Setting {
  int32_t rows;
  int32_t k;
  bool bias = false;
  Epilogue epilogue = Epilogue::kStore;
};

Segments share_of(int32_t rank, int32_t size) {
  return {.first = rank * kSegments / size, .count = kSegments / size};
}

std::vector<float> residual(int32_t rows) {
  std::vector<float> values(static_cast<size_t>(rows * kOutStride));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.5F * static_cast<float>(i % 7);
  return values;
}

class CudaParts : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!device_.is_here()) GTEST_SKIP() << "the GPU is another";
  }

  // sums(rank, share, out): the rank's part.
  using Sums = std::function<void(size_t rank, Segments share, float* out)>;

  static std::vector<float> join(const Setting& setting,
                                 int32_t size,
                                 const PackedWeight& weight,
                                 const Activations& x,
                                 const std::vector<float>& bias,
                                 const Sums& sums) {
    const std::vector<float> poison(static_cast<size_t>(setting.rows * kN),
                                    std::numeric_limits<float>::quiet_NaN());
    std::vector<std::vector<float>> parts(static_cast<size_t>(size), poison);
    std::vector<const float*> pointers;
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      sums(rank, share_of(static_cast<int32_t>(rank), size), parts[rank].data());
      pointers.push_back(parts[rank].data());
    }
    std::vector<float> out = residual(setting.rows);
    cuda::launch_join_parts(nullptr,
                            {.parts = pointers,
                             .weight = &weight,
                             .x = x,
                             .bias = setting.bias ? bias.data() : nullptr,
                             .out = out.data(),
                             .out_stride = kOutStride,
                             .epilogue = setting.epilogue});
    return out;
  }

  // Runs on every schedule for few rows of few ranks, on one otherwise.
  static void check(const Setting& setting, int32_t size, const std::function<void()>& body) {
    SCOPED_TRACE(std::to_string(size) + " ranks, rows " + std::to_string(setting.rows) + ", k " +
                 std::to_string(setting.k));
    if (setting.rows <= 9 && size == 2) return test::on_schedules(body);
    simt::Run schedule(static_cast<uint64_t>(setting.rows + size));
    body();
    ASSERT_EQ(test::joined(schedule.take_reports()), "");
  }

 private:
  simt::GivenDevice device_{GetParam()};
};

constexpr auto kName = [](const auto& info) { return "sm_" + std::to_string(info.param); };
INSTANTIATE_TEST_SUITE_P(Devices, CudaParts, ::testing::Values(80, 90), kName);

// Borders inside of chunks, unequal shares, a last group that is not full; one row, few, a tile of
// 8 and one more, 64 and more; fewer groups than ranks, some of which have no column.
const std::vector<Setting> kSettings = {
    {.rows = 3, .k = 840},
    {.rows = 9, .k = 296, .bias = true, .epilogue = Epilogue::kAdd},
    {.rows = 1, .k = 1032, .bias = true},
    {.rows = 64, .k = 288, .epilogue = Epilogue::kAdd},
    {.rows = 70, .k = 520, .bias = true},
    {.rows = 5, .k = 24, .bias = true},
    {.rows = 70, .k = 40, .epilogue = Epilogue::kAdd}};

uint16_t code_of(WeightFormat format, float value) {
  return format == WeightFormat::kF16 ? float_to_half(value) : float_to_bf16(value);
}

// One matrix of 16 bits, and rows for it.
class HalfMatrix {
 public:
  HalfMatrix(WeightFormat format, const Setting& setting)
      : format_(format), setting_(setting), bias_(Random(112).normals(kN)) {
    Random random(111);
    for (int32_t i = 0; i < kN * setting.k; ++i) w_.push_back(code_of(format, random.normal()));
    for (int32_t i = 0; i < setting.rows * setting.k; ++i) {
      x_.push_back(code_of(format, random.normal()));
    }
  }

  [[nodiscard]] cuda::LinearHalfArgs args(Segments share, float* out, int64_t out_stride) const {
    return {.format = activation_format(format_, 8, DeviceType::kCuda),
            .x = x_.data() + share.first_column(setting_.k),
            .x_stride = setting_.k,
            .weight = w_.data(),
            .weight_stride = setting_.k,
            .num_rows = setting_.rows,
            .n = kN,
            .k = setting_.k,
            .out = out,
            .out_stride = out_stride,
            .segments = share};
  }

  [[nodiscard]] std::vector<float> whole() const {
    std::vector<float> out = residual(setting_.rows);
    cuda::LinearHalfArgs all = args({}, out.data(), kOutStride);
    all.bias = setting_.bias ? bias_.data() : nullptr;
    all.epilogue = setting_.epilogue;
    cuda::launch_linear_half(nullptr, all);
    return out;
  }

  [[nodiscard]] const std::vector<float>& bias() const { return bias_; }

  [[nodiscard]] PackedWeight packed() const {
    return {.format = format_,
            .n = kN,
            .k = setting_.k,
            .data = reinterpret_cast<const std::byte*>(w_.data())};
  }

 private:
  const WeightFormat format_;
  const Setting setting_;
  std::vector<uint16_t> w_;
  std::vector<uint16_t> x_;
  std::vector<float> bias_;
};

TEST_P(CudaParts, OfHalvesJoinToTheBitsOfTheWholeLayer) {
  for (const Setting& setting : kSettings) {
    const auto format = setting.rows % 2 == 0 ? WeightFormat::kF16 : WeightFormat::kBF16;
    const HalfMatrix matrix(format, setting);
    std::vector<float> want;
    {
      const simt::Run schedule(1);
      want = matrix.whole();
    }
    const test::LinearWorkspace workspace(cuda::linear_workspace_bytes(setting.rows, kN));
    const Activations x{.format = activation_format(format, 8, DeviceType::kCuda),
                        .num_rows = setting.rows,
                        .k = setting.k};
    for (const int32_t size : {2, 4, 8}) {
      check(setting, size, [&] {
        const std::vector<float> got = join(setting,
                                            size,
                                            matrix.packed(),
                                            x,
                                            matrix.bias(),
                                            [&](size_t rank, Segments share, float* out) {
                                              cuda::LinearHalfArgs args =
                                                  matrix.args(share, out, kN);
                                              if (rank % 2 == 1 && workspace.size() > 0)
                                                args.workspace = workspace.data();
                                              cuda::launch_linear_half(nullptr, args);
                                            });
        test::expect_same_floats(got, want);
      });
    }
  }
}

// Weights of 8 bits with a scale per output, in the CPU's and in the device's layout.
class Int8Matrix {
 public:
  Int8Matrix(const Setting& setting, uint64_t seed)
      : k_(setting.k),
        cpu_(packed_bytes(WeightFormat::kInt8Channel, kN, setting.k)),
        rows_(matrix_bytes(WeightFormat::kInt8Channel, kN, setting.k)) {
    Random random(seed);
    std::vector<int8_t> codes(static_cast<size_t>(kN * k_));
    for (int8_t& code : codes) code = static_cast<int8_t>(random.below(256) - 128);
    std::vector<float> scales(kN);
    for (float& scale : scales) scale = random.uniform() * 0.01F;
    sluice::test::pack_int8_rows(codes.data(), scales.data(), kN, k_, cpu_.data());
    for (int64_t row = 0; row < kN; ++row) {
      std::copy_n(reinterpret_cast<const std::byte*>(&codes[static_cast<size_t>(row * k_)]),
                  k_,
                  rows_.data() + row * stride());
    }
    std::ranges::copy(scales,
                      reinterpret_cast<float*>(
                          rows_.data() + matrix_scales_offset(WeightFormat::kInt8Channel, kN, k_)));
  }

  [[nodiscard]] int64_t stride() const { return matrix_row_stride(WeightFormat::kInt8Channel, k_); }

  [[nodiscard]] PackedWeight cpu() const { return view(cpu_.data()); }

  [[nodiscard]] PackedWeight device() const { return view(rows_.data()); }

  [[nodiscard]] const float* scales() const {
    return reinterpret_cast<const float*>(rows_.data() +
                                          matrix_scales_offset(WeightFormat::kInt8Channel, kN, k_));
  }

 private:
  [[nodiscard]] PackedWeight view(const std::byte* data) const {
    return {.format = WeightFormat::kInt8Channel, .n = kN, .k = k_, .data = data};
  }

  const int32_t k_;
  testing::AlignedBuffer cpu_;
  DeviceBytes rows_;
};

struct TokenRows {
  TokenRows(int32_t rows, int64_t k)
      : bytes(activation_bytes(ActivationFormat::kInt8Token, rows, k)),
        view(carve_activations(ActivationFormat::kInt8Token, rows, k, bytes.data())) {}

  DeviceBytes bytes;
  Activations view;
};

// Returns the ranks' rows, quantized by the largest magnitudes of all of them.
std::vector<std::unique_ptr<TokenRows>> quantized(const std::vector<float>& values,
                                                  const Setting& setting,
                                                  int32_t size) {
  std::vector<std::vector<int32_t>> found(static_cast<size_t>(size));
  std::vector<const int32_t*> magnitudes;
  for (int32_t rank = 0; rank < size; ++rank) {
    const Segments share = share_of(rank, size);
    std::vector<int32_t>& own = found[static_cast<size_t>(rank)];
    own.resize(static_cast<size_t>(setting.rows), -1);
    cuda::launch_row_magnitudes(nullptr,
                                {.x = values.data() + share.first_column(setting.k),
                                 .x_stride = setting.k,
                                 .num_rows = setting.rows,
                                 .n = static_cast<int32_t>(share.num_columns(setting.k)),
                                 .out = own.data()});
    magnitudes.push_back(own.data());
  }
  std::vector<std::unique_ptr<TokenRows>> ranks;
  for (int32_t rank = 0; rank < size; ++rank) {
    const Segments share = share_of(rank, size);
    ranks.push_back(std::make_unique<TokenRows>(setting.rows, share.num_columns(setting.k)));
    cuda::launch_quantize_activations(nullptr,
                                      {.x = values.data() + share.first_column(setting.k),
                                       .x_stride = setting.k,
                                       .out = ranks.back()->view,
                                       .magnitudes = magnitudes});
  }
  return ranks;
}

TEST_P(CudaParts, OfInt8JoinToTheCpusBitsOfTheWholeLayer) {
  const auto cpu = test::make_device("scalar", 1);
  const std::vector<float> bias = Random(113).normals(kN);
  for (const Setting& setting : kSettings) {
    const Int8Matrix matrix(setting, 114);
    std::vector<float> values = Random(115).normals(static_cast<size_t>(setting.rows * setting.k));
    values.back() = std::numeric_limits<float>::infinity();  // the last row's, of the last rank
    const TokenRows all(setting.rows, setting.k);
    quantize_activations(cpu->context(),
                         {.x = values.data(), .x_stride = setting.k, .out = all.view});
    std::vector<float> want = residual(setting.rows);
    const PackedWeight weight = matrix.cpu();
    const RowGroup group{.weight = &weight,
                         .out = want.data(),
                         .out_stride = kOutStride,
                         .bias = setting.bias ? bias.data() : nullptr};
    linear(cpu->context(), {.x = all.view, .groups = {&group, 1}, .epilogue = setting.epilogue});
    const test::LinearWorkspace workspace(cuda::linear_workspace_bytes(setting.rows, kN));
    for (const int32_t size : {2, 4, 8}) {
      check(setting, size, [&] {
        const auto rows = quantized(values, setting, size);
        const std::vector<float> got =
            join(setting,
                 size,
                 matrix.device(),
                 rows[0]->view,
                 bias,
                 [&](size_t rank, Segments share, float* out) {
                   const bool split = rank % 2 == 1 && workspace.size() > 0;
                   cuda::launch_linear_int8(
                       nullptr,
                       {.x = rows[rank]->view,
                        .weight = reinterpret_cast<const int8_t*>(matrix.device().data),
                        .weight_stride = matrix.stride(),
                        .weight_scale = matrix.scales(),
                        .n = kN,
                        .k = setting.k,
                        .out = out,
                        .out_stride = kN,
                        .workspace = split ? workspace.data() : nullptr,
                        .segments = share});
                 });
        test::expect_same_floats(got, want);
      });
    }
  }
}

// Compares a rank's sums of many rows with the CPU's; the last two rows are a tile of their own.
// Shares of two segments are 11 chunks, twice around the ring of gemm_wide.cu.
TEST_P(CudaParts, OfInt8AndManyRowsHaveTheCpusBits) {
  const auto cpu = test::make_device("scalar", 1);
  const Setting setting{.rows = 130, .k = 5160};
  const Int8Matrix matrix(setting, 116);
  for (const Segments share : {Segments{7, 1}, Segments{2, 2}, Segments{6, 2}}) {
    SCOPED_TRACE("segment " + std::to_string(share.first));
    const TokenRows rows(setting.rows, share.num_columns(setting.k));
    const std::vector<float> values =
        Random(117).normals(static_cast<size_t>(setting.rows * rows.view.k));
    quantize_activations(cpu->context(),
                         {.x = values.data(), .x_stride = rows.view.k, .out = rows.view});
    std::vector<float> want(static_cast<size_t>(setting.rows * kN), 0.5F);
    const PackedWeight weight = matrix.cpu();
    const RowGroup group{.weight = &weight, .out = want.data(), .out_stride = kN, .bias = nullptr};
    linear(cpu->context(), {.x = rows.view, .groups = {&group, 1}, .segments = share});
    const test::LinearWorkspace workspace(
        cuda::linear_workspace_bytes(setting.rows, kN, rows.view.k));
    const auto body = [&] {
      std::vector<float> out(want.size(), 0.5F);
      cuda::launch_linear_int8(nullptr,
                               {.x = rows.view,
                                .weight = reinterpret_cast<const int8_t*>(matrix.device().data),
                                .weight_stride = matrix.stride(),
                                .weight_scale = matrix.scales(),
                                .n = kN,
                                .k = setting.k,
                                .out = out.data(),
                                .out_stride = kN,
                                .workspace = workspace.size() > 0 ? workspace.data() : nullptr,
                                .segments = share});
      test::expect_same_bytes(reinterpret_cast<const std::byte*>(out.data()),
                              reinterpret_cast<const std::byte*>(want.data()),
                              want.size() * sizeof(float));
    };
    test::on_schedules(body, test::Seeds::kOne);
#ifndef SLUICE_TESTS_ON_GPU  // a GPU does not count launches
    simt::Run schedule(3);
    body();
    EXPECT_EQ(schedule.num_launches(), GetParam() == 90 ? 2 : 1);  // rows are packed first
    EXPECT_EQ(test::joined(schedule.take_reports()), "");
#endif
  }
}

// Device memory that is kept to the end of a test.
class OnDevice {
 public:
  OnDevice() : device_(std::move(*Device::create({.type = DeviceType::kCuda, .threads = 1}))) {}

  [[nodiscard]] const ExecContext& context() const { return device_->context(); }

  std::byte* room(int64_t bytes) {
    return buffers_
        .emplace_back(std::move(*DeviceBuffer::allocate(device_->memory(), bytes, "test")))
        .data();
  }

  template <typename T>
  T* copy_of(const T* values, int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    std::byte* const to = room(bytes);
    device_->memory().upload(to, reinterpret_cast<const std::byte*>(values), bytes);
    device_->memory().wait();  // weights are among them
    return reinterpret_cast<T*>(to);
  }

  std::vector<float> floats_at(const float* from, size_t count) {
    std::vector<float> values(count);
    device_->memory().download(reinterpret_cast<std::byte*>(values.data()),
                               reinterpret_cast<const std::byte*>(from),
                               static_cast<int64_t>(count * sizeof(float)));
    device_->memory().wait();
    return values;
  }

 private:
  std::unique_ptr<Device> device_;
  std::vector<DeviceBuffer> buffers_;
};

// Two ranks' operators run one after the other on one device, and row steps follow the join.
TEST(CudaOperators, JoinARanksHalvesToTheCpusBits) {
  const Setting setting{.rows = 5, .k = 296};
  const auto k = int64_t{setting.k};
  const Int8Matrix matrix(setting, 117);
  const std::vector<float> values = Random(118).normals(static_cast<size_t>(setting.rows * k));
  const std::vector<float> norm = Random(119).normals(kN);
  const auto steps = [&](float* out, const float* weight) {
    RowSteps then;
    then.add(HeadNormArgs{.x = out,
                          .x_stride = kN,
                          .num_rows = setting.rows,
                          .num_heads = 1,
                          .n = kN,
                          .weight = weight,
                          .eps = 1e-5F});
    return then;
  };
  std::vector<float> want(static_cast<size_t>(setting.rows * kN));
  {
    const auto cpu = test::make_device("scalar", 1);
    const TokenRows all(setting.rows, k);
    quantize_activations(cpu->context(), {.x = values.data(), .x_stride = k, .out = all.view});
    const PackedWeight weight = matrix.cpu();
    const RowGroup group{.weight = &weight, .out = want.data(), .out_stride = kN, .bias = nullptr};
    const RowSteps then = steps(want.data(), norm.data());
    linear(cpu->context(), {.x = all.view, .groups = {&group, 1}, .then = &then});
  }
  OnDevice device;
  const ExecContext& ctx = device.context();
  PackedWeight weight = matrix.device();
  weight.data = device.copy_of(weight.data, matrix_bytes(weight.format, kN, k));
  const float* const x = device.copy_of(values.data(), static_cast<int64_t>(values.size()));
  std::vector<const int32_t*> magnitudes;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const Segments share = share_of(rank, 2);
    auto* const own = reinterpret_cast<int32_t*>(device.room(setting.rows * int64_t{4}));
    row_magnitudes(ctx,
                   {.x = x + share.first_column(k),
                    .x_stride = k,
                    .num_rows = setting.rows,
                    .n = static_cast<int32_t>(share.num_columns(k)),
                    .out = own});
    magnitudes.push_back(own);
  }
  std::vector<const float*> parts;
  Activations rows;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const Segments share = share_of(rank, 2);
    const int64_t columns = share.num_columns(k);
    const auto format = ActivationFormat::kInt8Token;
    rows = carve_activations(format,
                             setting.rows,
                             columns,
                             device.room(activation_bytes(format, setting.rows, columns)));
    quantize_activations(
        ctx,
        {.x = x + share.first_column(k), .x_stride = k, .out = rows, .magnitudes = magnitudes});
    auto* const own = reinterpret_cast<float*>(device.room(setting.rows * kN * int64_t{4}));
    const RowGroup group{.weight = &weight, .out = own, .out_stride = kN, .bias = nullptr};
    linear(ctx, {.x = rows, .groups = {&group, 1}, .segments = share});
    parts.push_back(own);
  }
  auto* const out = reinterpret_cast<float*>(device.room(setting.rows * kN * int64_t{4}));
  const RowSteps then = steps(out, device.copy_of(norm.data(), kN));
  join_parts(
      ctx,
      {.parts = parts, .weight = &weight, .x = rows, .out = out, .out_stride = kN, .then = &then});
  test::expect_same_floats(device.floats_at(out, want.size()), want);
}

// Any other order, or a missing part, would change these sums.
TEST(CudaJoinParts, FoldsAsABalancedTreeInOrderOfRank) {
  const float big = 0x1p24F;
  const std::vector<std::vector<float>> columns = {{big, 1, -big, 1, 1, 1, 1, 1},
                                                   {1, big, 1, -big, big, 1, -big, 1}};
  const PackedWeight weight = {.format = WeightFormat::kBF16, .n = 2, .k = 1, .data = nullptr};
  const Activations x{.format = ActivationFormat::kBF16, .num_rows = 1, .k = 1};
  for (const size_t size : {2U, 4U, 8U}) {
    std::vector<std::vector<float>> parts;
    std::vector<const float*> pointers;
    for (size_t i = 0; i < size; ++i) parts.push_back({columns[0][i], columns[1][i]});
    for (const std::vector<float>& part : parts) pointers.push_back(part.data());
    std::vector<float> want;
    for (std::vector<float> column : columns) {
      for (size_t width = 1; width < size; width *= 2) {
        for (size_t i = 0; i < size; i += 2 * width) column[i] += column[i + width];
      }
      want.push_back(column[0]);
    }
    test::on_schedules([&] {
      std::vector<float> out(2, std::numeric_limits<float>::quiet_NaN());
      cuda::launch_join_parts(
          nullptr,
          {.parts = pointers, .weight = &weight, .x = x, .out = out.data(), .out_stride = 2});
      test::expect_same_floats(out, want);
    });
  }
}

// Values have signs, zeros, infinities and NaN; rows are shorter and longer than a thread block.
TEST(CudaRowMagnitudes, AreTheCpus) {
  constexpr int32_t kRows = 5;
  const auto cpu = test::make_device("scalar", 1);
  for (const int32_t n : {1, 37, 300}) {
    const int64_t stride = n + 2;
    std::vector<float> x = Random(116).normals(static_cast<size_t>(kRows * stride));
    std::fill_n(x.begin() + stride, n, -0.0F);
    x[static_cast<size_t>(2 * stride + n - 1)] = -100.0F;
    x[static_cast<size_t>(3 * stride)] = -std::numeric_limits<float>::infinity();
    x[static_cast<size_t>(4 * stride)] = std::numeric_limits<float>::quiet_NaN();
    const auto args = [&](std::vector<int32_t>& out) {
      return RowMagnitudesArgs{
          .x = x.data(), .x_stride = stride, .num_rows = kRows, .n = n, .out = out.data()};
    };
    std::vector<int32_t> want(kRows + 1, -1);
    row_magnitudes(cpu->context(), args(want));
    test::on_schedules([&] {
      std::vector<int32_t> out(kRows + 1, -1);
      cuda::launch_row_magnitudes(nullptr, args(out));
      ASSERT_EQ(out, want);
    });
  }
}

}  // namespace
}  // namespace sluice::kernels
