// SPDX-License-Identifier: Apache-2.0
#include "kernels/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

// Compares with the CPU's ids and weights; rows have `num_experts` logits.
void check_route(const std::vector<float>& logits,
                 int32_t num_experts,
                 int32_t top_k,
                 const Router& router,
                 const std::vector<float>& choice_bias = {}) {
  const auto num_rows = static_cast<int32_t>(logits.size()) / num_experts;
  const auto size = static_cast<size_t>(num_rows) * static_cast<size_t>(top_k);
  std::vector<int32_t> want_ids(size);
  std::vector<float> want_weights(size);
  MoeRouteArgs args{.logits = logits.data(),
                    .num_rows = num_rows,
                    .num_experts = num_experts,
                    .top_k = top_k,
                    .router = router,
                    .choice_bias = choice_bias.empty() ? nullptr : choice_bias.data(),
                    .ids = want_ids.data(),
                    .weights = want_weights.data()};
  moe_route(test::make_device("scalar", 1)->context(), args);
  test::on_schedules([&] {
    std::vector<int32_t> ids(size, -1);
    std::vector<float> weights(size, -1.0F);
    args.ids = ids.data();
    args.weights = weights.data();
    cuda::launch_moe_route(nullptr, args);
    ASSERT_EQ(ids, want_ids);
    test::expect_same_floats(weights, want_weights);
  });
}

TEST(CudaMoe, RoutesLikeTheCpu) {
  for (const int32_t num_experts : {1, 5, 32, 37, 128, 1024}) {
    for (const bool normalize : {false, true}) {
      SCOPED_TRACE(num_experts);
      const std::vector<float> logits = Random(91).normals(static_cast<size_t>(3 * num_experts), 3);
      check_route(logits, num_experts, std::min(num_experts, 4), {.normalize = normalize});
    }
  }
  check_route(Random(92).normals(70), 70, 70, {});  // all, and more than a lane's word of bits
}

TEST(CudaMoe, RoutesByScoresAndGroupsLikeTheCpu) {
  for (const int32_t num_experts : {2, 36, 128, 1024}) {
    for (const RouterScore score : {RouterScore::kSigmoid, RouterScore::kSoftmax}) {
      SCOPED_TRACE(num_experts);
      const auto size = static_cast<size_t>(num_experts);
      const std::vector<float> logits = Random(94).normals(3 * size, 3);
      const std::vector<float> bias = Random(95).normals(size);
      Router router = {.score = score, .epsilon = 1e-20F, .floor = 1e-12F, .scale = 2.5F};
      check_route(logits, num_experts, 2, router, bias);
      check_route(logits, num_experts, 1, {.score = score, .normalize = false});
      if (num_experts < 8) continue;
      router.num_groups = 4;
      router.groups_kept = 2;
      check_route(logits, num_experts, 8, router, bias);
      router.group_rule = GroupRule::kBest;
      check_route(logits, num_experts, 8, router, bias);
    }
  }
  // The first group has the largest value, the last one the largest sum of two.
  check_route({4, -5, -6, 3.7F, 3.6F, -9}, 6, 2, {.num_groups = 2, .groups_kept = 1});
  check_route({4, -5, -6, 3.7F, 3.6F, -9},
              6,
              2,
              {.num_groups = 2, .groups_kept = 1, .group_rule = GroupRule::kBest});
}

TEST(CudaMoe, WeighsOneAfterTheOtherLikeTheCpu) {
  for (const int32_t num_experts : {2, 16, 37, 1024}) {
    SCOPED_TRACE(num_experts);
    const std::vector<float> logits = Random(96).normals(static_cast<size_t>(3 * num_experts), 3);
    for (const float spread : {0.02F, 0.5F}) {
      check_route(logits,
                  num_experts,
                  2,
                  {.score = RouterScore::kOneByOne,
                   .normalize = false,
                   .scale = 2.5F,
                   .spread = spread});
    }
  }
}

