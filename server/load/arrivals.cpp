// SPDX-License-Identifier: Apache-2.0
#include "server/load/arrivals.h"

#include <cmath>

#include "server/load/random.h"

namespace sluice::load {
namespace {

double rate_at(const ArrivalPlan& plan, size_t index) {
  if (plan.ramp == Ramp::kNone) return plan.rate;
  const double progress =
      plan.count > 1 ? static_cast<double>(index) / static_cast<double>(plan.count - 1) : 0;
  if (plan.ramp == Ramp::kLinear) {
    return plan.ramp_start + (plan.ramp_end - plan.ramp_start) * progress;
  }
  return plan.ramp_start * std::pow(plan.ramp_end / plan.ramp_start, progress);
}

}  // namespace

std::vector<double> plan_arrivals(const ArrivalPlan& plan) {
  Random random(plan.seed, /*index=*/0x61727269);
  std::vector<double> arrivals(plan.count);
  double now = 0;
  for (size_t i = 0; i < plan.count; ++i) {
    const double rate = rate_at(plan, i);
    if (std::isinf(rate)) {
      arrivals[i] = 0;
      continue;
    }
    now += std::isinf(plan.burstiness)
               ? 1 / rate
               : random.gamma(plan.burstiness, 1 / (rate * plan.burstiness));
    arrivals[i] = now;
  }
  if (plan.ramp == Ramp::kNone && now > 0) {
    const double scale = static_cast<double>(plan.count) / plan.rate / now;
    for (double& arrival : arrivals) arrival *= scale;
  }
  return arrivals;
}

}  // namespace sluice::load
