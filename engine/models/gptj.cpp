// SPDX-License-Identifier: Apache-2.0
// GPT-J: both halves of a layer read one norm's output, and pairs of neighbours rotate.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kGptJDefaults[] = {
    {"num_hidden_layers", 28U},
    {"hidden_size", 4096U},
    {"num_attention_heads", 16U},
    {"n_positions", 2048U},
    {"rotary_dim", 64U},
    {"layer_norm_epsilon", 1e-5},
};

constexpr RequiredNumber kGptJRequired[] = {{"rotary", 1}, {"scale_attn_weights", 1}};

constexpr TensorName kGptJNames[] = {
    {"transformer.wte.weight", "token_embd.weight"},
    {"transformer.ln_f.weight", "output_norm.weight"},
    {"transformer.ln_f.bias", "output_norm.bias"},
    {"ln_1", "attn_norm"},
    {"attn.q_proj", "attn_q"},
    {"attn.k_proj", "attn_k"},
    {"attn.v_proj", "attn_v"},
    {"attn.out_proj", "attn_output"},
    {"mlp.fc_in", "ffn_up"},
    {"mlp.fc_out", "ffn_down"},
};

Expected<void> configure_gptj(const Checkpoint& checkpoint, ModelConfig& config) {
  take_biases(checkpoint, config);
  take_usual_width(config);
  config.parallel_halves = true;
  config.output_bias = !config.tied_embeddings;
  return {};
}

}  // namespace

extern const ModelSpec kGptJSpec;
const ModelSpec kGptJSpec = {.files = {.model_type = "gptj",
                                       .class_name = "GPTJForCausalLM",
                                       .defaults = kGptJDefaults,
                                       .required = kGptJRequired,
                                       .layer_types = LayerTypes::kFull,
                                       .names = kGptJNames,
                                       .layers_place = "transformer.h.",
                                       .pairs_rows = true,
                                       .subtracts_mean = true,
                                       .is_gated = false,
                                       .function = "gelu_new"},
                             .configure = configure_gptj,
                             .build = build_decoder};

}  // namespace sluice
