// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/config_difference.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/weights/gguf_parse.h"

namespace sluice {
namespace {

class Differences {
 public:
  template <typename T>
  void check(const char* field, T found, T expected) {
    if (found != expected) add(field, text(found), text(expected));
  }

  void check_near(const std::string& field, double found, double expected, double tolerance) {
    if (std::fabs(found - expected) <= tolerance * std::fabs(expected)) return;
    add(field, number_text(found), number_text(expected));
  }

  void check_factors(const std::string& field,
                     const std::vector<float>& found,
                     const std::vector<float>& expected) {
    constexpr double kTolerance = 2e-5;
    // Missing factors are ones.
    const size_t count = std::max(found.size(), expected.size());
    const auto at = [](const std::vector<float>& factors, size_t i) {
      return i < factors.size() ? double{factors[i]} : 1.0;
    };
    for (size_t i = 0; i < count && text_.empty(); ++i) {
      check_near(
          field + " of pair " + std::to_string(i), at(found, i), at(expected, i), kTolerance);
    }
  }

  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  template <typename T>
  static std::string text(T value) {
    if constexpr (std::is_enum_v<T>) {
      return std::to_string(static_cast<int>(value));
    } else if constexpr (std::is_same_v<T, bool>) {
      return value ? "true" : "false";
    } else {
      return number_text(static_cast<double>(value));
    }
  }

  void add(const std::string& field, const std::string& found, const std::string& expected) {
    if (text_.empty()) text_ = field + ": found " + found + ", expected " + expected;
  }

