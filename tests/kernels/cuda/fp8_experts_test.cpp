// SPDX-License-Identifier: Apache-2.0
// FP8 matrices of experts, and embeddings, on CUDA: a row has the bits that it has alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/fp8_reference.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"
#include "tests/support/plain_matrix.h"

namespace sluice::kernels {
namespace {

using test::Fp8Weight;
using test::Random;

constexpr float kPoison = 1234.5F;

// Three experts' codes, scales and biases, one expert after the other like in the engine's memory.
struct Fp8Experts {
  Fp8Experts(ActivationFormat format, int32_t outputs, int32_t columns, uint64_t seed)
      : n(outputs), k(columns), blocks(format == ActivationFormat::kE4M3Group ? 0 : 1) {
    if (blocks == 0) blocks = ceil_div(k, 128);
    row_stride = align_up(int64_t{k}, int64_t{16});
    scales_at = n * row_stride;
    bias_at = scales_at + n * blocks * int64_t{sizeof(float)};
    stride = align_up(bias_at + n * int64_t{sizeof(float)}, 64);
    bytes = std::make_unique<test::DeviceBytes>(kCount * stride);
    Random random(seed);
    for (int32_t expert = 0; expert < kCount; ++expert) {
      std::byte* const own = bytes->data() + expert * stride;
      for (int64_t i = 0; i < scales_at; ++i) own[i] = std::byte{random_e4m3(random)};
      const std::vector<float> of_codes = random_scales(random, n * blocks);
      std::ranges::copy(of_codes, reinterpret_cast<float*>(own + scales_at));
      const std::vector<float> bias = random.normals(static_cast<size_t>(n));
      std::ranges::copy(bias, reinterpret_cast<float*>(own + bias_at));
    }
  }

  [[nodiscard]] Fp8Weight weight(int32_t expert) const {
    const std::byte* const own = bytes->data() + expert * stride;
    return {.codes = reinterpret_cast<const uint8_t*>(own),
            .stride = row_stride,
            .scales = reinterpret_cast<const float*>(own + scales_at),
            .blocks = blocks,
            .k = k};
  }

  [[nodiscard]] const float* bias(int32_t expert) const {
    return reinterpret_cast<const float*>(bytes->data() + expert * stride + bias_at);
  }

  static constexpr int32_t kCount = 3;
  int32_t n;
  int32_t k;
  int64_t blocks;
  int64_t row_stride = 0;
  int64_t scales_at = 0;
  int64_t bias_at = 0;
  int64_t stride = 0;
  std::unique_ptr<test::DeviceBytes> bytes;
};

class CudaExpertsFp8 : public ::testing::TestWithParam<ActivationFormat> {
 protected:
  void SetUp() override {
    if (!device_.is_here()) GTEST_SKIP() << "the GPU is another";
  }

