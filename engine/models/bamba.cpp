// SPDX-License-Identifier: Apache-2.0
// Bamba: Mamba-2 in most layers, attention that rotates half of each head in the others, and a
// dense half in all. Directories only.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/recurrent_layers.h"

namespace sluice {
namespace {

constexpr KeyDefault kBambaDefaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 8U},
    {"max_position_embeddings", 262144U},
    {"rms_norm_eps", 1e-5},
    {"partial_rotary_factor", 0.5},
    {"mamba_n_heads", 128U},
    {"mamba_n_groups", 1U},
    {"mamba_d_state", 256U},
    {"mamba_d_conv", 4U},
};

constexpr TensorName kBambaNames[] = {
    {"model.final_layernorm.weight", "output_norm.weight"},
    {"pre_ff_layernorm", "ffn_norm"},
    {"feed_forward.gate_proj", "ffn_gate"},
    {"feed_forward.up_proj", "ffn_up"},
    {"feed_forward.down_proj", "ffn_down"},
};

Expected<void> configure_bamba(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(read_recurrent_layers(checkpoint, MixerKind::kMamba2, 1, config));
  return read_mamba(checkpoint, config);
}

}  // namespace

extern const ModelSpec kBambaSpec;
const ModelSpec kBambaSpec = {.files = {.model_type = "bamba",
                                        .class_name = "BambaForCausalLM",
                                        .defaults = kBambaDefaults,
                                        .layer_types = LayerTypes::kRecurrent,
                                        .is_partly_rotated = true,
                                        .names = kBambaNames},
                              .configure = configure_bamba,
                              .build = build_decoder};

}  // namespace sluice
