// SPDX-License-Identifier: Apache-2.0
// Granite 3: Llama with multipliers for embedding, scores, residual and logits; and the same with
// experts in every layer, in some models beside a shared one. Granite 4: either of these, with
// Mamba-2 in place of attention in most layers of most models.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/recurrent_layers.h"

namespace sluice {
namespace {

constexpr KeyDefault kGraniteDefaults[] = {
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-6},
    {"attention_multiplier", 1U},
};

// Scores are divided by the root of the head's size, unless a file says otherwise.
constexpr KeyDefault kHyperClovaDefaults[] = {
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-6},
    {"use_post_norm", true},
};

constexpr KeyDefault kGraniteMoeDefaults[] = {
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-6},
    {"attention_multiplier", 1U},
    {"num_local_experts", 8U},
    {"num_experts_per_tok", 2U},
};

constexpr KeyDefault kGraniteSharedDefaults[] = {
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-6},
    {"attention_multiplier", 1U},
    {"num_local_experts", 8U},
    {"num_experts_per_tok", 2U},
    {"shared_intermediate_size", 1024U},
};

constexpr KeyDefault kGranite4Defaults[] = {
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-6},
    {"attention_multiplier", 1U},
    {"num_local_experts", 8U},
    {"num_experts_per_tok", 2U},
    {"shared_intermediate_size", 1024U},
    {"mamba_n_heads", 128U},
    {"mamba_n_groups", 1U},
    {"mamba_d_state", 256U},
    {"mamba_d_conv", 4U},
};

constexpr TensorName kGranite4Names[] = {
    {"block_sparse_moe.router.layer", "ffn_gate_inp"},
    {"block_sparse_moe.input_linear", "ffn_gate_up_exps"},
    {"block_sparse_moe.output_linear", "ffn_down_exps"},
    {"shared_mlp.input_linear", "ffn_up"},
    {"shared_mlp.output_linear", "ffn_down"},
};

constexpr TensorName kGraniteMoeNames[] = {
    {"block_sparse_moe.router.layer", "ffn_gate_inp"},
    {"block_sparse_moe.input_linear", "ffn_gate_up_exps"},
    {"block_sparse_moe.output_linear", "ffn_down_exps"},
    {"shared_mlp.input_linear", "ffn_up_shexp"},
    {"shared_mlp.output_linear", "ffn_down_shexp"},
};

constexpr std::string_view kGraniteMoeKeys[] = {"attention_multiplier",
                                                "embedding_multiplier",
                                                "residual_multiplier",
                                                "logits_scaling",
                                                "num_local_experts",
                                                "num_experts_per_tok",
                                                "shared_intermediate_size"};

constexpr std::string_view kGraniteHfKeys[] = {"mlp_bias",
                                               "attention_multiplier",
                                               "embedding_multiplier",
                                               "residual_multiplier",
                                               "logits_scaling"};

constexpr std::string_view kGraniteGgufKeys[] = {
    "attention.scale", "embedding_scale", "residual_scale", "logit_scale"};

Expected<void> configure_granite(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const double embedding, metadata.get_positive_or("embedding_scale", 1));
  SLUICE_TRY(const double residual, metadata.get_positive_or("residual_scale", 1));
  SLUICE_TRY(const double divisor, metadata.get_positive_or("logit_scale", 1));
  config.embedding_scale = static_cast<float>(embedding);
  config.residual_scale = static_cast<float>(residual);
  config.logit_scale = static_cast<float>(1 / divisor);
  if (metadata.has("attention.scale")) {
    SLUICE_TRY(const double scale, metadata.get_positive_or("attention.scale", 1));
    config.attention_scale = static_cast<float>(scale);
  }
  // This GGUF key says here whether there are positions at all.
  SLUICE_TRY(const bool rotates, metadata.get_bool_or("rope.scaling.finetuned", true));
  for (LayerConfig& layer : config.layers) layer.rope = rotates ? 0 : -1;
  return {};
}

Expected<void> configure_hyper_clova(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY(const bool norms_outputs, checkpoint.metadata().get_bool_or("post_norms", true));
  if (norms_outputs) return checkpoint.metadata().wrong("post_norms", "true", "false");
  SLUICE_TRY_VOID(configure_granite(checkpoint, config));
  // A factor of the logits here, where Granite's is a divisor.
  SLUICE_TRY(const double factor, checkpoint.metadata().get_positive_or("logit_scale", 1));
  config.logit_scale = static_cast<float>(factor);
  return {};
}

Expected<void> configure_granite_moe(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(configure_granite(checkpoint, config));
  return check_experts(checkpoint, config);
}

