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
             const Router& router,
             const std::vector<float>& choice_bias = {}) {
  const auto num_rows = static_cast<int32_t>(logits.size()) / num_experts;
  Routed out{std::vector<int32_t>(static_cast<size_t>(num_rows * top_k)),
             std::vector<float>(static_cast<size_t>(num_rows * top_k))};
  moe_route(ctx,
            {.logits = logits.data(),
             .num_rows = num_rows,
             .num_experts = num_experts,
             .top_k = top_k,
             .router = router,
             .choice_bias = choice_bias.empty() ? nullptr : choice_bias.data(),
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
        const Routed got =
            route(device.device->context(), logits, num_experts, top_k, {.normalize = normalize});
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
    const Routed ties = route(device.device->context(), {1, 2, 1, 2, 2, 1}, 6, 4, {});
    EXPECT_EQ(ties.ids, (std::vector<int32_t>{0, 1, 3, 4})) << device.name;
    const float nan = std::nanf("");
    Routed nans = route(device.device->context(), {nan, nan, nan, nan}, 4, 3, {});
    std::sort(nans.ids.begin(), nans.ids.end());
    EXPECT_EQ(std::unique(nans.ids.begin(), nans.ids.end()), nans.ids.end()) << device.name;
    for (const int32_t id : nans.ids) EXPECT_TRUE(id >= 0 && id < 4);
  }
}

// The choice is the one without scales, and so are the sums that normalize.
TEST(MoeRoute, ExpertsScaleTheirOwnWeights) {
  const std::vector<float> logits = {3, 0.5F, -9, 1.5F, 2.5F};
  const std::vector<float> scales = {0.25F, 100, 100, 100, -4};
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    for (const auto& device : test::devices({1})) {
      const ExecContext& ctx = device.device->context();
      const Routed plain = route(ctx, logits, 5, 2, {.score = score});
      Routed scaled = plain;
      moe_route(ctx,
                {.logits = logits.data(),
                 .num_rows = 1,
                 .num_experts = 5,
                 .top_k = 2,
                 .router = {.score = score},
                 .expert_scales = scales.data(),
                 .ids = scaled.ids.data(),
                 .weights = scaled.weights.data()});
      EXPECT_EQ(scaled.ids, (std::vector<int32_t>{0, 4})) << device.name;
      EXPECT_EQ(scaled.weights[0], plain.weights[0] * 0.25F) << device.name;
      EXPECT_EQ(scaled.weights[1], plain.weights[1] * -4) << device.name;
    }
  }
}

// The scores of a row in fp64.
std::vector<double> scores_of(const float* logits, int32_t num_experts, RouterScore score) {
  std::vector<double> scores;
  double sum = 0;
  for (int32_t e = 0; e < num_experts; ++e) {
    const double power = std::exp(double{logits[e]});
    scores.push_back(score == RouterScore::kSigmoid ? power / (1 + power) : power);
    sum += power;
  }
  if (score == RouterScore::kSoftmax) {
    for (double& each : scores) each /= sum;
  }
  return scores;
}

// The bias decides who is chosen, the score alone what they weigh.
TEST(MoeRoute, ABiasChangesTheChoiceAndNotTheWeights) {
  constexpr int32_t kExperts = 21;
  constexpr int32_t kTop = 3;
  constexpr int32_t kRows = 5;
  const auto logits = Random(43).normals(size_t{kRows} * kExperts, 2);
  const auto bias = Random(44).normals(kExperts, 1);
  for (const RouterScore score : {RouterScore::kSigmoid, RouterScore::kSoftmax}) {
    for (const bool normalize : {false, true}) {
      for (const auto& device : test::devices({1, 2})) {
        const Router router = {
            .score = score, .normalize = normalize, .epsilon = 0.25F, .scale = 2.5F};
        const Routed got = route(device.device->context(), logits, kExperts, kTop, router, bias);
        for (int32_t row = 0; row < kRows; ++row) {
          const std::vector<double> scores =
              scores_of(&logits[size_t(row) * kExperts], kExperts, score);
          std::vector<int32_t> order(kExperts);
          std::iota(order.begin(), order.end(), 0);
          std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            return scores[size_t(a)] + double{bias[size_t(a)]} >
                   scores[size_t(b)] + double{bias[size_t(b)]};
          });
          order.resize(kTop);
          std::sort(order.begin(), order.end());
          double sum = 0;
          for (const int32_t e : order) sum += scores[size_t(e)];
          for (size_t j = 0; j < kTop; ++j) {
            const size_t at = size_t(row) * kTop + j;
            ASSERT_EQ(got.ids[at], order[j]) << device.name;
            const double wanted = scores[size_t(order[j])] / (normalize ? sum + 0.25 : 1) * 2.5;
            ASSERT_NEAR(double{got.weights[at]}, wanted, 1e-6) << device.name;
          }
        }
      }
    }
  }
}

