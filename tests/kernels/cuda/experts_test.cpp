// SPDX-License-Identifier: Apache-2.0
// The matrices of experts on CUDA: a row must have the bits that it has alone through its expert,
// which are the CPU's except for 16-bit matrices times rows of the same type.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
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

constexpr float kPoison = 1234.5F;

// The places of the experts' rows; each begins a block of 8, and the last is not full.
struct Placed {
  std::vector<int32_t> first;
  std::vector<int32_t> count;
  std::vector<int32_t> chosen;
  std::vector<int32_t> chosen_count = std::vector<int32_t>(1);
  int32_t num_rows = 0;

  [[nodiscard]] ExpertRows experts() {
    return {.num_experts = static_cast<int32_t>(count.size()),
            .first = first.data(),
            .count = count.data(),
            .chosen = chosen.data(),
            .num_chosen = chosen_count.data()};
  }
};

Placed place(const std::vector<int32_t>& count) {
  Placed placed{.first = {}, .count = count, .chosen = {}};
  for (const int32_t rows : count) {
    const auto expert = static_cast<int32_t>(placed.first.size());
    placed.first.push_back(placed.num_rows);
    if (rows > 0) placed.chosen.push_back(expert);
    placed.num_rows += static_cast<int32_t>(align_up(rows, kActivationRows));
  }
  placed.chosen_count[0] = static_cast<int32_t>(placed.chosen.size());
  placed.chosen.resize(count.size(), 1 << 20);  // never read
  return placed;
}

// Returns `alone(expert, row)` for the rows of experts, and poison elsewhere.
template <typename Alone>
std::vector<float> expected(const Placed& placed, int64_t stride, Alone alone) {
  std::vector<float> want(static_cast<size_t>(placed.num_rows * stride), kPoison);
  for (size_t expert = 0; expert < placed.count.size(); ++expert) {
    for (int32_t i = 0; i < placed.count[expert]; ++i) {
      const int32_t row = placed.first[expert] + i;
      const std::vector<float> out = alone(static_cast<int32_t>(expert), row);
      std::ranges::copy(out, want.begin() + row * stride);
    }
  }
  return want;
}

// The experts' data, one after the other, like in the engine's memory.
class Arena {
 public:
  Arena(int32_t experts, const std::vector<int64_t>& bytes) {
    for (const int64_t piece : bytes) {
      begin_.push_back(stride_);
      stride_ += align_up(piece, 64);
    }
    memory_ = std::make_unique<test::DeviceBytes>(experts * stride_);
  }

  template <typename T>
  [[nodiscard]] T* at(int32_t expert, size_t piece) const {
    return reinterpret_cast<T*>(memory_->data() + expert * stride_ + begin_[piece]);
  }

  [[nodiscard]] int64_t stride() const { return stride_; }

 private:
  std::vector<int64_t> begin_;
  int64_t stride_ = 0;
  std::unique_ptr<test::DeviceBytes> memory_;
};

class CudaExperts : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!device_.is_here()) GTEST_SKIP() << "the GPU is another";
  }

 private:
  simt::GivenDevice device_{GetParam()};
};

constexpr auto kName = [](const auto& info) { return "sm_" + std::to_string(info.param); };
INSTANTIATE_TEST_SUITE_P(Devices, CudaExperts, ::testing::Values(80, 90, 120), kName);

struct Case {
  std::vector<int32_t> counts;  // rows, by expert
  int32_t n;
  Segments segments = {};
  int32_t k = 0;  // 0: the test's own
};

// Few rows an expert take tiles of 8 tokens, many take tiles of 64; in each case one expert has
// none and one has more than a tile. An expert's last block of outputs is not full. The last shares
// have no column.
const std::vector<Case> kCases = {{{3, 0, 11, 1}, 136},
                                  {{66, 5, 0}, 24},
                                  {{2, 9}, 40, {4, 4}},
                                  {{0, 70}, 24, {2, 2}},
                                  {{3, 10}, 24, {0, 2}, 48}};

