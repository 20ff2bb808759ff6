// SPDX-License-Identifier: Apache-2.0
// EXAONE 4: norms of each half's output and of each head of q and k. With a window, three windowed
// layers for each full one, which then has no positions. EXAONE 3 and 3.5: Llama under names of
// its own, or, as transformers 5 writes it, under Llama's.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kExaone4Defaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 32U},
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-5},
    {"sliding_window", 4096U},
    {"sliding_window_pattern", 4U},
};

constexpr KeyDefault kExaoneDefaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 8U},
    {"max_position_embeddings", 4096U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 500000U},
};

constexpr TensorName kExaoneNames[] = {
    {"transformer.wte.weight", "token_embd.weight"},
    {"transformer.ln_f.weight", "output_norm.weight"},
    {"ln_1", "attn_norm"},
    {"ln_2", "ffn_norm"},
    {"attn.attention.q_proj", "attn_q"},
    {"attn.attention.k_proj", "attn_k"},
    {"attn.attention.v_proj", "attn_v"},
    {"attn.attention.out_proj", "attn_output"},
    {"mlp.c_fc_0", "ffn_gate"},
    {"mlp.c_fc_1", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
};

constexpr TensorName kExaone4Names[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};

constexpr std::string_view kExaone4HfKeys[] = {"layer_types"};

Expected<void> configure_exaone4(const Checkpoint& checkpoint, ModelConfig& config) {
  config.norm_placement = NormPlacement::kAfter;
  config.qk_norm = QkNorm::kHead;
  SLUICE_TRY(const int32_t window, read_window(checkpoint.metadata()));
  if (window == 0) return {};
  SLUICE_TRY_VOID(read_window_pattern(checkpoint, 4, config));
  for (LayerConfig& layer : config.layers) layer.rope = layer.window > 0 ? 0 : -1;
  return {};
}

Expected<void> configure_exaone(const Checkpoint&, ModelConfig&) { return {}; }

}  // namespace

extern const ModelSpec kExaoneSpec;
const ModelSpec kExaoneSpec = {.files = {.gguf = "exaone",
                                         .model_type = "exaone",
                                         .class_name = "ExaoneForCausalLM",
                                         .defaults = kExaoneDefaults,
                                         .layer_types = LayerTypes::kFull,
                                         .names = kExaoneNames,
                                         .layers_place = "transformer.h."},
                               .configure = configure_exaone,
                               .build = build_decoder};

extern const ModelSpec kExaone4Spec;
const ModelSpec kExaone4Spec = {.files = {.gguf = "exaone4",
                                          .model_type = "exaone4",
                                          .class_name = "Exaone4ForCausalLM",
                                          .defaults = kExaone4Defaults,
                                          .names = kExaone4Names},
                                .configure = configure_exaone4,
                                .build = build_decoder,
                                .hf_keys = kExaone4HfKeys};

}  // namespace sluice