TEST(CudaMoe, EqualLogitsGoToTheLowerIds) {
  check_route({1, 2, 1, 2, 2, 1, 0.0F, -0.0F, -0.0F, 0.0F, 0.0F, -1}, 6, 4, {});
}

TEST(CudaMoe, NansAndInfinitiesChooseTheExpertsOfTheCpu) {
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();
  check_route({nan,
               nan,
               nan,
               nan,  //
               1,
               nan,
               2,
               3,  //
               nan,
               1,
               nan,
               2,  //
               -infinity,
               -infinity,
               1,
               -infinity},
              4,
              3,
              {});
}

TEST(CudaMoe, JoinsTheRowsOfTheExperts) {
  constexpr int32_t kWidth = 530;  // more than one piece of a row
  Random random(93);
  const std::vector<float> y = random.normals(6 * kWidth);
  const std::vector<float> x = random.normals(2 * (kWidth + 2));
  const std::vector<int32_t> rows = {0, 5, 2, 3, 4, 4};
  const std::vector<float> weights = {0.25F, 0.75F, 0.1F, 0.5F, 0.125F, 0.3F};
  MoeCombineArgs args{.y = y.data(),
                      .y_stride = kWidth,
                      .rows = rows.data(),
                      .weights = weights.data(),
                      .num_rows = 2,
                      .top_k = 3,
                      .n = kWidth,
                      .x = nullptr,
                      .x_stride = kWidth + 2};
  std::vector<float> want = x;
  args.x = want.data();
  moe_combine(test::make_device("scalar", 1)->context(), args);
  test::on_schedules([&] {
    std::vector<float> got = x;
    args.x = got.data();
    cuda::launch_moe_combine(nullptr, args);
    test::expect_same_floats(got, want);
  });
}

struct PlacedRows {
  PlacedRows(size_t pairs, int32_t num_experts)
      : rows(pairs, -7),
        first(static_cast<size_t>(num_experts), -7),
        count(static_cast<size_t>(num_experts), -7),
        chosen(static_cast<size_t>(num_experts), -7),
        num_chosen_at(1, -7) {}

  [[nodiscard]] PlaceRowsArgs args(const std::vector<int32_t>& ids) {
    return {.ids = ids.data(),
            .num_pairs = static_cast<int32_t>(ids.size()),
            .rows = rows.data(),
            .experts = {.num_experts = static_cast<int32_t>(first.size()),
                        .first = first.data(),
                        .count = count.data(),
                        .chosen = chosen.data(),
                        .num_chosen = num_chosen_at.data()}};
  }

  bool operator==(const PlacedRows&) const = default;

  std::vector<int32_t> rows;
  std::vector<int32_t> first;
  std::vector<int32_t> count;
  std::vector<int32_t> chosen;
  std::vector<int32_t> num_chosen_at;
};

TEST(CudaMoe, PlacesRowsLikeTheCpu) {
  for (const int32_t num_experts : {1, 5, 33, 600}) {
    // Pairs: none, fewer than warps, one above their shares, shares of more than a warp's lanes.
    for (const size_t pairs : {0, 9, 513, 1100}) {
      SCOPED_TRACE(std::to_string(num_experts) + " experts, " + std::to_string(pairs) + " pairs");
      Random random(94);
      std::vector<int32_t> ids(pairs);
      for (int32_t& id : ids) {
        // Half of the pairs are one expert's, the rest go to any but every third.
        const int32_t any = random.below(num_experts);
        id = random.below(2) == 0 || any % 3 == 1 ? num_experts / 2 : any;
      }
      PlacedRows want(pairs, num_experts);
      place_rows(test::make_device("scalar", 1)->context(), want.args(ids));
      ASSERT_EQ(want.num_chosen_at[0] > 0, pairs > 0);
      test::on_schedules([&] {
        PlacedRows got(pairs, num_experts);
        cuda::launch_place_rows(nullptr, got.args(ids));
        ASSERT_EQ(got, want);
      });
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