// Some columns of K give unscaled sums.
TEST_P(CudaExperts, Int8RowsHaveTheBitsOfTheCpu) {
  const auto cpu = test::make_device("scalar", 1);
  Random random(101);
  for (const auto& [counts, n, segments, own_k] : kCases) {
    const int32_t k = own_k > 0 ? own_k : 272;
    SCOPED_TRACE("rows " + std::to_string(counts[0]) + ", segments " +
                 std::to_string(segments.count));
    const bool whole = segments.are_all();
    const auto first = static_cast<int32_t>(segments.first_column(k));
    const auto columns = static_cast<int32_t>(segments.num_columns(k));
    Placed placed = place(counts);
    const auto experts = static_cast<int32_t>(counts.size());
    const int32_t outputs = n;
    Arena arena(experts, {outputs * int64_t{k}, outputs * int64_t{4}, outputs * int64_t{4}});
    for (int32_t expert = 0; expert < experts; ++expert) {
      for (int32_t i = 0; i < outputs * k; ++i) {
        arena.at<int8_t>(expert, 0)[i] = static_cast<int8_t>(random.below(255) - 127);
      }
      for (int32_t i = 0; i < outputs; ++i) {
        arena.at<float>(expert, 1)[i] = random.uniform() * 0.01F;
        arena.at<float>(expert, 2)[i] = random.normal();
      }
    }
    const std::vector<float> values = random.normals(static_cast<size_t>(placed.num_rows) * k);
    const test::DeviceBytes bytes(
        activation_bytes(ActivationFormat::kInt8Token, placed.num_rows, columns));
    const Activations x =
        carve_activations(ActivationFormat::kInt8Token, placed.num_rows, columns, bytes.data());
    quantize_activations(cpu->context(), {.x = values.data() + first, .x_stride = k, .out = x});
    const std::vector<float> want = expected(placed, outputs, [&](int32_t expert, int32_t row) {
      std::vector<float> out;
      for (int32_t at = 0; at < outputs; ++at) {
        int32_t sum = 0;
        for (int32_t column = 0; column < columns; ++column) {
          const auto group = activation_group(x, row, column / kQuantGroup);
          sum += arena.at<int8_t>(expert, 0)[at * k + first + column] *
                 static_cast<const int8_t*>(group.codes)[column % kQuantGroup];
        }
        if (!whole) {
          out.push_back(std::bit_cast<float>(sum));
          continue;
        }
        const float scaled = static_cast<float>(sum) * *activation_group(x, row, 0).scale;
        out.push_back(scaled * arena.at<float>(expert, 1)[at] + arena.at<float>(expert, 2)[at]);
      }
      return out;
    });
    test::on_schedules([&] {
      std::vector<float> out(want.size(), kPoison);
      cuda::launch_experts_int8(nullptr,
                                {.x = x,
                                 .weight = arena.at<int8_t>(0, 0),
                                 .weight_stride = k,
                                 .weight_scale = arena.at<float>(0, 1),
                                 .n = outputs,
                                 .k = k,
                                 .bias = whole ? arena.at<float>(0, 2) : nullptr,
                                 .out = out.data(),
                                 .out_stride = outputs,
                                 .segments = segments},
                                {.rows = placed.experts(), .stride = arena.stride()});
      test::expect_same_floats(out, want);
    });
  }
}

