// SPDX-License-Identifier: Apache-2.0
// EAGLE-3: a draft head of one decoder layer that guesses the token after the next one. A row is
// the next token's embedding beside a state of the previous token: the target's hidden states of
// three layers, side by side and mapped by a matrix, or the head's own state where the target has
// none. q, k and v read both halves, each with its own norm; the output layer may have fewer tokens
// than the target (Checkpoint::id_offsets).
#pragma once

#include "engine/models/model_spec.h"

namespace sluice {

// The caller selects it, as such heads call themselves Llama. Hugging Face's layout only.
extern const ModelSpec kEagle3Spec;

// Default layers that a head reads: the inputs of layers 2, n / 2 and n - 3 of the target's n.
// kUnsupported: the target has fewer than 7 layers.
Expected<std::vector<int32_t>> usual_taps(int32_t num_target_layers);

}  // namespace sluice
