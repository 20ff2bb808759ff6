// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "engine/quantize/model_keys.h"
#include "kernels/rope_scaling.h"

namespace sluice {
namespace {

class KeyWriter {
 public:
  KeyWriter(const Checkpoint& input, const ModelConfig& config, const ModelSpec& spec)
      : input_(input.metadata()),
        config_(config),
        spec_(spec),
        prefix_(std::string(spec.files.gguf) + ".") {
    keys_.put_text("general.architecture", spec.files.gguf);
    keys_.put_text("general.type", "model");
  }

  GgufMetadata run() {
    put_shape();
    put_rope();
    put_scales();
    return std::move(keys_);
  }

 private:
  [[nodiscard]] bool is_own(std::string_view key) const {
    return std::ranges::find(spec_.gguf_keys, key) != spec_.gguf_keys.end();
  }

  void put_uint(const std::string& key, int64_t value) {
    keys_.put_uint(prefix_ + key, static_cast<uint64_t>(value));
  }

  void put_float(const std::string& key, double value) { keys_.put_float(prefix_ + key, value); }

  // Copies the directory's value of the same key, if present.
  void take_float(const std::string& key) {
    if (const Expected<double> value = input_.get_float(key)) put_float(key, *value);
  }

  void put_shape() {
    const MoeConfig& moe = config_.moe;
    put_uint("block_count", config_.num_layers);
    put_uint("context_length",
             static_cast<int64_t>(input_.get_uint_or("context_length", 0).value_or(0)));
    put_uint("embedding_length", config_.hidden);
    spec_.files.has_unlike_layers ? put_unlike_layers() : put_like_layers();
    const std::string usual = "attention.layer_norm_rms_epsilon";
    const bool is_usual = !config_.norms_subtract_mean || is_own(usual);
    put_float(is_usual ? usual : "attention.layer_norm_epsilon", config_.norm_eps);
    if (config_.gate_function == kernels::GateFunction::kXielu) put_xielu();
    put_uint("vocab_size", config_.vocab_size);
    if (is_own("use_parallel_residual")) {
      keys_.put_bool(prefix_ + "use_parallel_residual", config_.parallel_halves);
    }
    if (moe.num_experts > 0) {
      put_uint("expert_count", moe.num_experts);
      put_uint("expert_used_count", moe.top_k);
      put_uint("expert_feed_forward_length", moe.ffn_hidden);
      put_router();
    }
    const auto windowed = std::ranges::find_if(
        config_.layers, [](const LayerConfig& each) { return each.window > 0; });
    if (windowed != config_.layers.end()) put_uint("attention.sliding_window", windowed->window);
  }

  void put_like_layers() {
    if (config_.ffn_hidden > 0) put_uint("feed_forward_length", config_.ffn_hidden);
    const LayerConfig& layer = config_.layers.front();
    put_uint("attention.head_count", layer.num_heads);
    put_uint("attention.head_count_kv", layer.num_kv_heads);
    if (config_.has_latents()) return put_latents(layer);
    put_uint("attention.key_length", layer.head_dim);
    put_uint("attention.value_length", layer.head_dim);
  }

  // A head's sizes as attention on latents has them, and as the model does.
  void put_latents(const LayerConfig& layer) {
    const LatentConfig& latent = config_.latent;
    put_uint("attention.key_length", latent.kv_rank + latent.rope_dim);
    put_uint("attention.value_length", latent.kv_rank);
    put_uint("attention.key_length_mla", layer.head_dim);
    put_uint("attention.value_length_mla", latent.value_dim);
    put_uint("attention.kv_lora_rank", latent.kv_rank);
    if (latent.q_rank > 0) put_uint("attention.q_lora_rank", latent.q_rank);
    if (latent.index_top_k > 0) put_indexers(latent);
  }

  void put_indexers(const LatentConfig& latent) {
    put_uint("attention.indexer.head_count", latent.index_heads);
    put_uint("attention.indexer.key_length", latent.index_dim);
    put_uint("attention.indexer.top_k", latent.index_top_k);
    std::vector<bool> own;
    for (const LayerConfig& layer : config_.layers) {
      own.push_back(layer.key_choice == KeyChoice::kOwn);
    }
    keys_.put_bools(prefix_ + "attention.indexer.types", own);
  }

