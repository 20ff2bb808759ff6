// SPDX-License-Identifier: Apache-2.0
// The matrices of experts on CUDA: a row must have the bits that it has alone through its expert.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

constexpr float kPoison = 1234.5F;

// Where the rows of the experts are; each begins a block of 8, and the last is not full.
struct Placed {
  std::vector<int32_t> first;
  std::vector<int32_t> count;
  int32_t num_rows = 0;
};

Placed place(const std::vector<int32_t>& count) {
  Placed placed{.first = {}, .count = count, .num_rows = 0};
  for (const int32_t rows : count) {
    placed.first.push_back(placed.num_rows);
    placed.num_rows += static_cast<int32_t>(align_up(rows, kActivationRows));
  }
  return placed;
}

// What `alone(expert, row)` gives for the rows that experts have, and poison elsewhere.
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

class CudaExperts : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!device_.is_here()) GTEST_SKIP() << "the GPU is another";
  }

 private:
  simt::GivenDevice device_{GetParam()};
};

constexpr auto kName = [](const auto& info) { return "sm_" + std::to_string(info.param); };
INSTANTIATE_TEST_SUITE_P(Devices, CudaExperts, ::testing::Values(80, 90), kName);

struct Case {
  std::vector<int32_t> counts;  // rows, by expert
  int32_t n;
};

// Few rows an expert take tiles of 8 tokens, many take tiles of 64; one expert of each has none and
// one more than a tile. An expert's last block of outputs is not full.
const std::vector<Case> kCases = {{{3, 0, 11, 1}, 136}, {{66, 5, 0}, 24}};

TEST_P(CudaExperts, Int8RowsHaveTheBitsOfTheCpu) {
  constexpr int32_t kK = 272;
  const auto cpu = test::make_device("scalar", 1);
  Random random(101);
  for (const auto& [counts, n] : kCases) {
    SCOPED_TRACE("rows " + std::to_string(counts[0]));
    const Placed placed = place(counts);
    const auto experts = static_cast<int32_t>(counts.size());
    const int32_t outputs = n;
    std::vector<int8_t> codes(static_cast<size_t>(experts * outputs) * kK);
    for (int8_t& code : codes) code = static_cast<int8_t>(random.below(255) - 127);
    std::vector<float> scales(static_cast<size_t>(experts * outputs));
    for (float& scale : scales) scale = random.uniform() * 0.01F;
    const std::vector<float> bias = random.normals(scales.size());
    const std::vector<float> values = random.normals(static_cast<size_t>(placed.num_rows) * kK);
    const test::DeviceBytes bytes(
        activation_bytes(ActivationFormat::kInt8Token, placed.num_rows, kK));
    const Activations x =
        carve_activations(ActivationFormat::kInt8Token, placed.num_rows, kK, bytes.data());
    quantize_activations(cpu->context(), {.x = values.data(), .x_stride = kK, .out = x});
    const std::vector<float> want = expected(placed, outputs, [&](int32_t expert, int32_t row) {
      const auto first = static_cast<size_t>(expert * outputs);
      std::vector<float> out;
      for (size_t at = first; at < first + static_cast<size_t>(outputs); ++at) {
        int32_t sum = 0;
        for (int32_t k = 0; k < kK; ++k) {
          const auto group = activation_group(x, row, k / kQuantGroup);
          sum += codes[at * kK + static_cast<size_t>(k)] *
                 static_cast<const int8_t*>(group.codes)[k % kQuantGroup];
        }
        const float scaled = static_cast<float>(sum) * *activation_group(x, row, 0).scale;
        out.push_back(scaled * scales[at] + bias[at]);
      }
      return out;
    });
    test::on_schedules([&] {
      std::vector<float> out(want.size(), kPoison);
      cuda::launch_experts_int8(
          nullptr,
          {.x = x,
           .weight = codes.data(),
           .weight_stride = kK,
           .weight_scale = scales.data(),
           .n = outputs,
           .bias = bias.data(),
           .out = out.data(),
           .out_stride = outputs},
          {.first = placed.first.data(), .count = placed.count.data(), .num_experts = experts});
      test::expect_same_floats(out, want);
    });
  }
}

TEST_P(CudaExperts, Bf16RowsHaveTheBitsTheyHaveAlone) {
  constexpr int32_t kK = 232;  // 4 chunks, the last not full, over 8 segments
  Random random(102);
  const auto matrix = [&](int64_t rows) {
    std::vector<uint16_t> codes;
    for (int64_t i = 0; i < rows * kK; ++i) {
      codes.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(random.normal()) >> 16));
    }
    return codes;
  };
  for (const auto& [counts, n] : kCases) {
    SCOPED_TRACE("rows " + std::to_string(counts[0]));
    const Placed placed = place(counts);
    const auto experts = static_cast<int32_t>(counts.size());
    const int32_t outputs = n;
    const std::vector<uint16_t> weight = matrix(int64_t{experts} * outputs);
    const std::vector<uint16_t> x = matrix(placed.num_rows);
    const std::vector<float> bias = random.normals(static_cast<size_t>(experts * outputs));
    const auto args = [&](std::vector<float>& out) {
      return cuda::LinearBf16Args{.x = x.data(),
                                  .x_stride = kK,
                                  .weight = weight.data(),
                                  .weight_stride = kK,
                                  .num_rows = placed.num_rows,
                                  .n = outputs,
                                  .k = kK,
                                  .bias = bias.data(),
                                  .out = out.data(),
                                  .out_stride = outputs};
    };
    std::vector<float> want;
    {
      const simt::Run schedule(3);
      want = expected(placed, outputs, [&](int32_t expert, int32_t row) {
        std::vector<float> out(static_cast<size_t>(outputs));
        cuda::LinearBf16Args alone = args(out);
        alone.x += int64_t{row} * kK;
        alone.weight += int64_t{expert} * outputs * kK;
        alone.bias += int64_t{expert} * outputs;
        alone.num_rows = 1;
        cuda::launch_linear_bf16(nullptr, alone);
        return out;
      });
    }
    test::on_schedules([&] {
      std::vector<float> out(want.size(), kPoison);
      cuda::launch_experts_bf16(
          nullptr,
          args(out),
          {.first = placed.first.data(), .count = placed.count.data(), .num_experts = experts});
      test::expect_same_floats(out, want);
    });
  }
}

}  // namespace
}  // namespace sluice::kernels
