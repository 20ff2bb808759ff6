// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

constexpr TokenId kPoison = 12345;

// The rows' results, on the CPU and under the shim. Rows that choose start with a token of poison.
void check(std::vector<SampleRow> rows, int32_t vocab_size) {
  for (SampleRow& row : rows) {
    if (row.choose) row.token = kPoison;
    row.logprob = -123;
  }
  std::vector<SampleRow> want = rows;
  std::vector<std::byte> workspace(static_cast<size_t>(sampling_workspace_bytes(vocab_size, 1)));
  sample(test::make_device("scalar", 1)->context(),
         {.rows = want, .vocab_size = vocab_size, .workspace = workspace});
  test::on_schedules([&] {
    std::vector<SampleRow> got = rows;
    cuda::launch_sample(nullptr, {.rows = got, .vocab_size = vocab_size, .workspace = {}});
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE("row " + std::to_string(i));
      ASSERT_TRUE(cuda::can_sample(rows[i], vocab_size));
      ASSERT_EQ(got[i].token, want[i].token);
      ASSERT_EQ(got[i].finite, want[i].finite);
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i].logprob), std::bit_cast<uint32_t>(want[i].logprob));
    }
  });
}

TEST(CudaSampling, ChoosesTheTokensOfTheCpu) {
  Random random(81);
  for (const int32_t n : {1, 15, 64, 333, 5000}) {
    SCOPED_TRACE(n);
    const std::vector<float> logits = random.normals(static_cast<size_t>(n), 4);
    std::vector<uint32_t> mask(static_cast<size_t>(ceil_div(n, 32)));
    for (uint32_t& word : mask) word = random.bits();
    mask[0] |= 3;
    if (n > 1) {  // the likeliest may not be chosen, and still counts for log-probabilities
      const auto best = static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
      mask[best / 32] &= ~(1U << best % 32);
    }
    std::vector<SampleRow> rows;
    for (const float temperature : {0.0F, 0.3F, 1.0F, 30.0F}) {
      for (const bool masked : {false, true}) {
        rows.push_back({.logits = logits.data(),
                        .allowed_mask = masked ? mask.data() : nullptr,
                        .temperature = temperature,
                        .seed = uint64_t{random.bits()} << 32 | random.bits(),
                        .position = int64_t{random.bits()} << 8,
                        .num_logprobs = masked ? 0 : -1});
      }
    }
    check(rows, n);
  }
}

TEST(CudaSampling, NoiseOfManyPositionsPicksTheSameTokens) {
  constexpr int32_t kVocab = 130;
  const std::vector<float> logits = Random(82).normals(kVocab, 0.5F);
  std::vector<SampleRow> rows;
  for (int64_t position = 0; position < 60; ++position) {
    rows.push_back({.logits = logits.data(), .seed = 9, .position = position});
  }
  check(rows, kVocab);
}

TEST(CudaSampling, TheLowestIdWinsAmongEqualsAndZerosAreEqual) {
  constexpr int32_t kVocab = 700;
  std::vector<float> logits(kVocab, -1.0F);
  logits[299] = -0.0F;
  logits[300] = 0.0F;
  logits[650] = 0.0F;
  const std::vector<float> flat(kVocab, -3.0F);
  check({{.logits = logits.data(), .temperature = 0},
         {.logits = flat.data(), .temperature = 0, .num_logprobs = 0},
         {.logits = flat.data(), .seed = 5},
         {.logits = flat.data(), .temperature = 0.7F, .top_k = 1}},
        kVocab);
}

TEST(CudaSampling, ScoresAGivenToken) {
  constexpr int32_t kVocab = 2100;  // more than one tile of the sum
  const std::vector<float> logits = Random(83).normals(kVocab, 3);
  check({{.logits = logits.data(), .num_logprobs = 0, .choose = false, .token = 2099},
         {.logits = logits.data(), .choose = false, .token = 0}},
        kVocab);
}

TEST(CudaSampling, ALogitThatIsNotFiniteIsReported) {
  constexpr int32_t kVocab = 300;
  std::vector<float> nan(kVocab, 1.0F);
  nan[257] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> infinite(kVocab, 1.0F);
  infinite[3] = -std::numeric_limits<float>::infinity();
  check({{.logits = nan.data()},
         {.logits = infinite.data(), .temperature = 0, .num_logprobs = 0},
         {.logits = nan.data(), .num_logprobs = 0, .choose = false, .token = 4}},
        kVocab);
}

TEST(CudaSampling, ARowWithAFilterGetsNoToken) {
  constexpr int32_t kVocab = 40;
  const std::vector<float> logits = Random(84).normals(kVocab);
  const std::vector<SampleRow> rows = {{.logits = logits.data(), .top_p = 0.9F},
                                       {.logits = logits.data(), .min_p = 0.1F},
                                       {.logits = logits.data(), .top_k = 2},
                                       {.logits = logits.data(), .num_logprobs = 3}};
  test::on_schedules([&] {
    std::vector<SampleRow> got = rows;
    for (SampleRow& row : got) row.token = kPoison;
    cuda::launch_sample(nullptr, {.rows = got, .vocab_size = kVocab, .workspace = {}});
    for (const SampleRow& row : got) {
      ASSERT_FALSE(cuda::can_sample(row, kVocab));
      ASSERT_EQ(row.token, kInvalidToken);
      ASSERT_TRUE(row.finite);
    }
  });
}

}  // namespace
}  // namespace sluice::kernels
