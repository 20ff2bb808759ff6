// SPDX-License-Identifier: Apache-2.0
// Nemotron 4 (dense, before the hybrids): norms subtract the mean and have biases, half of each
// head rotates, feed-forward halves have no gate. Jais 2: the same with norms as they are stored,
// and whole heads that rotate.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kNemotronDefaults[] = {
    {"num_attention_heads", 48U},
    {"max_position_embeddings", 4096U},
    {"norm_eps", 1e-5},
    {"partial_rotary_factor", 0.5},
};

constexpr KeyDefault kJais2Defaults[] = {
    {"num_attention_heads", 26U},
    {"max_position_embeddings", 8192U},
    {"layer_norm_eps", 1e-5},
    {"attention_bias", true},
    {"mlp_bias", true},
};

constexpr std::string_view kNemotronHfKeys[] = {"mlp_bias", "norm_eps"};

Expected<void> configure_nemotron(const Checkpoint&, ModelConfig& config) {
  config.norm_bias = true;
  return {};
}

}  // namespace

extern const ModelSpec kNemotronSpec;
const ModelSpec kNemotronSpec = {.files = {.gguf = "nemotron",
                                           .model_type = "nemotron",
                                           .class_name = "NemotronForCausalLM",
                                           .defaults = kNemotronDefaults,
                                           .is_partly_rotated = true,
                                           .norm_offset = 1,
                                           .subtracts_mean = true,
                                           .is_gated = false},
                                 .configure = configure_nemotron,
                                 .build = build_decoder,
                                 .hf_keys = kNemotronHfKeys};

extern const ModelSpec kJais2Spec;
const ModelSpec kJais2Spec = {.files = {.model_type = "jais2",
                                        .class_name = "Jais2ForCausalLM",
                                        .defaults = kJais2Defaults,
                                        .layer_types = LayerTypes::kFull,
                                        .subtracts_mean = true,
                                        .is_gated = false},
                              .configure = configure_nemotron,
                              .build = build_decoder};

}  // namespace sluice
