// SPDX-License-Identifier: Apache-2.0
// Reads what families with recurrent layers share.
#pragma once

#include "engine/models/model_config.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

// Makes layers recurrent, of this kind: as attention.recurrent_layers lists them, else all but each
// full_attention_interval-th, `usual_interval` if the file has none. kDataLoss: a list of another
// length.
Expected<void> read_recurrent_layers(const Checkpoint& checkpoint,
                                     MixerKind kind,
                                     int32_t usual_interval,
                                     ModelConfig& config);

// Reads the taps of the convolutions of recurrent layers, which the function above does as well.
Expected<void> read_conv_taps(const Checkpoint& checkpoint, ModelConfig& config);

// Names of Mamba-2's tensors in GGUF.
inline constexpr TensorName kMambaGgufNames[] = {
    {"ssm_in", "mamba_in"},
    {"ssm_conv1d", "mamba_conv"},
    {"ssm_a", "mamba_rate"},
    {"ssm_d", "mamba_skip.weight"},
    {"ssm_dt", "mamba_dt"},
    {"ssm_norm", "mamba_norm"},
    {"ssm_out", "mamba_out"},
};

// Reads the sizes of Mamba-2 layers and the limits of their steps. kDataLoss: sizes that no such
// layer has.
Expected<void> read_mamba(const Checkpoint& checkpoint, ModelConfig& config);

// Reads the sizes of delta layers. kDataLoss: sizes that no such layer has.
Expected<void> read_delta(const Checkpoint& checkpoint, ModelConfig& config);

}  // namespace sluice
