// SPDX-License-Identifier: Apache-2.0
// MiniCPM: Llama with factors of the embedding, of each half's output, which the number of layers
// sets, and of logits, which the widths set. MiniCPM 3: the same with latent attention, whose heads
// rotate by halves.
#include <cmath>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/latent_config.h"

namespace sluice {
namespace {

constexpr KeyDefault kMiniCpmDefaults[] = {
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-6},
    {"scale_emb", 1U},
    {"scale_depth", 1U},
    {"dim_model_base", 1U},
};

constexpr KeyDefault kMiniCpm3Defaults[] = {
    {"num_attention_heads", 40U},
    {"max_position_embeddings", 32768U},
    {"rms_norm_eps", 1e-5},
    {"scale_emb", 12U},
    {"scale_depth", 1.4},
    {"dim_model_base", 256U},
    {"kv_lora_rank", 256U},
    {"q_lora_rank", 768U},
    {"qk_nope_head_dim", 64U},
    {"qk_rope_head_dim", 32U},
    {"rope_interleave", false},
};

constexpr std::string_view kMiniCpmHfKeys[] = {"scale_emb", "scale_depth", "dim_model_base"};

constexpr std::string_view kMiniCpmGgufKeys[] = {
    "embedding_scale", "residual_scale", "logit_scale"};

Expected<void> read_factors(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
  // Files of before these keys leave them to the program.
  for (const char* key : {"embedding_scale", "residual_scale", "logit_scale"}) {
    if (gguf && !metadata.has(key)) return metadata.wrong(key, "nothing", "a number");
  }
  SLUICE_TRY(const double embedding, metadata.get_positive_or("embedding_scale", 1));
  config.embedding_scale = static_cast<float>(embedding);
  double residual = 1;
  double divisor = 1;
  if (gguf) {
    SLUICE_TRY(residual, metadata.get_positive_or("residual_scale", 1));
    SLUICE_TRY(divisor, metadata.get_positive_or("logit_scale", 1));
  } else {
    const double layers = config.num_layers;
    SLUICE_TRY(const double depth, metadata.get_positive_or("depth_scale", std::sqrt(layers)));
    SLUICE_TRY(const double base, metadata.get_positive_or("logit_base", config.hidden));
    residual = depth / std::sqrt(layers);
    divisor = config.hidden / base;
  }
  config.residual_scale = static_cast<float>(residual);
  config.logit_scale = static_cast<float>(1 / divisor);
  return {};
}

Expected<void> configure_minicpm3(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(read_factors(checkpoint, config));
  return read_latents(checkpoint, config);
}

}  // namespace

extern const ModelSpec kMiniCpmSpec;
const ModelSpec kMiniCpmSpec = {.files = {.gguf = "minicpm",
                                          .model_type = "minicpm",
                                          .class_name = "MiniCPMForCausalLM",
                                          .defaults = kMiniCpmDefaults,
                                          .layer_types = LayerTypes::kFull,
                                          .ties_embedding = true,
                                          .pairs_rows_in_gguf = true},
                                .configure = read_factors,
                                .build = build_decoder,
                                .hf_keys = kMiniCpmHfKeys,
                                .gguf_keys = kMiniCpmGgufKeys};

extern const ModelSpec kMiniCpm3Spec;
const ModelSpec kMiniCpm3Spec = {.files = {.model_type = "minicpm3",
                                           .class_name = "MiniCPM3ForCausalLM",
                                           .defaults = kMiniCpm3Defaults,
                                           .layer_types = LayerTypes::kFull,
                                           .ties_embedding = true,
                                           .names = kLatentNames,
                                           .has_latents = true},
                                 .configure = configure_minicpm3,
                                 .build = build_decoder};

}  // namespace sluice
