// SPDX-License-Identifier: Apache-2.0
// OLMo 2: norms of the outputs of each half, and of whole rows of q and k. OLMo 3: three windowed
// layers for each full one, and scaled rotation only in full ones; GGUF uses one name for both.
// OLMo-Hybrid: the gated delta rule behind norms of its inputs in most layers. Directories only.
#include <algorithm>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/recurrent_layers.h"
#include "engine/models/rope_reader.h"

namespace sluice {
namespace {

constexpr KeyDefault kOlmo2Defaults[] = {{"max_position_embeddings", 2048U},
                                         {"rms_norm_eps", 1e-5}};

constexpr KeyDefault kOlmo3Defaults[] = {
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 500000U},
    {"sliding_window", 4096U},
};

constexpr TensorName kOlmoNames[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};

constexpr std::string_view kOlmo3HfKeys[] = {"layer_types", "rope_parameters"};

bool is_olmo3(const ModelConfig& config) {
  return std::ranges::any_of(config.layers, [](const LayerConfig& l) { return l.window > 0; });
}

Expected<void> configure_olmo3(const Checkpoint& checkpoint, ModelConfig& config) {
  config.norm_placement = NormPlacement::kAfter;
  config.qk_norm = QkNorm::kRow;
  SLUICE_TRY_VOID(read_window_pattern(checkpoint, 4, config));
  return use_local_rope(checkpoint.metadata(), config.ropes.front().freq_base, config);
}

Expected<void> configure_olmo2(const Checkpoint& checkpoint, ModelConfig& config) {
  const bool is_gguf = checkpoint.kind() == CheckpointKind::kGguf;
  SLUICE_TRY(const int32_t window,
             is_gguf ? read_window(checkpoint.metadata()) : Expected<int32_t>(0));
  if (window > 0) return configure_olmo3(checkpoint, config);
  config.norm_placement = NormPlacement::kAfter;
  config.qk_norm = QkNorm::kRow;
  return {};
}

constexpr KeyDefault kOlmoHybridDefaults[] = {
    {"num_attention_heads", 30U},
    {"max_position_embeddings", 65536U},
    {"rms_norm_eps", 1e-6},
    {"linear_conv_kernel_dim", 4U},
    {"linear_allow_neg_eigval", true},
};

// A null in its place means no rotation.
constexpr KeyDefault kOlmoHybridRopeDefaults[] = {{"rope_theta", 10000.0}};

constexpr TensorName kOlmoHybridNames[] = {
    {"attention_layer_norm", "attn_norm"},
    {"feedforward_layer_norm", "ffn_norm"},
    {"post_attention_layernorm", "post_attention_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"linear_attn.q_proj", "delta_q"},
    {"linear_attn.k_proj", "delta_k"},
    {"linear_attn.v_proj", "delta_v"},
    {"linear_attn.g_proj", "delta_gate"},
    {"linear_attn.b_proj", "delta_beta"},
    {"linear_attn.a_proj", "delta_alpha"},
    {"linear_attn.q_conv1d", "delta_conv_q"},
    {"linear_attn.k_conv1d", "delta_conv_k"},
    {"linear_attn.v_conv1d", "delta_conv_v"},
    {"linear_attn.A_log", "delta_log_rate.weight"},
    {"linear_attn.dt_bias", "delta_dt.bias"},
    {"linear_attn.o_norm", "delta_norm"},
    {"linear_attn.o_proj", "delta_out"},
};

Expected<void> configure_olmo_hybrid(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.qk_norm = QkNorm::kRow;
  SLUICE_TRY_VOID(read_recurrent_layers(checkpoint, MixerKind::kDelta, 4, config));
  SLUICE_TRY_VOID(read_delta(checkpoint, config));
  SLUICE_TRY(const bool doubles, metadata.get_bool_or("ssm.doubles_beta", true));
  config.delta.has_parts_apart = true;
  config.delta.beta_scale = doubles ? 2 : 1;
  config.delta.norm_eps = 1e-5F;  // that of the class, whatever the file says of others
  const bool rotates = metadata.has("rope.freq_base");
  for (LayerConfig& layer : config.layers) {
    layer.norms_outputs = layer.mixer == MixerKind::kAttention;
    if (!rotates) layer.rope = -1;
  }
  return {};
}

}  // namespace

extern const ModelSpec kOlmo2Spec;
extern const ModelSpec kOlmo3Spec;
const ModelSpec kOlmo2Spec = {.files = {.gguf = "olmo2",
                                        .model_type = "olmo2",
                                        .class_name = "Olmo2ForCausalLM",
                                        .defaults = kOlmo2Defaults,
                                        .layer_types = LayerTypes::kFull,
                                        .names = kOlmoNames,
                                        .has_whole_attention_factor = true},
                              .configure = configure_olmo2,
                              .build = build_decoder};
const ModelSpec kOlmo3Spec = {.files = {.gguf = "olmo2",
                                        .reads_gguf = false,
                                        .model_type = "olmo3",
                                        .class_name = "Olmo3ForCausalLM",
                                        .defaults = kOlmo3Defaults,
                                        .scales_full_layers_only = true,
                                        .names = kOlmoNames},
                              .configure = configure_olmo3,
                              .build = build_decoder,
                              .takes_gguf = is_olmo3,
                              .hf_keys = kOlmo3HfKeys};

extern const ModelSpec kOlmoHybridSpec;
const ModelSpec kOlmoHybridSpec = {.files = {.model_type = "olmo_hybrid",
                                             .class_name = "OlmoHybridForCausalLM",
                                             .defaults = kOlmoHybridDefaults,
                                             .rope_defaults = kOlmoHybridRopeDefaults,
                                             .layer_types = LayerTypes::kRecurrent,
                                             .names = kOlmoHybridNames},
                                   .configure = configure_olmo_hybrid,
                                   .build = build_decoder};

}  // namespace sluice