TEST(MoeRoute, GroupsWithTheBestTwoTakePart) {
  // Groups of 3: sums of two best are 1.7, 1.9, 1.3 (in order of logits, as sigmoids keep it).
  const std::vector<float> logits = {3, 0.5F, -9, 1.5F, 1.6F, -9, 4, -5, -6};
  const Router router = {.score = RouterScore::kSigmoid, .num_groups = 3, .groups_kept = 1};
  for (const auto& device : test::devices({1})) {
    const Routed one = route(device.device->context(), logits, 9, 2, router);
    EXPECT_EQ(one.ids, (std::vector<int32_t>{3, 4})) << device.name;  // not 0 and 6, the largest
    Router two = router;
    two.groups_kept = 2;
    const Routed more = route(device.device->context(), logits, 9, 3, two);
    EXPECT_EQ(more.ids, (std::vector<int32_t>{0, 3, 4})) << device.name;
  }
}

// DeepSeek V2's rule: what is second in a group does not count. By the sum of two, the second group
// would take part.
TEST(MoeRoute, GroupsWithTheBestOneTakePart) {
  const std::vector<float> logits = {3, 0.5F, -9, 2.9F, 2.8F, -9, 1, -5, -6};
  const Router router = {.normalize = false,
                         .scale = 2,
                         .num_groups = 3,
                         .groups_kept = 1,
                         .group_rule = GroupRule::kBest};
  for (const auto& device : test::devices({1})) {
    const Routed one = route(device.device->context(), logits, 9, 2, router);
    EXPECT_EQ(one.ids, (std::vector<int32_t>{0, 1})) << device.name;
    const std::vector<double> scores = scores_of(logits.data(), 9, RouterScore::kSoftmax);
    EXPECT_NEAR(double{one.weights[0]}, 2 * scores[0], 1e-6);
    EXPECT_NEAR(double{one.weights[1]}, 2 * scores[1], 1e-6);
  }
}

// Each pick is weighed among those near it that were not picked: 4 and 3.75 are near 4.25, 3 is
// not; then 3.75 is near 4. What is near depends on sizes, of negative logits too.
TEST(MoeRoute, WeighsOneAfterTheOther) {
  const Router router = {
      .score = RouterScore::kOneByOne, .normalize = false, .scale = 2, .spread = 0.125F};
  const std::vector<float> logits = {3, 4.25F, 3.75F, 4, -6};
  const std::vector<float> negative = {-4, -3, -3.25F, -9, -3.5F};
  const auto share = [](std::vector<double> others) {
    double sum = 1;
    for (const double distance : others) sum += std::exp(-distance);
    return 2 / sum;
  };
  std::vector<float> reference;
  for (const auto& device : test::devices({1, 2})) {
    const Routed got = route(device.device->context(), logits, 5, 2, router);
    EXPECT_EQ(got.ids, (std::vector<int32_t>{1, 3})) << device.name;
    EXPECT_NEAR(double{got.weights[0]}, share({0.5, 0.25}), 1e-6) << device.name;
    EXPECT_NEAR(double{got.weights[1]}, share({0.25}), 1e-6) << device.name;
    const Routed below = route(device.device->context(), negative, 5, 2, router);
    EXPECT_EQ(below.ids, (std::vector<int32_t>{1, 2})) << device.name;
    EXPECT_NEAR(double{below.weights[0]}, share({0.25}), 1e-6) << device.name;
    EXPECT_NEAR(double{below.weights[1]}, share({0.25}), 1e-6) << device.name;
    if (reference.empty()) reference = got.weights;
    EXPECT_EQ(got.weights, reference) << device.name;
  }
}

TEST(MoeRoute, ASumNearZeroIsRaisedToTheFloor) {
  const std::vector<float> logits = {-80, -81, -82};
  Router router = {.score = RouterScore::kSigmoid, .floor = 1e-12F};
  for (const auto& device : test::devices({1})) {
    const Routed got = route(device.device->context(), logits, 3, 2, router);
    EXPECT_LT(got.weights[0] + got.weights[1], 1e-20F) << device.name;
    router.floor = 0;
    const Routed plain = route(device.device->context(), logits, 3, 2, router);
    EXPECT_NEAR(plain.weights[0] + plain.weights[1], 1, 1e-6F) << device.name;
    router.floor = 1e-12F;
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
    for (const bool adds : {true, false}) {
      std::vector<float> out = x;
      if (!adds)
        std::fill(out.begin(), out.end(), std::nanf(""));  // what was there does not matter
      moe_combine(device.device->context(),
                  {.y = y.data(),
                   .y_stride = kWidth,
                   .rows = rows.data(),
                   .weights = weights.data(),
                   .num_rows = 2,
                   .top_k = 2,
                   .n = kWidth,
                   .adds = adds,
                   .x = out.data(),
                   .x_stride = kWidth});
      for (size_t token = 0; token < 2; ++token) {
        for (size_t i = 0; i < kWidth; ++i) {
          float wanted = adds ? x[token * kWidth + i] : 0;
          for (size_t j = 2 * token; j < 2 * token + 2; ++j) {
            wanted = std::fma(y[static_cast<size_t>(rows[j]) * kWidth + i], weights[j], wanted);
          }
          ASSERT_EQ(out[token * kWidth + i], wanted) << device.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
