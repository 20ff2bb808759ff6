// SPDX-License-Identifier: Apache-2.0
// What several architectures read from a checkpoint beyond the keys that all share.
#pragma once

#include "engine/models/model.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

// Windowed layers rotate by a base of their own, `absent_base` where the checkpoint has none,
// without the scaling of the others. After the windows are read.
Expected<void> use_local_rope(const Metadata& metadata, double absent_base, ModelConfig& config);

// A cap of logits or scores; what is absent has the given one, 0: none.
Expected<double> read_soft_cap(const Metadata& metadata, const char* key, double absent);

// Gemma's scale of attention: that of the query's nominal width, which GGUF files know by the
// number of layers of the largest model.
Expected<float> read_attention_scale(const Metadata& metadata,
                                     int32_t layers_of_largest,
                                     const ModelConfig& config);

// For architectures whose q and k rows GGUF permutes, so that rotation pairs neighbours.
void use_stored_pairs(const Checkpoint& checkpoint, ModelConfig& config);

// Tokens that a windowed layer sees; 0, which files of Phi-4 state: all.
Expected<int32_t> read_window(const Metadata& metadata);

// Which layers see only attention.sliding_window tokens: as listed by the checkpoint, else all but
// each `usual_period`-th; 1: none.
Expected<void> read_window_pattern(const Checkpoint& checkpoint,
                                   int32_t usual_period,
                                   ModelConfig& config);

// The same where use_sliding_window turns windows on.
Expected<void> read_optional_window(const Checkpoint& checkpoint, ModelConfig& config);

}  // namespace sluice
