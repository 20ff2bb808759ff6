// SPDX-License-Identifier: Apache-2.0
// Gemma 2: norms around each half, GeLU gates, capped scores and logits, every second layer
// windowed.
#include <cmath>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kGemma2Defaults[] = {
    {"pad_token_id", 0U},
    {"num_attention_heads", 8U},
    {"num_key_value_heads", 4U},
    {"head_dim", 256U},
    {"max_position_embeddings", 8192U},
    {"rms_norm_eps", 1e-6},
    {"sliding_window", 4096U},
    {"query_pre_attn_scalar", 256U},
    {"attn_logit_softcapping", 50U},
    {"final_logit_softcapping", 30U},
};

constexpr TensorName kGemma2Names[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};

constexpr std::string_view kGemma2HfKeys[] = {"hidden_activation",
                                              "rope_local_base_freq",
                                              "layer_types",
                                              "query_pre_attn_scalar",
                                              "attn_logit_softcapping",
                                              "final_logit_softcapping"};

Expected<void> configure_gemma2(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.norm_placement = NormPlacement::kAround;
  if (!metadata.has("hidden_act")) config.gate_function = kernels::GateFunction::kGeluTanh;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  SLUICE_TRY(config.attention_scale, read_attention_scale(metadata, 46, config));
  // A null in config.json means no cap: the reader gives absent keys their default.
  const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
  SLUICE_TRY(const double score_cap,
             read_soft_cap(metadata, "attn_logit_softcapping", gguf ? 50 : 0));
  SLUICE_TRY(const double logit_cap,
             read_soft_cap(metadata, "final_logit_softcapping", gguf ? 30 : 0));
  config.attention_soft_cap = static_cast<float>(score_cap);
  config.logit_soft_cap = static_cast<float>(logit_cap);
  return read_window_pattern(checkpoint, 2, config);
}

}  // namespace

extern const ModelSpec kGemma2Spec;
const ModelSpec kGemma2Spec = {.files = {.gguf = "gemma2",
                                         .model_type = "gemma2",
                                         .class_name = "Gemma2ForCausalLM",
                                         .defaults = kGemma2Defaults,
                                         .ties_embedding = true,
                                         .names = kGemma2Names,
                                         .norm_offset = 1},
                               .configure = configure_gemma2,
                               .build = build_decoder,
                               .hf_keys = kGemma2HfKeys};

}  // namespace sluice
