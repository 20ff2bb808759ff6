// SPDX-License-Identifier: Apache-2.0
// Gemma 3 text: Gemma 2 without caps, norms of each head of q and k, five windowed layers with a
// rope base of their own for each full one. EmbeddingGemma is the same with tokens that see later
// ones, the windowed layers half a window to each side.
#include <cmath>
#include <utility>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/rope_reader.h"
#include "engine/weights/weight_store.h"

namespace sluice {
namespace {

constexpr KeyDefault kGemma3Defaults[] = {
    {"pad_token_id", 0U},
    {"num_attention_heads", 8U},
    {"num_key_value_heads", 4U},
    {"head_dim", 256U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-6},
    {"sliding_window", 4096U},
    {"query_pre_attn_scalar", 256U},
    {"rope_theta", 1e6},
};

constexpr TensorName kGemma3Names[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};

constexpr std::string_view kGemma3HfKeys[] = {"hidden_activation",
                                              "rope_local_base_freq",
                                              "layer_types",
                                              "query_pre_attn_scalar",
                                              "attn_logit_softcapping",
                                              "final_logit_softcapping"};

// Files give an encoder's windows both sides together.
void see_half_windows(ModelConfig& config) {
  for (LayerConfig& layer : config.layers) {
    if (layer.window > 0) layer.window = layer.window / 2 + 1;
  }
}

Expected<void> configure_gemma3(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.norm_placement = NormPlacement::kAround;
  config.qk_norm = QkNorm::kHead;
  if (!metadata.has("hidden_act")) config.gate_function = kernels::GateFunction::kGeluTanh;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  SLUICE_TRY(config.attention_scale, read_attention_scale(metadata, 62, config));
  SLUICE_TRY(const double cap, read_soft_cap(metadata, "final_logit_softcapping", 0));
  config.logit_soft_cap = static_cast<float>(cap);
  SLUICE_TRY_VOID(read_window_pattern(checkpoint, 6, config));
  if (config.is_encoder) see_half_windows(config);
  return use_local_rope(metadata, 10000, config);
}

// A GGUF file stores the layers after the pooling beside the model's own.
Expected<std::unique_ptr<Model>> build_embedding(ModelConfig config,
                                                 const ModelOptions& options,
                                                 WeightStore& weights) {
  for (const char* name : {"dense_2.weight", "dense_3.weight"}) weights.leave_out(name);
  return build_decoder(std::move(config), options, weights);
}

}  // namespace

extern const ModelSpec kGemma3Spec;
const ModelSpec kGemma3Spec = {.files = {.gguf = "gemma3",
                                         .model_type = "gemma3_text",
                                         .class_name = "Gemma3ForCausalLM",
                                         .defaults = kGemma3Defaults,
                                         .ties_embedding = true,
                                         .scales_full_layers_only = true,
                                         .names = kGemma3Names,
                                         .norm_offset = 1,
                                         .may_be_encoder = true},
                               .configure = configure_gemma3,
                               .build = build_decoder,
                               .hf_keys = kGemma3HfKeys};

// EmbeddingGemma's GGUF files; its directories are those of Gemma 3.
extern const ModelSpec kGemmaEmbeddingSpec;
const ModelSpec kGemmaEmbeddingSpec = {.files = {.gguf = "gemma-embedding",
                                                 .ties_embedding = true,
                                                 .scales_full_layers_only = true,
                                                 .is_encoder = true},
                                       .configure = configure_gemma3,
                                       .build = build_embedding};

}  // namespace sluice
