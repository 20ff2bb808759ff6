// SPDX-License-Identifier: Apache-2.0
// Helium: Llama whose directories keep pairs of rotation side by side.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kHeliumDefaults[] = {
    {"num_attention_heads", 20U},
    {"num_key_value_heads", 20U},
    {"head_dim", 128U},
    {"max_position_embeddings", 4096U},
    {"rms_norm_eps", 1e-8},
    {"rope_theta", 100000U},
};

Expected<void> configure_helium(const Checkpoint&, ModelConfig&) { return {}; }

}  // namespace

extern const ModelSpec kHeliumSpec;
const ModelSpec kHeliumSpec = {.files = {.model_type = "helium",
                                         .class_name = "HeliumForCausalLM",
                                         .defaults = kHeliumDefaults,
                                         .layer_types = LayerTypes::kFull,
                                         .pairs_rows = true},
                               .configure = configure_helium,
                               .build = build_decoder};

}  // namespace sluice
