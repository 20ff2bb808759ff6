// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(const ExecContext& ctx,
             const std::vector<float>& logits,
             int32_t num_experts,
             int32_t top_k,
             bool normalize) {
  const auto num_rows = static_cast<int32_t>(logits.size()) / num_experts;
  Routed out{std::vector<int32_t>(static_cast<size_t>(num_rows * top_k)),
             std::vector<float>(static_cast<size_t>(num_rows * top_k))};
  moe_route(ctx,
            {.logits = logits.data(),
             .num_rows = num_rows,
             .num_experts = num_experts,
             .top_k = top_k,
             .normalize = normalize,
             .ids = out.ids.data(),
             .weights = out.weights.data()});
  return out;
}

TEST(MoeRoute, ChoosesTheLargestAndWeighsThemLikeSoftmax) {
  constexpr int32_t kRows = 9;
  for (const int32_t num_experts : {1, 5, 16, 37, 128}) {
    for (const bool normalize : {false, true}) {
      const int32_t top_k = std::min(num_experts, 4);
      Random random(41);
      const auto logits = random.normals(static_cast<size_t>(kRows * num_experts), 3);
      Routed reference;
      for (const auto& device : test::devices({1, 2})) {
        const Routed got = route(device.device->context(), logits, num_experts, top_k, normalize);
        if (reference.ids.empty()) reference = got;
        EXPECT_EQ(got.ids, reference.ids) << device.name;
        EXPECT_EQ(
            std::memcmp(
                got.weights.data(), reference.weights.data(), got.weights.size() * sizeof(float)),
            0)
            << device.name;
        for (int32_t row = 0; row < kRows; ++row) {
          const float* l = logits.data() + row * num_experts;
          std::vector<int32_t> order(static_cast<size_t>(num_experts));
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(
              order.begin(), order.end(), [l](int32_t a, int32_t b) { return l[a] > l[b]; });
          order.resize(static_cast<size_t>(top_k));
          std::sort(order.begin(), order.end());
          double sum = 0;
          for (int32_t e = 0; e < num_experts; ++e) {
            const bool chosen = std::binary_search(order.begin(), order.end(), e);
            if (chosen || !normalize) sum += std::exp(static_cast<double>(l[e]));
          }
          for (int32_t j = 0; j < top_k; ++j) {
            const auto at = static_cast<size_t>(row * top_k + j);
            ASSERT_EQ(got.ids[at], order[static_cast<size_t>(j)]) << device.name;
            const double wanted = std::exp(static_cast<double>(l[got.ids[at]])) / sum;
            ASSERT_NEAR(static_cast<double>(got.weights[at]), wanted, 1e-6) << device.name;
          }
        }
      }
    }
  }
}

TEST(MoeRoute, EqualLogitsGoToTheLowerIdsAndNansChooseDifferentExperts) {
  for (const auto& device : test::devices({1})) {
    const Routed ties = route(device.device->context(), {1, 2, 1, 2, 2, 1}, 6, 4, true);
    EXPECT_EQ(ties.ids, (std::vector<int32_t>{0, 1, 3, 4})) << device.name;
    const float nan = std::nanf("");
    Routed nans = route(device.device->context(), {nan, nan, nan, nan}, 4, 3, true);
    std::sort(nans.ids.begin(), nans.ids.end());
    EXPECT_EQ(std::unique(nans.ids.begin(), nans.ids.end()), nans.ids.end()) << device.name;
    for (const int32_t id : nans.ids) EXPECT_TRUE(id >= 0 && id < 4);
  }
}

TEST(MoeCombine, AddsWeightedRowsInOrderOfChoice) {
  constexpr int32_t kWidth = 21;
  Random random(42);
  const std::vector<float> y = random.normals(6 * kWidth);
  const std::vector<float> x = random.normals(2 * kWidth);
  const std::vector<int32_t> rows = {0, 5, 3, 4};
  const std::vector<float> weights = {0.25F, 0.75F, 0.5F, 0.125F};
  for (const auto& device : test::devices({1, 2})) {
    std::vector<float> out = x;
    moe_combine(device.device->context(),
                {.y = y.data(),
                 .y_stride = kWidth,
                 .rows = rows.data(),
                 .weights = weights.data(),
                 .num_rows = 2,
                 .top_k = 2,
                 .n = kWidth,
                 .scale = 0.5F,
                 .x = out.data(),
                 .x_stride = kWidth});
    for (size_t token = 0; token < 2; ++token) {
      for (size_t i = 0; i < kWidth; ++i) {
        float wanted = x[token * kWidth + i];
        for (size_t j = 2 * token; j < 2 * token + 2; ++j) {
          wanted =
              std::fma(y[static_cast<size_t>(rows[j]) * kWidth + i], 0.5F * weights[j], wanted);
        }
        ASSERT_EQ(out[token * kWidth + i], wanted) << device.name;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