Expected<void> configure_granite4(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY_VOID(configure_granite(checkpoint, config));
  SLUICE_TRY(
      config.ffn_hidden,
      metadata.get_count_or("expert_shared_feed_forward_length", 1 << 20, config.ffn_hidden));
  if (checkpoint.kind() != CheckpointKind::kGguf) {
    const Expected<std::string> positions = metadata.get_string("position_embedding_type");
    if (!positions && metadata.has("position_embedding_type")) {
      return tl::unexpected(positions.error());
    }
    const bool rotates = positions && *positions == "rope";
    for (LayerConfig& layer : config.layers) layer.rope = rotates ? 0 : -1;
  }
  SLUICE_TRY_VOID(read_recurrent_layers(checkpoint, MixerKind::kMamba2, 1, config));
  if (!config.is_recurrent()) return {};
  return read_mamba(checkpoint, config);
}

bool is_granite_moe_shared(const ModelConfig& config) { return config.moe.shared_hidden > 0; }

}  // namespace

extern const ModelSpec kGraniteSpec;
const ModelSpec kGraniteSpec = {.files = {.gguf = "granite",
                                          .model_type = "granite",
                                          .class_name = "GraniteForCausalLM",
                                          .defaults = kGraniteDefaults,
                                          .layer_types = LayerTypes::kFull,
                                          .pairs_rows_in_gguf = true},
                                .configure = configure_granite,
                                .build = build_decoder,
                                .hf_keys = kGraniteHfKeys,
                                .gguf_keys = kGraniteGgufKeys};

// HyperCLOVA X without norms of its halves' outputs is Granite.
extern const ModelSpec kHyperClovaSpec;
const ModelSpec kHyperClovaSpec = {.files = {.gguf = "granite",
                                             .reads_gguf = false,
                                             .model_type = "hyperclovax",
                                             .class_name = "HyperCLOVAXForCausalLM",
                                             .defaults = kHyperClovaDefaults,
                                             .layer_types = LayerTypes::kFull,
                                             .pairs_rows_in_gguf = true},
                                   .configure = configure_hyper_clova,
                                   .build = build_decoder,
                                   .hf_keys = kGraniteHfKeys,
                                   .gguf_keys = kGraniteGgufKeys};

extern const ModelSpec kGraniteMoeSpec;
const ModelSpec kGraniteMoeSpec = {.files = {.gguf = "granitemoe",
                                             .model_type = "granitemoe",
                                             .class_name = "GraniteMoeForCausalLM",
                                             .defaults = kGraniteMoeDefaults,
                                             .layer_types = LayerTypes::kFull,
                                             .names = kGraniteMoeNames,
                                             .experts = ExpertTensors::kStacked,
                                             .pairs_rows_in_gguf = true},
                                   .configure = configure_granite_moe,
                                   .build = build_decoder,
                                   .hf_keys = kGraniteMoeKeys,
                                   .gguf_keys = kGraniteGgufKeys};

extern const ModelSpec kGraniteMoeSharedSpec;
const ModelSpec kGraniteMoeSharedSpec = {.files = {.gguf = "granitemoe",
                                                   .reads_gguf = false,
                                                   .model_type = "granitemoeshared",
                                                   .class_name = "GraniteMoeSharedForCausalLM",
                                                   .defaults = kGraniteSharedDefaults,
                                                   .layer_types = LayerTypes::kFull,
                                                   .names = kGraniteMoeNames,
                                                   .experts = ExpertTensors::kStacked,
                                                   .pairs_rows_in_gguf = true},
                                         .configure = configure_granite_moe,
                                         .build = build_decoder,
                                         .takes_gguf = is_granite_moe_shared,
                                         .hf_keys = kGraniteMoeKeys,
                                         .gguf_keys = kGraniteGgufKeys};

extern const ModelSpec kGranite4Spec;
const ModelSpec kGranite4Spec = {.files = {.gguf = "granite",
                                           .reads_gguf = false,
                                           .model_type = "granitemoehybrid",
                                           .class_name = "GraniteMoeHybridForCausalLM",
                                           .defaults = kGranite4Defaults,
                                           .layer_types = LayerTypes::kRecurrent,
                                           .names = kGranite4Names,
                                           .experts = ExpertTensors::kStacked,
                                           .pairs_rows_in_gguf = true},
                                 .configure = configure_granite4,
                                 .build = build_decoder,
                                 .gguf_keys = kGraniteGgufKeys};

// Files of Granite 4 with Mamba-2; others are Granite 3's.
extern const ModelSpec kGraniteHybridSpec;
const ModelSpec kGraniteHybridSpec = {.files = {.gguf = "granitehybrid",
                                                .layer_types = LayerTypes::kRecurrent,
                                                .gguf_names = kMambaGgufNames,
                                                .pairs_rows_in_gguf = true},
                                      .configure = configure_granite4,
                                      .build = build_decoder,
                                      .gguf_keys = kGraniteGgufKeys};

}  // namespace sluice
