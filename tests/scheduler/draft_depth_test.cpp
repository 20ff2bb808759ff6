// SPDX-License-Identifier: Apache-2.0
// How many tokens a draft model is asked for.
#include "scheduler/speculation_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace sluice {
namespace {

constexpr int32_t kMost = 12;

StepShape plain(int64_t num_requests) {
  StepShape shape;
  for (int64_t i = 0; i < num_requests; ++i) shape.add(/*decode=*/true, 200, 1);
  return shape;
}

double step_ms(int64_t rows) { return 2 + 0.4 * static_cast<double>(rows); }

// All step sizes were measured, and drafts are right with one probability at each depth.
class Measured {
 public:
  Measured(double acceptance, double pass_ms, int64_t num_requests, int num_drafts = 3000)
      : num_requests_(num_requests) {
    for (int round = 0; round < 5; ++round) {
      for (int64_t rows = 1; rows <= num_requests * (kMost + 1); ++rows) {
        const StepShape shape = plain(rows);
        cost_.observe(shape, step_ms(rows));
        budget_.observe_step(cost_, {.shape = shape, .plain = shape, .ms = step_ms(rows)});
      }
    }
    for (int i = 0; i < num_drafts; ++i) draft(acceptance, kMost);
    for (int32_t depth = 1; depth <= kMost; ++depth) {
      budget_.observe_passes(static_cast<int32_t>(num_requests), depth, pass_ms * depth);
    }
  }

  SpeculationBudget& budget() { return budget_; }

  void draft(double acceptance, int32_t depth) {
    const std::vector<uint8_t> bins(static_cast<size_t>(depth), 0);
    int32_t right = 0;
    while (right < depth && static_cast<double>(random_() % 1000) < 1000 * acceptance) ++right;
    RequestAcceptance request;
    budget_.observe_draft(DraftSource::kDraftModel, bins, right, request);
  }

  [[nodiscard]] int32_t choose(int32_t most = kMost) const {
    return budget_.draft_depth(cost_, plain(num_requests_), most);
  }

  // Tokens per millisecond at a depth.
  [[nodiscard]] double rate(double acceptance, double pass_ms, int32_t depth) const {
    double tokens = 1;
    double product = 1;
    for (int32_t i = 0; i < depth; ++i) tokens += product *= acceptance;
    return tokens / (step_ms(num_requests_ * (1 + depth)) + pass_ms * depth);
  }

 private:
  int64_t num_requests_;
  CostModel cost_;
  SpeculationBudget budget_{{.max_tokens = kMost}};
  std::mt19937_64 random_{1};
};

TEST(DraftDepth, IsNearlyTheBestOne) {
  for (const int64_t num_requests : {1, 4}) {
    for (const double acceptance : {0.3, 0.6, 0.8, 0.95}) {
      for (const double pass_ms : {0.05, 0.3, 2.0}) {
        const Measured measured(acceptance, pass_ms, num_requests);
        double best = 0;
        for (int32_t depth = 1; depth <= kMost; ++depth) {
          best = std::max(best, measured.rate(acceptance, pass_ms, depth));
        }
        EXPECT_GE(measured.rate(acceptance, pass_ms, measured.choose()), 0.96 * best)
            << num_requests << " requests, " << acceptance << ", " << pass_ms << " ms";
      }
    }
  }
}

TEST(DraftDepth, IsOneWherePassesCostMoreThanTheyGiveAndNeverBeyondWhatIsAskedFor) {
  EXPECT_EQ(Measured(0.5, 3, 1).choose(), 1);
  EXPECT_EQ(Measured(0, 0.1, 1).choose(), 1);
  EXPECT_EQ(Measured(0.99, 0.01, 1).choose(), kMost);
  EXPECT_EQ(Measured(0.99, 0.01, 1).choose(3), 3);
}

// The first call for a request computes its whole prompt.
TEST(DraftDepth, OneLongPassDoesNotCount) {
  Measured measured(0.9, 0.1, 1);
  const int32_t before = measured.choose();
  measured.budget().observe_passes(1, 1, 80);
  EXPECT_EQ(measured.choose(), before);
}

// A depth that is no longer judged, because a shallower one is asked for, is retried.
TEST(DraftDepth, ComesBackWhereDraftsGetBetter) {
  Measured measured(0.1, 0.05, 1, 300);
  EXPECT_EQ(measured.choose(), 1);
  for (int i = 0; i < 4000; ++i) measured.draft(0.95, measured.choose());
  EXPECT_GT(measured.choose(), 4);
  EXPECT_GE(measured.rate(0.95, 0.05, measured.choose()), 0.96 * measured.rate(0.95, 0.05, kMost));
}

// A depth that was never asked for seems as good as the one before it.
TEST(DraftDepth, WhatIsNotKnownIsTried) {
  Measured measured(0, 0.05, 1, 0);
  EXPECT_EQ(measured.choose(), 2);
  for (int i = 0; i < 100; ++i) measured.draft(1, 2);
  EXPECT_EQ(measured.choose(), kMost);
  EXPECT_EQ(SpeculationBudget({.max_tokens = kMost}).draft_depth(CostModel(), {}, kMost), kMost);
}

}  // namespace
}  // namespace sluice
