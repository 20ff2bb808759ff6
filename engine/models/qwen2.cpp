// SPDX-License-Identifier: Apache-2.0
// Qwen2 and 2.5: Llama with biases of q, k and v. MiMo adds a module after its layers that guesses
// a further token (mtp.h).
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kQwen2Defaults[] = {
    {"hidden_size", 4096U},
    {"intermediate_size", 22016U},
    {"num_hidden_layers", 32U},
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 32U},
    {"max_position_embeddings", 32768U},
    {"rms_norm_eps", 1e-6},
    {"sliding_window", 4096U},
    {"max_window_layers", 28U},
};

constexpr KeyDefault kMimoDefaults[] = {{"max_window_layers", 28U}};

constexpr std::string_view kQwen2HfKeys[] = {"use_sliding_window"};

Expected<void> configure_qwen2(const Checkpoint& checkpoint, ModelConfig& config) {
  config.qkv_bias = true;
  return read_optional_window(checkpoint, config);
}

}  // namespace

extern const ModelSpec kQwen2Spec;
const ModelSpec kQwen2Spec = {.files = {.gguf = "qwen2",
                                        .model_type = "qwen2",
                                        .class_name = "Qwen2ForCausalLM",
                                        .defaults = kQwen2Defaults,
                                        .may_be_encoder = true},
                              .configure = configure_qwen2,
                              .build = build_decoder,
                              .hf_keys = kQwen2HfKeys};

extern const ModelSpec kMimoSpec;
const ModelSpec kMimoSpec = {
    .files = {.model_type = "mimo", .class_name = "MiMoForCausalLM", .defaults = kMimoDefaults},
    .configure = configure_qwen2,
    .build = build_decoder};

}  // namespace sluice
