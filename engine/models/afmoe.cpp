// SPDX-License-Identifier: Apache-2.0
// AFMoE (Trinity): norms around each half, attention whose output has a gate, three windowed layers
// for each full one without positions; leading dense layers, then experts that are chosen by
// sigmoids with a bias beside shared ones.
#include <cmath>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kAfmoeDefaults[] = {
    {"num_attention_heads", 16U},
    {"head_dim", 128U},
    {"max_position_embeddings", 16384U},
    {"rms_norm_eps", 1e-5},
    {"sliding_window", 1024U},
    {"global_attn_every_n_layers", 4U},
    {"num_experts", 64U},
    {"num_experts_per_tok", 6U},
    {"num_shared_experts", 2U},
    {"moe_intermediate_size", 1408U},
    {"num_dense_layers", 1U},
    {"route_scale", 1U},
};

constexpr TensorName kAfmoeNames[] = {
    {"self_attn.gate_proj", "attn_gate"},
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_mlp_layernorm", "ffn_norm"},
    {"post_mlp_layernorm", "post_ffw_norm"},
    {"mlp.router.gate", "ffn_gate_inp"},
    {"mlp.expert_bias", "exp_probs_b.bias"},
};

constexpr std::string_view kAfmoeHfKeys[] = {"layer_types",
                                             "num_experts",
                                             "num_experts_per_tok",
                                             "num_shared_experts",
                                             "moe_intermediate_size",
                                             "num_dense_layers",
                                             "route_scale",
                                             "mup_enabled"};

constexpr std::string_view kAfmoeGgufKeys[] = {"expert_weights_norm"};

Expected<void> configure_afmoe(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.norm_placement = NormPlacement::kAround;
  config.qk_norm = QkNorm::kHead;
  config.attention_gate = true;
  // A file always means the scaled embedding.
  const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
  SLUICE_TRY(const bool scales, metadata.get_bool_or("mup_enabled", gguf));
  if (scales) config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  SLUICE_TRY_VOID(read_window_pattern(checkpoint, 4, config));
  for (LayerConfig& layer : config.layers) layer.rope = layer.window > 0 ? 0 : -1;
  return read_sigmoid_experts(checkpoint, config);
}

}  // namespace

extern const ModelSpec kAfmoeSpec;
const ModelSpec kAfmoeSpec = {.files = {.gguf = "afmoe",
                                        .model_type = "afmoe",
                                        .class_name = "AfmoeForCausalLM",
                                        .defaults = kAfmoeDefaults,
                                        .names = kAfmoeNames},
                              .configure = configure_afmoe,
                              .build = build_decoder,
                              .hf_keys = kAfmoeHfKeys,
                              .gguf_keys = kAfmoeGgufKeys};

}  // namespace sluice
