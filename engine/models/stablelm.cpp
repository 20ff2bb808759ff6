// SPDX-License-Identifier: Apache-2.0
// StableLM 2 and 3B: norms subtract the mean and have biases, a part of each head rotates. In the
// 12B each head of q and k has a norm of its own, both halves of a layer read one norm's output.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kStableLmDefaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 32U},
    {"max_position_embeddings", 4096U},
    {"layer_norm_eps", 1e-5},
    {"partial_rotary_factor", 0.25},
};

constexpr TensorName kStableLmNames[] = {
    {"self_attn.q_layernorm.norms.#", "attn_q_norm"},
    {"self_attn.k_layernorm.norms.#", "attn_k_norm"},
};

constexpr std::string_view kStableLmHfKeys[] = {
    "layer_norm_eps", "use_qkv_bias", "qk_layernorm", "use_parallel_residual"};

constexpr std::string_view kStableLmGgufKeys[] = {"use_parallel_residual"};

Expected<void> configure_stablelm(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.norm_bias = true;
  const bool are_there = checkpoint.has("blk.0.attn_q_norm.weight") ||
                         checkpoint.has("blk.0.attn_q_norm.0.weight");
  SLUICE_TRY(const bool has_norms, metadata.get_bool_or("attention.qk_norm", are_there));
  if (has_norms) config.qk_norm = QkNorm::kEachHead;
  if (checkpoint.kind() == CheckpointKind::kGguf) {  // whatever it says of it
    config.parallel_halves = !checkpoint.has("blk.0.ffn_norm.weight");
    return {};
  }
  SLUICE_TRY(config.parallel_halves, metadata.get_bool_or("use_parallel_residual", false));
  return {};
}

}  // namespace

extern const ModelSpec kStableLmSpec;
const ModelSpec kStableLmSpec = {.files = {.gguf = "stablelm",
                                           .model_type = "stablelm",
                                           .class_name = "StableLmForCausalLM",
                                           .defaults = kStableLmDefaults,
                                           .layer_types = LayerTypes::kFull,
                                           .is_partly_rotated = true,
                                           .names = kStableLmNames,
                                           .subtracts_mean = true,
                                           .may_be_parallel = true},
                                 .configure = configure_stablelm,
                                 .build = build_decoder,
                                 .hf_keys = kStableLmHfKeys,
                                 .gguf_keys = kStableLmGgufKeys};

}  // namespace sluice