// Compares with a row through its expert alone, by the layer that the CPU does not have (launch.h).
void check_half(ActivationFormat format, const std::vector<Case>& cases) {
  Random random(102);
  for (const auto& [counts, n, segments, own_k] : cases) {
    const int32_t k = own_k > 0 ? own_k : 232;  // a group a segment, the last not full
    const auto matrix = [&](int64_t rows) {
      std::vector<uint16_t> codes;
      for (int64_t i = 0; i < rows * k; ++i) {
        codes.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(random.normal()) >> 16));
      }
      return codes;
    };
    SCOPED_TRACE("rows " + std::to_string(counts[0]) + ", segments " +
                 std::to_string(segments.count));
    const bool whole = segments.are_all();
    const Segments own = segments;
    Placed placed = place(counts);
    const auto experts = static_cast<int32_t>(counts.size());
    const int32_t outputs = n;
    Arena arena(experts, {outputs * int64_t{k} * 2, outputs * int64_t{4}});
    for (int32_t expert = 0; expert < experts; ++expert) {
      std::ranges::copy(matrix(outputs), arena.at<uint16_t>(expert, 0));
      std::ranges::copy(random.normals(static_cast<size_t>(outputs)), arena.at<float>(expert, 1));
    }
    const std::vector<uint16_t> x = matrix(placed.num_rows);
    const auto args = [&](std::vector<float>& out) {
      return cuda::LinearHalfArgs{.format = format,
                                  .x = x.data() + own.first_column(k),
                                  .x_stride = k,
                                  .weight = arena.at<uint16_t>(0, 0),
                                  .weight_stride = k,
                                  .num_rows = placed.num_rows,
                                  .n = outputs,
                                  .k = k,
                                  .bias = whole ? arena.at<float>(0, 1) : nullptr,
                                  .out = out.data(),
                                  .out_stride = outputs,
                                  .segments = own};
    };
    std::vector<float> want;
    {
      const simt::Run schedule(3);
      want = expected(placed, outputs, [&](int32_t expert, int32_t row) {
        std::vector<float> out(static_cast<size_t>(outputs));
        cuda::LinearHalfArgs alone = args(out);
        alone.x += int64_t{row} * k;
        alone.weight = arena.at<uint16_t>(expert, 0);
        if (whole) alone.bias = arena.at<float>(expert, 1);
        alone.num_rows = 1;
        cuda::launch_linear_half(nullptr, alone);
        return out;
      });
    }
    test::on_schedules([&] {
      std::vector<float> out(want.size(), kPoison);
      cuda::launch_experts_half(
          nullptr, args(out), {.rows = placed.experts(), .stride = arena.stride()});
      test::expect_same_floats(out, want);
    });
  }
}

TEST_P(CudaExperts, Bf16RowsHaveTheBitsTheyHaveAlone) {
  check_half(ActivationFormat::kBF16, kCases);
}

TEST_P(CudaExperts, F16RowsHaveTheBitsTheyHaveAlone) {
  check_half(ActivationFormat::kF16, {{{3, 0, 9}, 24}, {{20, 1}, 16}});
}

