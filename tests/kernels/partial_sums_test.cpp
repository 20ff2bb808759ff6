// SPDX-License-Identifier: Apache-2.0
// Linear layers whose K is shared out give the bits of the whole layer, in every weight format.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/partial_sums.h"
#include "kernels/row_steps.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"
#include "tests/support/plain_matrix.h"

namespace sluice::kernels::testing {
namespace {

using kernels::test::devices;
using kernels::test::NamedDevice;

constexpr int32_t kOutputs = 56;  // three tiles and a half

struct Input {
  int32_t num_rows;
  int64_t k;
  std::vector<float> values;  // [num_rows][k]
};

Input make_input(int32_t num_rows, int64_t k, std::mt19937& rng) {
  Input input{.num_rows = num_rows, .k = k, .values = {}};
  std::normal_distribution<float> normal(0.0F, 1.0F);
  for (int64_t i = 0; i < num_rows * k; ++i) input.values.push_back(normal(rng));
  return input;
}

// A buffer and the Activations over it.
struct Rows {
  Rows(ActivationFormat format, int64_t num_rows, int64_t k)
      : buffer(activation_bytes(format, num_rows, k)),
        view(carve_activations(format, num_rows, k, buffer.data())) {}

  AlignedBuffer buffer;
  Activations view;
};

// The treatment of sums: bias, residual, and a step for each row.
struct Setting {
  bool bias = false;
  Epilogue epilogue = Epilogue::kStore;
};

class Layer {
 public:
  Layer(PackedWeight weight, ActivationFormat format, Input input, Setting setting)
      : weight_(weight), format_(format), input_(std::move(input)), setting_(setting) {
    for (int32_t i = 0; i < weight.n; ++i) {
      bias_.push_back(0.25F * static_cast<float>(i));
      norm_.push_back(1.0F + 0.125F * static_cast<float>(i % 3));
    }
  }

  // Returns [rows][n]: the layer's outputs behind a norm of each row.
  [[nodiscard]] std::vector<float> whole(const ExecContext& ctx) const {
    const Rows x = quantized(ctx, {}, {});
    std::vector<float> out = residual();
    const RowSteps then = steps(out.data());
    const RowGroup group = {
        .weight = &weight_, .out = out.data(), .out_stride = weight_.n, .bias = bias()};
    linear(ctx, {.x = x.view, .groups = {&group, 1}, .epilogue = setting_.epilogue, .then = &then});
    return out;
  }

  // Returns whole() computed by `size` ranks.
  [[nodiscard]] std::vector<float> in_parts(const ExecContext& ctx, int32_t size) const {
    std::vector<Segments> shares;
    for (int32_t rank = 0; rank < size; ++rank) {
      shares.push_back({.first = rank * kSegments / size, .count = kSegments / size});
    }
    std::vector<std::vector<int32_t>> magnitudes;
    std::vector<const int32_t*> magnitude_pointers;
    for (const Segments& share : shares) {
      std::vector<int32_t>& some = magnitudes.emplace_back(static_cast<size_t>(input_.num_rows));
      row_magnitudes(ctx,
                     {.x = input_.values.data() + share.first_column(input_.k),
                      .x_stride = input_.k,
                      .num_rows = input_.num_rows,
                      .n = static_cast<int32_t>(share.num_columns(input_.k)),
                      .out = some.data()});
      magnitude_pointers.push_back(some.data());
    }
    std::vector<std::vector<float>> parts;
    std::vector<const float*> part_pointers;
    std::vector<std::unique_ptr<Rows>> inputs;
    for (const Segments& share : shares) {
      inputs.push_back(std::make_unique<Rows>(quantized(ctx, share, magnitude_pointers)));
      std::vector<float>& part = parts.emplace_back(num_outputs(), NAN);
      part_pointers.push_back(part.data());
      const RowGroup group = {
          .weight = &weight_, .out = part.data(), .out_stride = weight_.n, .bias = nullptr};
      linear(ctx, {.x = inputs.back()->view, .groups = {&group, 1}, .segments = share});
    }
    std::vector<float> out = residual();
    const RowSteps then = steps(out.data());
    join_parts(ctx,
               {.parts = part_pointers,
                .weight = &weight_,
                .x = inputs.back()->view,
                .bias = bias(),
                .out = out.data(),
                .out_stride = weight_.n,
                .epilogue = setting_.epilogue,
                .then = &then});
    return out;
  }

