// SPDX-License-Identifier: Apache-2.0
// GLM-4 9B, GLM-Edge and, in GGUF, ChatGLM3: Llama with biases of q, k and v, of which neighbours
// rotate in the first half of each head, and with fused gate and up.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kGlmDefaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 2U},
    {"head_dim", 128U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1.5625e-7},
    {"partial_rotary_factor", 0.5},
    {"attention_bias", true},
};

constexpr TensorName kGlmNames[] = {{"mlp.gate_up_proj", "ffn_up"}};

Expected<void> configure_glm(const Checkpoint& checkpoint, ModelConfig& config) {
  config.attention_out_bias = false;
  if (checkpoint.is_dummy()) config.fused_gate_up = true;
  return {};
}

}  // namespace

extern const ModelSpec kGlmSpec;
const ModelSpec kGlmSpec = {.files = {.gguf = "chatglm",
                                      .model_type = "glm",
                                      .class_name = "GlmForCausalLM",
                                      .defaults = kGlmDefaults,
                                      .layer_types = LayerTypes::kFull,
                                      .is_partly_rotated = true,
                                      .names = kGlmNames,
                                      .pairs_rows = true,
                                      .pairs_rows_in_gguf = true},
                            .configure = configure_glm,
                            .build = build_decoder};

}  // namespace sluice