// Joins four ranks' sums of the rows of three experts, one of which has none: each row with its
// expert's bias and, for INT8, its scales; rows of no expert are left unchanged.
template <typename Sum>
void check_join(WeightFormat format, const std::vector<int32_t>& counts) {
  constexpr int32_t kN = 136;  // a block of outputs and some
  constexpr int32_t kK = 64;
  constexpr size_t kRanks = 4;
  const bool int8 = format == WeightFormat::kInt8Channel;
  Random random(103);
  Placed placed = place(counts);
  const auto experts = static_cast<int32_t>(counts.size());
  const Arena arena(experts, {matrix_bytes(format, kN, kK), kN * int64_t{4}});
  const auto scales = [&](int32_t expert) {
    return reinterpret_cast<float*>(arena.at<std::byte>(expert, 0) +
                                    matrix_scales_offset(format, kN, kK));
  };
  for (int32_t expert = 0; expert < experts; ++expert) {
    for (int32_t i = 0; i < kN; ++i) {
      if (int8) scales(expert)[i] = random.uniform();
      arena.at<float>(expert, 1)[i] = random.normal();
    }
  }
  const auto size = static_cast<size_t>(placed.num_rows) * kN;
  std::vector<std::vector<float>> sums(kRanks);
  std::vector<const float*> parts;
  for (std::vector<float>& part : sums) {
    for (size_t i = 0; i < size; ++i) {
      const auto integer = static_cast<int32_t>(random.below(2000)) - 1000;
      part.push_back(int8 ? std::bit_cast<float>(integer) : random.normal());
    }
    parts.push_back(part.data());
  }
  const test::DeviceBytes bytes(
      activation_bytes(ActivationFormat::kInt8Token, placed.num_rows, kK));
  const Activations x =
      carve_activations(ActivationFormat::kInt8Token, placed.num_rows, kK, bytes.data());
  const std::vector<float> values = random.normals(static_cast<size_t>(placed.num_rows) * kK);
  quantize_activations(test::make_device("scalar", 1)->context(),
                       {.x = values.data(), .x_stride = kK, .out = x});
  const std::vector<float> want = expected(placed, kN, [&](int32_t expert, int32_t row) {
    std::vector<float> out;
    for (int32_t at = 0; at < kN; ++at) {
      const auto part = [&](size_t rank) {
        return std::bit_cast<Sum>(sums[rank][static_cast<size_t>(row * kN + at)]);
      };
      auto y = static_cast<float>((part(0) + part(1)) + (part(2) + part(3)));
      if (int8) y = y * *activation_group(x, row, 0).scale * scales(expert)[at];
      out.push_back(y + arena.at<float>(expert, 1)[at]);
    }
    return out;
  });
  const PackedWeight weight{.format = format, .n = kN, .k = kK, .data = arena.at<std::byte>(0, 0)};
  const cuda::ExpertMatrices matrices{.rows = placed.experts(), .stride = arena.stride()};
  test::on_schedules([&] {
    std::vector<float> out(want.size(), kPoison);
    cuda::launch_join_parts(nullptr,
                            {.parts = parts,
                             .weight = &weight,
                             .x = x,
                             .bias = arena.at<float>(0, 1),
                             .out = out.data(),
                             .out_stride = kN},
                            &matrices);
    test::expect_same_floats(out, want);
  });
}

TEST(CudaExpertParts, JoinWithWhatIsTheirExperts) {
  for (const std::vector<int32_t>& counts : {std::vector<int32_t>{3, 0, 11}, {1, 9}}) {
    check_join<int32_t>(WeightFormat::kInt8Channel, counts);
    check_join<float>(WeightFormat::kBF16, counts);
  }
}

class CudaExpertFormats : public ::testing::TestWithParam<WeightFormat> {
 protected:
  static constexpr int32_t kK = 512;  // two groups a segment

  static ActivationFormat usual_rows() {
    return layout_of(GetParam()).is_integer() ? ActivationFormat::kInt8 : ActivationFormat::kFloat;
  }

