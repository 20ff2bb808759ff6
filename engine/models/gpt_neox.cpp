// SPDX-License-Identifier: Apache-2.0
// GPT-NeoX (Pythia): halves side by side have a norm each, and rows of q, k and v take turns in
// directories.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kNeoxDefaults[] = {
    {"num_attention_heads", 64U},
    {"max_position_embeddings", 2048U},
    {"layer_norm_eps", 1e-5},
    {"partial_rotary_factor", 0.25},
    {"use_parallel_residual", true},
    {"attention_bias", true},
};

constexpr TensorName kNeoxNames[] = {
    {"gpt_neox.embed_in.weight", "token_embd.weight"},
    {"gpt_neox.final_layer_norm.weight", "output_norm.weight"},
    {"gpt_neox.final_layer_norm.bias", "output_norm.bias"},
    {"embed_out.weight", "output.weight"},
    {"attention.query_key_value", "attn_qkv"},
    {"attention.dense", "attn_output"},
    {"mlp.dense_h_to_4h", "ffn_up"},
    {"mlp.dense_4h_to_h", "ffn_down"},
};

constexpr std::string_view kNeoxGgufKeys[] = {"use_parallel_residual"};

Expected<void> configure_neox(const Checkpoint& checkpoint, ModelConfig& config) {
  take_biases(checkpoint, config);
  take_usual_width(config);
  SLUICE_TRY(config.parallel_halves,
             checkpoint.metadata().get_bool_or("use_parallel_residual", true));
  config.parallel_norms = config.parallel_halves;
  return {};
}

}  // namespace

extern const ModelSpec kNeoxSpec;
const ModelSpec kNeoxSpec = {.files = {.gguf = "gptneox",
                                       .model_type = "gpt_neox",
                                       .class_name = "GPTNeoXForCausalLM",
                                       .defaults = kNeoxDefaults,
                                       .layer_types = LayerTypes::kFull,
                                       .is_partly_rotated = true,
                                       .names = kNeoxNames,
                                       .layers_place = "gpt_neox.layers.",
                                       .subtracts_mean = true,
                                       .is_gated = false,
                                       .function = "gelu",
                                       .groups_qkv = true,
                                       .joins_qkv = true,
                                       .may_be_parallel = true},
                             .configure = configure_neox,
                             .build = build_decoder,
                             .gguf_keys = kNeoxGgufKeys};

}  // namespace sluice
