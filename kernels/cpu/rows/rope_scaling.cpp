// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope_scaling.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rows/math64.h"

namespace sluice::kernels {
namespace {

constexpr double kLn2 = 0.693147180559945309417;
constexpr double kTwoPi = 6.28318530717958647693;

double natural_log(double x) { return cpu::log2_f64(x) * kLn2; }

// Returns how often pair i turns within `context` positions.
double turns(const RopeParams& params, int32_t i, double context) {
  const double exponent = static_cast<double>(2 * i) / params.rotary_dim;
  const double log2_base = cpu::log2_f64(static_cast<double>(params.freq_base));
  return context * cpu::exp2_f64(-exponent * log2_base) / kTwoPi;
}

// Returns the (fractional) pair that turns `count` times within `context` positions.
double pair_of_turns(const RopeParams& params, double count, double context) {
  return params.rotary_dim * natural_log(context / (count * kTwoPi)) /
         (2 * natural_log(static_cast<double>(params.freq_base)));
}

}  // namespace

std::vector<float> llama3_freq_factors(const RopeParams& params, const Llama3Scaling& scaling) {
  std::vector<float> factors;
  for (int32_t i = 0; i < params.rotary_dim / 2; ++i) {
    const double count = turns(params, i, scaling.original_context);
    const double above = count - scaling.low_freq_factor;
    const double width = scaling.high_freq_factor - scaling.low_freq_factor;
    const double kept = width > 0 ? std::clamp(above / width, 0.0, 1.0) : (above < 0 ? 0 : 1);
    factors.push_back(static_cast<float>(1 / ((1 - kept) / scaling.factor + kept)));
  }
  return factors;
}

std::vector<float> yarn_freq_factors(const RopeParams& params, const YarnScaling& scaling) {
  double low = pair_of_turns(params, scaling.beta_fast, scaling.original_context);
  double high = pair_of_turns(params, scaling.beta_slow, scaling.original_context);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(params.rotary_dim - 1));
  if (low == high) high += 0.001;
  std::vector<float> factors;
  for (int32_t i = 0; i < params.rotary_dim / 2; ++i) {
    const double stretched = std::clamp((i - low) / (high - low), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / (stretched / scaling.factor + (1 - stretched))));
  }
  return factors;
}

float dynamic_freq_base(const RopeParams& params, const DynamicScaling& scaling) {
  if (scaling.served_context <= scaling.trained_context) return params.freq_base;
  const double stretch =
      scaling.factor * scaling.served_context / scaling.trained_context - (scaling.factor - 1);
  return stretched_freq_base(params, stretch);
}

float stretched_freq_base(const RopeParams& params, double stretch) {
  if (params.rotary_dim <= 2) return params.freq_base;
  const double exponent = static_cast<double>(params.rotary_dim) / (params.rotary_dim - 2);
  return static_cast<float>(static_cast<double>(params.freq_base) *
                            cpu::exp2_f64(exponent * cpu::log2_f64(stretch)));
}

float yarn_attention_factor(double factor, double mscale) {
  return factor <= 1 ? 1.0F : static_cast<float>(0.1 * mscale * natural_log(factor) + 1);
}

float longrope_attention_factor(double factor, double original_context) {
  if (factor <= 1) return 1.0F;
  return static_cast<float>(std::sqrt(1 + natural_log(factor) / natural_log(original_context)));
}

}  // namespace sluice::kernels