  std::string text_;  // the first difference
};

void check_layer(const LayerConfig& found, const LayerConfig& expected, Differences& differences) {
  differences.check("heads", found.num_heads, expected.num_heads);
  differences.check("KV heads", found.num_kv_heads, expected.num_kv_heads);
  differences.check("head size", found.head_dim, expected.head_dim);
  differences.check("value size", found.value_width(), expected.value_width());
  differences.check("window of a layer", found.window, expected.window);
  differences.check("chunks of a layer", found.is_chunked, expected.is_chunked);
  differences.check("norms of a layer's q and k", found.norms_qk, expected.norms_qk);
  differences.check("limit of experts' gates", found.expert_limit, expected.expert_limit);
  differences.check("limit of other gates", found.dense_limit, expected.dense_limit);
  differences.check("xIELU above 0", found.xielu.above, expected.xielu.above);
  differences.check("xIELU below 0", found.xielu.below, expected.xielu.below);
  differences.check("line of xIELU", found.xielu.slope, expected.xielu.slope);
  differences.check("sinks of a layer", found.has_sinks, expected.has_sinks);
  differences.check("rotation of a layer", found.rope, expected.rope);
  differences.check("experts of a layer", found.ffn, expected.ffn);
  differences.check("feed-forward size", found.ffn_hidden, expected.ffn_hidden);
  differences.check("size of shared experts", found.shared_hidden, expected.shared_hidden);
  differences.check("layer whose K and V are read", found.kv_from, expected.kv_from);
  differences.check("choice of a layer's keys", found.key_choice, expected.key_choice);
  differences.check("values that are keys", found.values_are_keys, expected.values_are_keys);
}

void check_latents(const LatentConfig& found,
                   const LatentConfig& expected,
                   Differences& differences) {
  differences.check("size of compressed queries", found.q_rank, expected.q_rank);
  differences.check("size of latents", found.kv_rank, expected.kv_rank);
  differences.check("unrotated size of keys", found.nope_dim, expected.nope_dim);
  differences.check("size of values", found.value_dim, expected.value_dim);
  differences.check("heads of indexers", found.index_heads, expected.index_heads);
  differences.check("size of indexers' heads", found.index_dim, expected.index_dim);
  differences.check("keys of a query", found.index_top_k, expected.index_top_k);
  differences.check("rotation of indexers", found.index_style, expected.index_style);
  differences.check("epsilon of the norms of latents", found.norm_eps, expected.norm_eps);
}

void check_rope(const ModelConfig& found, const ModelConfig& expected, Differences& differences) {
  constexpr double kTolerance = 1e-6;
  differences.check("number of rotations", found.ropes.size(), expected.ropes.size());
  for (size_t i = 0; i < std::min(found.ropes.size(), expected.ropes.size()); ++i) {
    const kernels::RopeParams& a = found.ropes[i];
    const kernels::RopeParams& b = expected.ropes[i];
    differences.check("rotated elements", a.rotary_dim, b.rotary_dim);
    differences.check_near("base of rotation", a.freq_base, b.freq_base, kTolerance);
    differences.check_near("linear scale of rotation", a.freq_scale, b.freq_scale, kTolerance);
    differences.check_near(
        "scale of rotated vectors", a.attention_factor, b.attention_factor, kTolerance);
    differences.check_factors("divisor of frequencies", a.freq_factors, b.freq_factors);
    differences.check_near("growth of queries", a.query_scale.beta, b.query_scale.beta, kTolerance);
    if (a.query_scale.beta != 0) {
      differences.check("step of queries' growth", a.query_scale.context, b.query_scale.context);
    }
  }
  differences.check("original context of LongRoPE",
                    found.long_rope.original_context,
                    expected.long_rope.original_context);
  differences.check_factors(
      "long factor", found.long_rope.long_factors, expected.long_rope.long_factors);
  differences.check_factors(
      "short factor", found.long_rope.short_factors, expected.long_rope.short_factors);
  differences.check(
      "scale of short contexts", found.long_rope.short_scale, expected.long_rope.short_scale);
  differences.check("context of dynamic scaling",
                    found.dynamic_rope.trained_context,
                    expected.dynamic_rope.trained_context);
  differences.check(
      "factor of dynamic scaling", found.dynamic_rope.factor, expected.dynamic_rope.factor);
}

void check_shape(const ModelConfig& found, const ModelConfig& expected, Differences& differences) {
  differences.check("layers", found.num_layers, expected.num_layers);
  differences.check("hidden size", found.hidden, expected.hidden);
  differences.check("vocabulary", found.vocab_size, expected.vocab_size);
  differences.check("context length", found.context_len, expected.context_len);
  differences.check("epsilon of norms", found.norm_eps, expected.norm_eps);
  differences.check("experts", found.moe.num_experts, expected.moe.num_experts);
  differences.check("experts of a token", found.moe.top_k, expected.moe.top_k);
  differences.check(
      "normalized routing", found.moe.router.normalize, expected.moe.router.normalize);
  differences.check("score of experts", found.moe.router.score, expected.moe.router.score);
  differences.check(
      "groups of experts", found.moe.router.num_groups, expected.moe.router.num_groups);
  differences.check(
      "groups of a token", found.moe.router.groups_kept, expected.moe.router.groups_kept);
  differences.check("scale of experts", found.moe.router.scale, expected.moe.router.scale);
  differences.check("spread of experts", found.moe.router.spread, expected.moe.router.spread);
  differences.check("terms of the choice", found.moe.choice_bias, expected.moe.choice_bias);
  differences.check("gate of shared experts", found.moe.gated_shared, expected.moe.gated_shared);
  differences.check("biases of experts", found.moe.bias, expected.moe.bias);
  differences.check("scales of experts", found.moe.expert_scales, expected.moe.expert_scales);
  differences.check("size of layers' inputs", found.layer_input_width, expected.layer_input_width);
  differences.check("rows of layers' inputs", found.layer_input_vocab, expected.layer_input_vocab);
  differences.check("scales of layers", found.layer_scales, expected.layer_scales);
}

double attention_scale_of(const ModelConfig& config) {
  return config.attention_scale != 0 ? double{config.attention_scale}
                                     : 1 / std::sqrt(double(config.layers.front().head_dim));
}

}  // namespace

std::string difference_of(const ModelConfig& found, const ModelConfig& expected) {
  constexpr double kTolerance = 1e-6;
  Differences differences;
  check_shape(found, expected, differences);
  check_rope(found, expected, differences);
  check_latents(found.latent, expected.latent, differences);
  for (size_t i = 0; i < std::min(found.layers.size(), expected.layers.size()); ++i) {
    check_layer(found.layers[i], expected.layers[i], differences);
  }
  differences.check("place of norms", found.norm_placement, expected.norm_placement);
  differences.check("norms of q and k", found.qk_norm, expected.qk_norm);
  differences.check("norms of v", found.value_norm, expected.value_norm);
  differences.check("mean of norms", found.norms_subtract_mean, expected.norms_subtract_mean);
  differences.check("biases of norms", found.norm_bias, expected.norm_bias);
  differences.check("parallel halves", found.parallel_halves, expected.parallel_halves);
  differences.check("norms of such halves", found.parallel_norms, expected.parallel_norms);
  differences.check("norm of the embedding", found.embedding_norm, expected.embedding_norm);
  differences.check("bias of the output layer", found.output_bias, expected.output_bias);
  differences.check("learned positions", found.num_positions, expected.num_positions);
  differences.check("limit of q, k and v", found.qkv_limit, expected.qkv_limit);
  differences.check("weights of those norms", found.qk_norm_weights, expected.qk_norm_weights);
  differences.check("gates of heads", found.gates_heads, expected.gates_heads);
  differences.check_near("scale of values", found.value_scale, expected.value_scale, kTolerance);
  differences.check(
      "scale of experts' inputs", found.moe.scales_inputs, expected.moe.scales_inputs);
  differences.check("gate of attention", found.attention_gate, expected.attention_gate);
  differences.check("gate function", found.gate_function, expected.gate_function);
  differences.check("tied embedding", found.tied_embeddings, expected.tied_embeddings);
  differences.check("biases of q, k and v", found.qkv_bias, expected.qkv_bias);
  differences.check("bias of attention", found.attention_out_bias, expected.attention_out_bias);
  differences.check("biases of the feed-forward half", found.mlp_bias, expected.mlp_bias);
  differences.check("attention sinks", found.attention_sinks, expected.attention_sinks);
  differences.check_near(
      "scale of attention", attention_scale_of(found), attention_scale_of(expected), kTolerance);
  differences.check("cap of attention", found.attention_soft_cap, expected.attention_soft_cap);
  differences.check("cap of logits", found.logit_soft_cap, expected.logit_soft_cap);
  differences.check_near(
      "scale of the embedding", found.embedding_scale, expected.embedding_scale, kTolerance);
  differences.check_near(
      "scale of the residual", found.residual_scale, expected.residual_scale, kTolerance);
  differences.check_near("scale of logits", found.logit_scale, expected.logit_scale, kTolerance);
  return differences.take();
}

}  // namespace sluice
