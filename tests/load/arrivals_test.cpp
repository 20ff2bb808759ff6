// SPDX-License-Identifier: Apache-2.0
#include "server/load/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace sluice::load {
namespace {

constexpr size_t kCount = 100'000;
// Critical value of the Kolmogorov-Smirnov statistic at 1%: 1.628 / sqrt(n).
const double kCritical = 1.628 / std::sqrt(static_cast<double>(kCount));

std::vector<double> gaps_of(const std::vector<double>& arrivals) {
  std::vector<double> gaps;
  double last = 0;
  for (const double arrival : arrivals) {
    gaps.push_back(arrival - last);
    last = arrival;
  }
  return gaps;
}

// P(a, x) of the gamma distribution by its power series; x up to about 50.
double gamma_cdf(double shape, double x) {
  if (x <= 0) return 0;
  double term = 1 / shape;
  double sum = term;
  for (int n = 1; n < 2000; ++n) {
    term *= x / (shape + n);
    sum += term;
    if (term < sum * 1e-15) break;
  }
  return std::min(1.0, sum * std::exp(-x + shape * std::log(x) - std::lgamma(shape)));
}

double ks_statistic(std::vector<double> values, double shape, double scale) {
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  double worst = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = gamma_cdf(shape, values[i] / scale);
    worst = std::max(worst, std::abs(expected - static_cast<double>(i) / count));
    worst = std::max(worst, std::abs(expected - static_cast<double>(i + 1) / count));
  }
  return worst;
}

ArrivalPlan plan_of(double rate, double burstiness, uint64_t seed = 7) {
  ArrivalPlan plan;
  plan.count = kCount;
  plan.rate = rate;
  plan.burstiness = burstiness;
  plan.seed = seed;
  return plan;
}

TEST(Arrivals, GapsFollowTheGammaDistributionOfRateAndBurstiness) {
  for (const double burstiness : {0.25, 0.5, 1.0, 2.0, 8.0}) {
    const double rate = 40;
    const auto gaps = gaps_of(plan_arrivals(plan_of(rate, burstiness)));
    EXPECT_LT(ks_statistic(gaps, burstiness, 1 / (rate * burstiness)), kCritical)
        << "burstiness " << burstiness;
  }
}

TEST(Arrivals, TheTestSeesAWrongDistribution) {
  const auto gaps = gaps_of(plan_arrivals(plan_of(40, 1.1)));
  EXPECT_GT(ks_statistic(gaps, 1, 1.0 / 40), kCritical);
}

TEST(Arrivals, PoissonGapsAreIndependentOfTheOneBefore) {
  const auto gaps = gaps_of(plan_arrivals(plan_of(1, 1)));
  double covariance = 0;
  for (size_t i = 1; i < gaps.size(); ++i) covariance += (gaps[i] - 1) * (gaps[i - 1] - 1);
  EXPECT_LT(std::abs(covariance / static_cast<double>(kCount)), 4 / std::sqrt(1.0 * kCount));
}

TEST(Arrivals, TheLastOneIsAtCountDividedByRate) {
  for (const uint64_t seed : {0, 1, 2}) {
    EXPECT_NEAR(plan_arrivals(plan_of(25, 0.5, seed)).back(), kCount / 25.0, 1e-6);
  }
}

TEST(Arrivals, ASeedFixesThemAndAnotherChangesThem) {
  EXPECT_EQ(plan_arrivals(plan_of(5, 1, 3)), plan_arrivals(plan_of(5, 1, 3)));
  EXPECT_NE(plan_arrivals(plan_of(5, 1, 3)), plan_arrivals(plan_of(5, 1, 4)));
}

TEST(Arrivals, InfiniteRateStartsAllAtOnceAndInfiniteBurstinessKeepsTime) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(plan_arrivals(plan_of(inf, 1)), std::vector<double>(kCount, 0.0));
  const auto even = plan_arrivals(plan_of(10, inf));
  for (size_t i = 1; i < 100; ++i) EXPECT_NEAR(even[i] - even[i - 1], 0.1, 1e-9);
}

TEST(Arrivals, ARampEndsAtItsEndRate) {
  for (const Ramp ramp : {Ramp::kLinear, Ramp::kExponential}) {
    ArrivalPlan plan = plan_of(1, 1);
    plan.ramp = ramp;
    plan.ramp_start = 10;
    plan.ramp_end = 1000;
    const auto arrivals = plan_arrivals(plan);
    const auto rate_of = [&](size_t first, size_t count) {
      return static_cast<double>(count) / (arrivals[first + count] - arrivals[first]);
    };
    EXPECT_NEAR(rate_of(0, 1000), ramp == Ramp::kLinear ? 14.9 : 10.2, 1.5);
    EXPECT_NEAR(rate_of(kCount - 2001, 2000), 985, 80);
    EXPECT_NEAR(rate_of(kCount / 2 - 500, 1000), ramp == Ramp::kLinear ? 505 : 100, 50);
  }
}

}  // namespace
}  // namespace sluice::load