 private:
  [[nodiscard]] size_t num_outputs() const {
    return static_cast<size_t>(input_.num_rows) * static_cast<size_t>(weight_.n);
  }

  [[nodiscard]] const float* bias() const { return setting_.bias ? bias_.data() : nullptr; }

  [[nodiscard]] std::vector<float> residual() const {
    std::vector<float> values(num_outputs());
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.5F * static_cast<float>(i % 7);
    return values;
  }

  [[nodiscard]] RowSteps steps(float* out) const {
    RowSteps then;
    then.add(HeadNormArgs{.x = out,
                          .x_stride = weight_.n,
                          .num_rows = input_.num_rows,
                          .num_heads = 1,
                          .n = weight_.n,
                          .weight = norm_.data(),
                          .eps = 1e-5F});
    return then;
  }

  [[nodiscard]] Rows quantized(const ExecContext& ctx,
                               Segments share,
                               const std::vector<const int32_t*>& magnitudes) const {
    Rows rows(format_, input_.num_rows, share.num_columns(input_.k));
    const bool by_row =
        format_ == ActivationFormat::kInt8Token || format_ == ActivationFormat::kE4M3Token;
    quantize_activations(
        ctx,
        {.x = input_.values.data() + share.first_column(input_.k),
         .x_stride = input_.k,
         .out = rows.view,
         .magnitudes = by_row ? std::span(magnitudes) : std::span<const int32_t* const>()});
    return rows;
  }

  PackedWeight weight_;
  ActivationFormat format_;
  Input input_;
  Setting setting_;
  std::vector<float> bias_;
  std::vector<float> norm_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_parts_join(const PackedWeight& weight, ActivationFormat format, std::mt19937& rng) {
  static const std::vector<NamedDevice> all = devices({1, 3});
  for (const int32_t num_rows : {1, 2, 9, 17}) {
    const Input input = make_input(num_rows, weight.k, rng);
    for (const Setting setting : {Setting{}, Setting{.bias = true, .epilogue = Epilogue::kAdd}}) {
      const Layer layer(weight, format, input, setting);
      const std::vector<float> expected = layer.whole(all.back().device->context());
      for (const NamedDevice& device : all) {
        for (const int32_t size : {2, 4, 8}) {
          ASSERT_TRUE(same_bits(expected, layer.in_parts(device.device->context(), size)))
              << format_info(weight.format).name << " k " << weight.k << ", " << num_rows
              << " rows in " << size << " parts, " << device.name;
        }
      }
    }
  }
}

// Shares have more groups than kernels unpack at a time.
TEST(Parts, JoinToTheBitsOfTheWholeLayerOfLongRows) {
  std::mt19937 rng(8);
  for (const WeightFormat format :
       {WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kQ6_K}) {
    const TestWeight w = make_weight(format, kOutputs, 4608, Values::kOrdinary, rng);
    expect_parts_join(w.view, ActivationFormat::kInt8, rng);
  }
}

// Shares are unequal, with borders inside blocks of the packed layout, and a row's end inside a
// group.
TEST(Parts, JoinToTheBitsOfTheWholeLayerInEveryFormat) {
  std::mt19937 rng(7);
  for (const WeightFormat format : tested_formats()) {
    const FormatInfo& info = format_info(format);
    for (const int64_t k : {int64_t{288}, int64_t{768}, int64_t{300}}) {
      if (k % info.block_elements != 0) continue;
      const TestWeight w = make_weight(info.format, kOutputs, k, Values::kOrdinary, rng);
      expect_parts_join(w.view, ActivationFormat::kFloat, rng);
      if (format == WeightFormat::kE4M3Channel) {
        expect_parts_join(w.view, ActivationFormat::kE4M3Token, rng);
      }
      if (!layout_of(format).is_integer()) continue;
      expect_parts_join(w.view, ActivationFormat::kInt8, rng);
      expect_parts_join(w.view, ActivationFormat::kInt16, rng);
    }
  }
}

// Shares are multiples of 128 columns and take the scales of the whole row's columns.
TEST(Parts, OfFp8BlocksJoinToTheBitsOfTheWholeLayer) {
  std::mt19937 rng(9);
  for (const int64_t k : {1024, 2048}) {
    const TestWeight w = make_weight(WeightFormat::kE4M3Block, kOutputs, k, Values::kOrdinary, rng);
    expect_parts_join(w.view, ActivationFormat::kE4M3Group, rng);
  }
}

class ChannelParts : public ::testing::Test {
 protected:
  PackedWeight pack(int64_t k, std::mt19937& rng) {
    std::uniform_int_distribution<int> code(-128, 127);
    std::vector<int8_t> codes(static_cast<size_t>(kOutputs * k));
    for (int8_t& c : codes) c = static_cast<int8_t>(code(rng));
    const std::vector<float> scales(kOutputs, 0.003F);
    packed_ =
        std::make_unique<AlignedBuffer>(packed_bytes(WeightFormat::kInt8Channel, kOutputs, k));
    sluice::test::pack_int8_rows(codes.data(), scales.data(), kOutputs, k, packed_->data());
    return {.format = WeightFormat::kInt8Channel,
            .n = kOutputs,
            .k = static_cast<int32_t>(k),
            .data = packed_->data()};
  }