  // Windowed layers and full ones, and layers that read the K and V of others.
  void put_unlike_layers() {
    std::vector<int32_t> widths;
    std::vector<int32_t> heads;
    std::vector<int32_t> kv_heads;
    std::vector<bool> are_windowed;
    int64_t num_readers = 0;
    for (const LayerConfig& layer : config_.layers) {
      widths.push_back(layer.ffn == FfnKind::kBoth ? layer.shared_hidden : layer.ffn_hidden);
      heads.push_back(layer.num_heads);
      kv_heads.push_back(layer.num_kv_heads);
      are_windowed.push_back(layer.window > 0);
      num_readers += layer.kv_from >= 0 ? 1 : 0;
      const std::string suffix = layer.window > 0 ? "_swa" : "";
      if (suffixes_.insert(suffix).second) {
        put_uint("attention.key_length" + suffix, layer.head_dim);
        put_uint("attention.value_length" + suffix, layer.value_width());
      }
    }
    if (std::ranges::count(heads, heads.front()) == std::ssize(heads)) {
      put_uint("attention.head_count", heads.front());
    } else {
      keys_.put_ints(prefix_ + "attention.head_count", heads);
    }
    if (is_own("swiglu_clamp_exp")) put_limits();
    keys_.put_ints(prefix_ + "feed_forward_length", widths);
    keys_.put_ints(prefix_ + "attention.head_count_kv", kv_heads);
    keys_.put_bools(prefix_ + "attention.sliding_window_pattern", are_windowed);
    put_uint("attention.shared_kv_layers", num_readers);
    put_uint("embedding_length_per_layer_input", config_.layer_input_width);
    put_uint("rope.dimension_count_swa", config_.ropes.back().rotary_dim);
  }

  // Without the architecture in front.
  void put_xielu() {
    constexpr float kLeast = -1e-6F;
    for (const auto& [key, number] : {std::pair("xielu.alpha_p", &XieluConfig::above),
                                      std::pair("xielu.alpha_n", &XieluConfig::below),
                                      std::pair("xielu.beta", &XieluConfig::slope)}) {
      std::vector<float> numbers;
      for (const LayerConfig& layer : config_.layers) numbers.push_back(layer.xielu.*number);
      keys_.put_floats(key, numbers);
    }
    keys_.put_floats("xielu.eps", std::vector<float>(config_.layers.size(), kLeast));
  }

  void put_limits() {
    std::vector<float> of_experts;
    std::vector<float> of_others;
    for (const LayerConfig& layer : config_.layers) {
      of_experts.push_back(layer.expert_limit);
      of_others.push_back(layer.dense_limit);
    }
    keys_.put_floats(prefix_ + "swiglu_clamp_exp", of_experts);
    keys_.put_floats(prefix_ + "swiglu_clamp_shexp", of_others);
  }

  // What differs from a softmax over all experts in every layer.
  void put_router() {
    const MoeConfig& moe = config_.moe;
    const kernels::Router& router = moe.router;
    if (moe.shared_hidden > 0) put_uint("expert_shared_feed_forward_length", moe.shared_hidden);
    if (moe.shared_hidden > 0 && moe.shared_hidden % moe.ffn_hidden == 0) {
      put_uint("expert_shared_count", moe.shared_hidden / moe.ffn_hidden);
    }
    if (router.score == kernels::RouterScore::kSigmoid) put_uint("expert_gating_func", 2);
    if (router.scale != 1) put_float("expert_weights_scale", router.scale);
    if (is_own("expert_weights_norm")) {
      keys_.put_bool(prefix_ + "expert_weights_norm", router.normalize);
    }
    if (router.num_groups > 0) {
      put_uint("expert_group_count", router.num_groups);
      put_uint("expert_group_used_count", router.groups_kept);
    }
    const auto first = std::ranges::find_if(
        config_.layers, [](const LayerConfig& each) { return each.ffn != FfnKind::kDense; });
    const auto leading = first - config_.layers.begin();
    if (is_own("interleave_moe_layer_step")) {
      put_uint("interleave_moe_layer_step", leading + 1);
    } else if (leading > 0) {
      put_uint("leading_dense_block_count", leading);
    }
  }

