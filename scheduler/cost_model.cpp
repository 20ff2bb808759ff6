// SPDX-License-Identifier: Apache-2.0
#include "scheduler/cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace sluice {

namespace {

// Terms are scaled to be of order one in a usual step.
constexpr std::array<double, 5> kScale = {1.0, 1.0 / 256, 1.0 / 16, 1.0 / 65536, 1.0 / 65536};
// Prior before any measurement: 1 ms a step, 0.25 ms a prompt token, 0.5 ms a decode.
constexpr std::array<double, 5> kPrior = {1.0, 64.0, 8.0, 0.0, 0.0};
constexpr double kPriorWeight = 0.05;  // relative to one observation
constexpr double kDecay = 0.98;
constexpr double kMaxSlowdown = 4;        // times the prediction: a longer step counts as this long
constexpr uint64_t kNumTrustedSteps = 8;  // the first ones count as measured
constexpr double kMinMs = 1e-3;
constexpr double kStay = 1e-9;  // pull towards the last solution where nothing is observed
constexpr int kNumSweeps = 8;

}  // namespace

CostModel::CostModel() : weights_(kPrior) {
  for (size_t i = 0; i < kNumTerms; ++i) {
    const double unit = std::max(kPrior[i], 1.0);
    moments_[i][i] = kPriorWeight / (unit * unit);
    targets_[i] = moments_[i][i] * kPrior[i];
  }
}

CostModel::Terms CostModel::terms_of(const StepShape& shape) {
  return {kScale[0],
          kScale[1] * static_cast<double>(shape.num_prefill_tokens),
          kScale[2] * static_cast<double>(shape.num_decode_tokens),
          kScale[3] * static_cast<double>(shape.num_prefill_pairs),
          kScale[4] * static_cast<double>(shape.num_decode_pairs)};
}

double CostModel::predict_ms(const StepShape& shape) const {
  const Terms x = terms_of(shape);
  double ms = 0;
  for (size_t i = 0; i < kNumTerms; ++i) ms += weights_[i] * x[i];
  return ms;
}

int32_t CostModel::max_prefill_tokens(const StepShape& shape,
                                      int64_t start,
                                      double target_ms) const {
  const double left = target_ms - predict_ms(shape);
  if (left <= 0) return 0;
  // n tokens cost linear * n + quadratic * n^2 (causal attention over start + n keys).
  const double per_pair = weights_[3] * kScale[3];
  const double linear = weights_[1] * kScale[1] + per_pair * (static_cast<double>(start) + 0.5);
  const double quadratic = per_pair / 2;
  const double denominator = linear + std::sqrt(linear * linear + 4 * quadratic * left);
  constexpr double kMax = 1 << 30;
  if (denominator * kMax <= 2 * left) return static_cast<int32_t>(kMax);
  return static_cast<int32_t>(2 * left / denominator);
}

void CostModel::observe(const StepShape& shape, double measured_ms) {
  if (!(measured_ms > 0)) return;
  const double predicted = predict_ms(shape);
  double ms = std::max(measured_ms, kMinMs);
  if (num_observations_ >= kNumTrustedSteps) {
    ms = std::min(ms, kMaxSlowdown * std::max(predicted, kMinMs));
  }
  ++num_observations_;
  const double unit = std::max({ms, predicted, kMinMs});
  const double weight = 1 / (unit * unit);
  const Terms x = terms_of(shape);
  for (size_t i = 0; i < kNumTerms; ++i) {
    for (size_t j = 0; j < kNumTerms; ++j) {
      moments_[i][j] = kDecay * moments_[i][j] + weight * x[i] * x[j];
    }
    targets_[i] = kDecay * targets_[i] + weight * x[i] * ms;
  }
  solve();
}

void CostModel::solve() {
  for (int sweep = 0; sweep < kNumSweeps; ++sweep) {
    for (size_t i = 0; i < kNumTerms; ++i) {
      double residual = targets_[i] + kStay * weights_[i];
      for (size_t j = 0; j < kNumTerms; ++j) {
        if (j != i) residual -= moments_[i][j] * weights_[j];
      }
      weights_[i] = std::max(0.0, residual / (moments_[i][i] + kStay));
    }
  }
}

}  // namespace sluice
