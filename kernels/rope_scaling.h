// SPDX-License-Identifier: Apache-2.0
// The published ways to stretch rotary positions past the trained context, as divisors of each
// pair's frequency (RopeParams::freq_factors). Computed in double by fixed polynomials
// (kernels/cpu/rows/math64.h) and rounded once, so that every machine has the same factors.
#pragma once

#include <vector>

#include "kernels/rope.h"

namespace sluice::kernels {

// The divisor by which GGUF files mark pairs that do not turn: their frequency is 0.
inline constexpr float kUnturnedFactor = 1e30F;

// Llama 3.1: wavelengths longer than original_context / low_freq_factor are divided by `factor`,
// those shorter than original_context / high_freq_factor are kept, those between blend linearly.
// The two may be equal, as in Llama 4 Scout.
struct Llama3Scaling {
  double factor;
  double low_freq_factor;
  double high_freq_factor;
  double original_context;
};

std::vector<float> llama3_freq_factors(const RopeParams& params, const Llama3Scaling& scaling);

// YaRN (arXiv 2309.00071): pairs that turn more than beta_fast times within the original context
// are kept, pairs that turn less than beta_slow times are divided by `factor`, and a linear ramp
// over the pair's index joins the two; `truncate` rounds the ramp's ends outwards.
struct YarnScaling {
  double factor;
  double beta_fast = 32;
  double beta_slow = 1;
  double original_context;
  bool truncate = true;
};

std::vector<float> yarn_freq_factors(const RopeParams& params, const YarnScaling& scaling);

// NTK-aware scaling of the base for a context longer than the trained one: the base times
// (factor * served / trained - (factor - 1))^(d / (d - 2)), d = rotary_dim. Hugging Face calls it
// dynamic; here the context is fixed at load: a key's rotation depends on its position alone.
struct DynamicScaling {
  double factor;
  double trained_context;
  double served_context;
};

float dynamic_freq_base(const RopeParams& params, const DynamicScaling& scaling);

// The base times stretch^(d / (d - 2)); the base where d is 2.
float stretched_freq_base(const RopeParams& params, double stretch);

// 0.1 * mscale * ln(factor) + 1; 1 where factor <= 1.
float yarn_attention_factor(double factor, double mscale);
// sqrt(1 + ln(factor) / ln(original_context)); 1 where factor <= 1. LongRoPE (arXiv 2402.13753).
float longrope_attention_factor(double factor, double original_context);

}  // namespace sluice::kernels