  void put_rope() {
    const kernels::RopeParams& rope = config_.ropes.front();
    put_float("rope.freq_base", rope.freq_base);
    // Step-3.5's files state whole heads.
    const bool is_whole = is_own("rope.dimension_count");
    put_uint("rope.dimension_count",
             is_whole ? config_.layers.front().head_dim : rope.rotary_dim);
    const bool has_local_rope = config_.ropes.size() > 1 && !is_own("interleave_moe_layer_step");
    if (has_local_rope) put_float("rope.freq_base_swa", config_.ropes[1].freq_base);
    const std::string type = input_.has("rope.scaling.type")
                                 ? input_.get_string("rope.scaling.type").value_or("none")
                                 : "none";
    if (type == "linear" || type == "yarn") {
      keys_.put_text(prefix_ + "rope.scaling.type", type);
      take_float("rope.scaling.factor");
    }
    if (type == "yarn" || type == "longrope") {
      const Expected<uint64_t> original = input_.get_uint("rope.scaling.original_context_length");
      if (original) {
        put_uint("rope.scaling.original_context_length", static_cast<int64_t>(*original));
      }
    }
    if (type == "longrope") put_float("rope.scaling.attn_factor", rope.attention_factor);
    const kernels::QueryScale& queries = config_.ropes.back().query_scale;
    if (queries.beta != 0) put_float("attention.temperature_scale", queries.beta);
    if (queries.beta != 0 && config_.ropes.size() > 1) {
      put_uint("attention.temperature_length", queries.context);
    }
    if (type != "yarn") return;
    take_float("rope.scaling.yarn_beta_fast");
    take_float("rope.scaling.yarn_beta_slow");
    if (config_.has_latents()) {
      const double scale = input_.get_float_or("rope.scaling.mscale_all_dim", 0).value_or(0);
      return put_float("rope.scaling.yarn_log_multiplier", 0.1 * scale);
    }
    // An extra factor beyond the one that follows from the stretch.
    const double stretch = input_.get_float_or("rope.scaling.factor", 1).value_or(1);
    const auto usual = static_cast<double>(kernels::yarn_attention_factor(stretch, 1));
    const double more = double{rope.attention_factor} / usual;
    if (std::fabs(more - 1) > 1e-6) put_float("rope.scaling.attn_factor", more);
  }

  void put_scales() {
    if (config_.attention_soft_cap > 0) {
      put_float("attn_logit_softcapping", config_.attention_soft_cap);
    }
    if (config_.logit_soft_cap > 0) put_float("final_logit_softcapping", config_.logit_soft_cap);
    const auto put_own = [this](std::string_view key, double value) {
      if (is_own(key)) put_float(std::string(key), value);
    };
    if (config_.attention_scale > 0) put_own("attention.scale", config_.attention_scale);
    if (config_.value_scale != 1) put_float("attention.value_scale", config_.value_scale);
    if (config_.qkv_limit > 0) put_own("attention.clamp_kqv", config_.qkv_limit);
    put_own("embedding_scale", config_.embedding_scale);
    put_own("residual_scale", config_.residual_scale);
    put_own("logit_scale", 1 / double{config_.logit_scale});
    if (is_own("logit_multiplier")) put_float("logit_scale", config_.logit_scale);
  }

  const Metadata& input_;
  const ModelConfig& config_;
  const ModelSpec& spec_;
  std::string prefix_;
  std::set<std::string> suffixes_;  // of the kinds of layers whose heads are written
  GgufMetadata keys_;
};

}  // namespace

GgufMetadata gguf_keys(const Checkpoint& input, const ModelConfig& config, const ModelSpec& spec) {
  return KeyWriter(input, config, spec).run();
}

}  // namespace sluice
