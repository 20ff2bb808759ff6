// SPDX-License-Identifier: Apache-2.0
// Gemma: Llama with GeLU gates, a scaled embedding and norms whose stored weights lack 1. The first
// directories say "gelu" and mean its tanh approximation, as their class has it.
#include <cmath>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kGemmaDefaults[] = {
    {"pad_token_id", 0U},
    {"num_attention_heads", 16U},
    {"num_key_value_heads", 16U},
    {"head_dim", 256U},
    {"max_position_embeddings", 8192U},
    {"rms_norm_eps", 1e-6},
};

Expected<void> configure_gemma(const Checkpoint& checkpoint, ModelConfig& config) {
  const bool is_stated = checkpoint.metadata().has("hidden_act");
  if (!is_stated) config.gate_function = kernels::GateFunction::kGeluTanh;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  return {};
}

}  // namespace

extern const ModelSpec kGemmaSpec;
const ModelSpec kGemmaSpec = {.files = {.gguf = "gemma",
                                        .model_type = "gemma",
                                        .class_name = "GemmaForCausalLM",
                                        .defaults = kGemmaDefaults,
                                        .layer_types = LayerTypes::kFull,
                                        .ties_embedding = true,
                                        .norm_offset = 1,
                                        .gelu_is_tanh = true},
                              .configure = configure_gemma,
                              .build = build_decoder};

}  // namespace sluice