  static void check(ActivationFormat activations, const std::vector<int32_t>& counts, int32_t n) {
    const WeightFormat format = GetParam();
    const bool in_blocks = layout_of(format).is_integer();
    const auto cpu = test::make_device("scalar", 1);
    Placed placed = place(counts);
    const auto experts = static_cast<int32_t>(counts.size());
    const int64_t bytes = in_blocks ? packed_bytes(format, n, kK) : matrix_bytes(format, n, kK);
    const Arena arena(experts, {bytes, n * int64_t{4}});
    Random random(103);
    std::mt19937 rng(104);
    std::vector<testing::TestWeight> weights;
    for (int32_t expert = 0; expert < experts; ++expert) {
      weights.push_back(testing::make_weight(format, n, kK, testing::Values::kOrdinary, rng));
      if (in_blocks) {
        std::copy_n(weights.back().view.data, bytes, arena.at<std::byte>(expert, 0));
      } else {
        copy_matrix_rows(
            format, weights.back().checkpoint.data(), kK, 0, n, arena.at<std::byte>(expert, 0));
      }
      std::ranges::copy(random.normals(static_cast<size_t>(n)), arena.at<float>(expert, 1));
    }
    const std::vector<float> values = random.normals(static_cast<size_t>(placed.num_rows) * kK);
    const auto quantize = [&](int32_t row, int32_t rows, const test::DeviceBytes& to) {
      const Activations x = carve_activations(activations, rows, kK, to.data());
      quantize_activations(cpu->context(),
                           {.x = values.data() + int64_t{row} * kK, .x_stride = kK, .out = x});
      return x;
    };
    const std::vector<float> want = expected(placed, n, [&](int32_t expert, int32_t row) {
      const test::DeviceBytes memory(activation_bytes(activations, 1, kK));
      std::vector<float> out(static_cast<size_t>(n));
      const RowGroup group{.weight = &weights[static_cast<size_t>(expert)].view,
                           .out = out.data(),
                           .out_stride = n,
                           .bias = arena.at<float>(expert, 1)};
      linear(cpu->context(), {.x = quantize(row, 1, memory), .groups = {&group, 1}});
      return out;
    });
    const test::DeviceBytes memory(activation_bytes(activations, placed.num_rows, kK));
    const Activations x = quantize(0, placed.num_rows, memory);
    const PackedWeight first{.format = format, .n = n, .k = kK, .data = arena.at<std::byte>(0, 0)};
    const cuda::ExpertMatrices matrices{.rows = placed.experts(), .stride = arena.stride()};
    test::on_schedules([&] {
      std::vector<float> out(want.size(), kPoison);
      const auto launch = activations == ActivationFormat::kFloat ? cuda::launch_linear_float
                                                                  : cuda::launch_linear_blocks;
      launch(nullptr,
             {.x = x,
              .weight = &first,
              .bias = arena.at<float>(0, 1),
              .out = out.data(),
              .out_stride = n},
             &matrices);
      test::expect_same_floats(out, want);
    });
  }
};

constexpr WeightFormat kExpertFormats[] = {
    WeightFormat::kF32,          WeightFormat::kF16,        WeightFormat::kBF16,
    WeightFormat::kQ4_0,         WeightFormat::kQ4_1,       WeightFormat::kQ5_0,
    WeightFormat::kQ5_1,         WeightFormat::kQ8_0,       WeightFormat::kQ2_K,
    WeightFormat::kQ3_K,         WeightFormat::kQ4_K,       WeightFormat::kQ5_K,
    WeightFormat::kQ6_K,         WeightFormat::kIQ4_NL,     WeightFormat::kIQ4_XS,
    WeightFormat::kMXFP4,        WeightFormat::kNVFP4,      WeightFormat::kInt4Group32,
    WeightFormat::kInt4Group128, WeightFormat::kInt8Group32};
constexpr auto kFormatName = [](const auto& info) { return testing::test_name(info.param); };
INSTANTIATE_TEST_SUITE_P(Formats,
                         CudaExpertFormats,
                         ::testing::ValuesIn(kExpertFormats),
                         kFormatName);

// Few, more and many rows an expert take different tiles; the last one of n is never full.
TEST_P(CudaExpertFormats, RowsHaveTheBitsOfTheCpu) {
  check(usual_rows(), {3, 0, 11, 1}, 52);
  check(usual_rows(), {35, 1, 0}, 24);
  check(usual_rows(), {133, 2}, 20);
}

// The matrices of latent attention's heads, in codes too.
TEST_P(CudaExpertFormats, RowsOfFloatsHaveTheBitsOfTheCpu) {
  if (!layout_of(GetParam()).is_integer()) GTEST_SKIP() << "the test above has its rows of floats";
  if (!cuda::takes_float_rows(GetParam())) GTEST_SKIP() << "takes none";
  check(ActivationFormat::kFloat, {3, 0, 5}, 20);
}

TEST_P(CudaExpertFormats, ExpertsWithoutRowsWriteNothing) { check(usual_rows(), {0, 0, 0, 1}, 20); }

}  // namespace
}  // namespace sluice::kernels
