// SPDX-License-Identifier: Apache-2.0
// Arcee: Llama whose feed-forward halves have no gate.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kArceeDefaults[] = {
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 4096U},
    {"rms_norm_eps", 1e-5},
};

constexpr std::string_view kArceeHfKeys[] = {"mlp_bias"};

Expected<void> configure_arcee(const Checkpoint&, ModelConfig&) { return {}; }

}  // namespace

extern const ModelSpec kArceeSpec;
const ModelSpec kArceeSpec = {.files = {.gguf = "arcee",
                                        .model_type = "arcee",
                                        .class_name = "ArceeForCausalLM",
                                        .defaults = kArceeDefaults,
                                        .pairs_rows_in_gguf = true,
                                        .is_gated = false},
                              .configure = configure_arcee,
                              .build = build_decoder,
                              .hf_keys = kArceeHfKeys};

}  // namespace sluice
