// SPDX-License-Identifier: Apache-2.0
#include "engine/models/rope_tables.h"

#include <algorithm>
#include <string>

#include "engine/weights/weight_store.h"
#include "kernels/rope_scaling.h"

namespace sluice {
namespace {

Expected<void> check_factors(const std::string& name, const std::vector<float>& factors) {
  for (const float factor : factors) {
    if ((factor >= 0.01F && factor <= 1e5F) || factor == kernels::kUnturnedFactor) continue;
    return make_error(ErrorCode::kDataLoss,
                      "rotary factors " + name + ": found " + std::to_string(factor) +
                          ", expected 0.01 to 100000, or 1e30 for none");
  }
  return {};
}

}  // namespace

Expected<void> take_rope_factors(WeightStore& weights, ModelConfig& config) {
  if (weights.has("rope_freqs.weight")) {
    // Where windowed layers have a rotation of their own, it is by its base alone, and the tensor
    // has elements for the wider one.
    kernels::RopeParams& rope = config.ropes.front();
    const kernels::RopeParams& widest =
        *std::ranges::max_element(config.ropes, {}, &kernels::RopeParams::rotary_dim);
    SLUICE_TRY(rope.freq_factors, weights.vector("rope_freqs.weight", widest.rotary_dim / 2));
    rope.freq_factors.resize(static_cast<size_t>(rope.rotary_dim / 2));
  }
  if (config.long_rope.original_context > 0 && weights.has("rope_factors_long.weight")) {
    const int64_t pairs = config.ropes.front().rotary_dim / 2;
    SLUICE_TRY(config.long_rope.long_factors, weights.vector("rope_factors_long.weight", pairs));
    SLUICE_TRY(config.long_rope.short_factors, weights.vector("rope_factors_short.weight", pairs));
  }
  for (const kernels::RopeParams& rope : config.ropes) {
    SLUICE_TRY_VOID(check_factors("of the frequencies", rope.freq_factors));
  }
  SLUICE_TRY_VOID(check_factors("for long contexts", config.long_rope.long_factors));
  return check_factors("for short contexts", config.long_rope.short_factors);
}

std::vector<kernels::RopeTable> rope_tables(const ModelConfig& config, int32_t max_model_len) {
  std::vector<kernels::RopeTable> tables;
  for (kernels::RopeParams rope : config.ropes) {
    if (const LongRope& two = config.long_rope; two.original_context > 0) {
      const bool is_long = max_model_len > two.original_context;
      rope.freq_factors = is_long ? two.long_factors : two.short_factors;
      if (two.long_scale != 0) rope.attention_factor = is_long ? two.long_scale : two.short_scale;
    }
    if (const DynamicRope& dynamic = config.dynamic_rope; dynamic.trained_context > 0) {
      rope.freq_base = kernels::dynamic_freq_base(
          rope,
          {.factor = dynamic.factor,
           .trained_context = static_cast<double>(dynamic.trained_context),
           .served_context = static_cast<double>(max_model_len)});
    }
    tables.emplace_back(rope, max_model_len);
  }
  return tables;
}

}  // namespace sluice