  std::unique_ptr<AlignedBuffer> packed_;
};

// A row's scale is that of all its columns, and is applied to the sum of all parts.
TEST_F(ChannelParts, OfInt8WeightsJoinToTheBitsOfTheWholeLayer) {
  std::mt19937 rng(11);
  for (const int64_t k : {288, 300, 1024}) {
    expect_parts_join(pack(k, rng), ActivationFormat::kInt8Token, rng);
  }
}

TEST_F(ChannelParts, KeepANonFiniteRowVisible) {
  std::mt19937 rng(13);
  const PackedWeight weight = pack(512, rng);
  Input input = make_input(2, weight.k, rng);
  input.values[500] = std::numeric_limits<float>::infinity();  // row 0, the last rank's
  const Layer layer(weight, ActivationFormat::kInt8Token, input, {});
  for (const NamedDevice& device : devices({1})) {
    const std::vector<float> out = layer.in_parts(device.device->context(), 4);
    EXPECT_TRUE(std::isnan(out[0])) << device.name;
    EXPECT_TRUE(std::isfinite(out[kOutputs])) << device.name;
  }
}

// The fold is ((p0+p1)+(p2+p3))+((p4+p5)+(p6+p7)), and no other order.
TEST(Parts, FoldAsABalancedTreeInOrderOfRank) {
  const float big = 0x1p24F;
  const std::vector<std::vector<float>> columns = {{big, 1, -big, 1, 1, 1, 1, 1},
                                                   {1, big, 1, -big, big, 1, -big, 1}};
  const PackedWeight weight = {.format = WeightFormat::kF32, .n = 2, .k = 1, .data = nullptr};
  Rows x(ActivationFormat::kFloat, 1, 1);
  for (const NamedDevice& device : devices({1})) {
    for (const size_t size : {2U, 4U, 8U}) {
      std::vector<std::vector<float>> parts;
      std::vector<const float*> pointers;
      for (size_t i = 0; i < size; ++i) parts.push_back({columns[0][i], columns[1][i]});
      for (const std::vector<float>& part : parts) pointers.push_back(part.data());
      std::vector<float> out(2, NAN);
      join_parts(
          device.device->context(),
          {.parts = pointers, .weight = &weight, .x = x.view, .out = out.data(), .out_stride = 2});
      for (size_t c = 0; c < 2; ++c) {
        std::vector<float> expected = columns[c];
        for (size_t width = 1; width < size; width *= 2) {
          for (size_t i = 0; i < size; i += 2 * width) expected[i] += expected[i + width];
        }
        EXPECT_EQ(out[c], expected[0]) << device.name << ", " << size << " parts";
      }
    }
  }
}

TEST(Parts, SegmentsCoverKInOrder) {
  for (const int64_t k : {1, 31, 288, 576, 4096, 14336}) {
    for (const int32_t size : {1, 2, 4, 8}) {
      int64_t next = 0;
      for (int32_t rank = 0; rank < size; ++rank) {
        const Segments share = {.first = rank * kSegments / size, .count = kSegments / size};
        EXPECT_EQ(share.first_column(k), next);
        next = share.end_column(k);
      }
      EXPECT_EQ(next, k);
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::testing