 private:
  simt::GivenDevice device_{90};
};

constexpr auto kName = [](const auto& info) {
  return info.param == ActivationFormat::kE4M3Token ? "Token" : "Group";
};
INSTANTIATE_TEST_SUITE_P(Scales,
                         CudaExpertsFp8,
                         ::testing::Values(ActivationFormat::kE4M3Token,
                                           ActivationFormat::kE4M3Group),
                         kName);

// Few rows an expert take tiles of 8 tokens, many take tiles of 32; in each case one expert has
// none and one has more than a tile. An expert's last block of outputs is not full.
TEST_P(CudaExpertsFp8, ARowHasTheBitsThatItHasAlone) {
  struct Case {
    std::vector<int32_t> counts;
    int32_t n;
    int32_t k;
    Segments segments;
  };

  const std::vector<Case> cases = {{{3, 0, 11}, 136, 1416, {}},
                                   {{35, 5, 0}, 24, 264, {}},
                                   {{2, 0, 9}, 40, 1024, {4, 4}},
                                   {{0, 40, 1}, 24, 1024, {2, 2}}};
  for (const auto& [counts, n, k, segments] : cases) {
    SCOPED_TRACE("k " + std::to_string(k) + ", rows " + std::to_string(counts[0]));
    const Fp8Experts matrices(GetParam(), n, k, 401);
    std::vector<int32_t> first;
    std::vector<int32_t> count = counts;
    std::vector<int32_t> chosen;
    int32_t rows = 0;
    for (const int32_t own : counts) {
      if (own > 0) chosen.push_back(static_cast<int32_t>(first.size()));
      first.push_back(rows);
      rows += static_cast<int32_t>(align_up(own, kActivationRows));
    }
    std::vector<int32_t> num_chosen = {static_cast<int32_t>(chosen.size())};
    chosen.resize(counts.size(), 1 << 20);  // never read
    const auto columns = static_cast<int32_t>(segments.num_columns(k));
    const test::DeviceBytes bytes(activation_bytes(GetParam(), rows, columns));
    const Activations x = carve_activations(GetParam(), rows, columns, bytes.data());
    Random random(402);
    fill_e4m3(random, x);
    std::vector<float> want(static_cast<size_t>(rows) * static_cast<size_t>(n), kPoison);
    for (int32_t expert = 0; expert < Fp8Experts::kCount; ++expert) {
      const auto at = static_cast<size_t>(expert);
      for (int32_t row = first[at]; row < first[at] + counts[at]; ++row) {
        for (int32_t output = 0; output < n; ++output) {
          float y = fp8_value(matrices.weight(expert), x, row, output, segments);
          if (segments.are_all()) y += matrices.bias(expert)[output];
          want[static_cast<size_t>(row * n + output)] = y;
        }
      }
    }
    const Fp8Weight weight = matrices.weight(0);
    test::on_schedules(
        [&] {
          std::vector<float> out(want.size(), kPoison);
          cuda::launch_experts_fp8(nullptr,
                                   {.x = x,
                                    .weight = weight.codes,
                                    .weight_stride = weight.stride,
                                    .weight_scale = weight.scales,
                                    .weight_scale_stride = weight.blocks,
                                    .n = n,
                                    .k = k,
                                    .bias = segments.are_all() ? matrices.bias(0) : nullptr,
                                    .out = out.data(),
                                    .out_stride = n,
                                    .segments = segments},
                                   {.rows = {.num_experts = Fp8Experts::kCount,
                                             .first = first.data(),
                                             .count = count.data(),
                                             .chosen = chosen.data(),
                                             .num_chosen = num_chosen.data()},
                                    .stride = matrices.stride});
          test::expect_same_floats(out, want);
        },
        test::Seeds::kOne);
  }
}

// The table is in rows; the CPU has tiles.
TEST(CudaFp8Embedding, HasTheBitsOfTheCpu) {
  constexpr int32_t kRows = 51;
  constexpr int32_t kK = 264;
  for (const WeightFormat format : {WeightFormat::kE4M3Channel, WeightFormat::kE4M3Block}) {
    std::mt19937 rng(403);
    const auto matrix =
        sluice::test::PlainMatrix::of(format, kRows, kK, sluice::test::PlainValues::kOrdinary, rng);
    const testing::AlignedBuffer tiles(packed_bytes(format, kRows, kK));
    matrix.pack(format, tiles.data());
    const test::DeviceBytes rows(matrix_bytes(format, kRows, kK));
    const PlainRows plain = matrix.rows(0, kRows);
    for (int32_t row = 0; row < kRows; ++row) {
      std::memcpy(
          rows.data() + row * matrix_row_stride(format, kK), plain.codes + int64_t{row} * kK, kK);
    }
    std::copy_n(plain.scales,
                kRows * matrix_row_scales(format, kK),
                reinterpret_cast<float*>(rows.data() + matrix_scales_offset(format, kRows, kK)));
    PackedWeight table{.format = format, .n = kRows, .k = kK, .data = tiles.data()};
    const std::vector<TokenId> ids = {0, 17, 50, 17, 5};
    std::vector<float> want(ids.size() * 270, -1);
    EmbeddingArgs args{.table = &table, .token_ids = ids, .out = want.data(), .out_stride = 270};
    embedding(test::make_device("scalar", 1)->context(), args);
    table.data = rows.data();
    test::on_schedules([&] {
      std::vector<float> out(want.size(), -1);
      args.out = out.data();
      cuda::launch_embedding(nullptr, args);
      test::expect_same_floats(out, want);
    });
  }
}

}  // namespace
}  // namespace sluice::kernels
