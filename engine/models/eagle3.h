// SPDX-License-Identifier: Apache-2.0
// EAGLE-3: a head of one decoder layer that guesses the token behind the next one. A row has the
// embedding of the next token and, of the token before, the target's hidden states, of three layers
// side by side through a matrix, or the head's own state where the target has none. q, k and v are
// of both halves, each with a norm of its own; the output layer may have fewer tokens than the
// target (Checkpoint::id_offsets).
#pragma once

#include "engine/models/model.h"

namespace sluice {

// Named by the caller, as such heads call themselves Llama. In Hugging Face's layout alone.
extern const ModelSpec kEagle3Spec;

// The layers that a head reads whose configuration names none: they enter layers 2, n / 2 and
// n - 3 of the target's n. kUnsupported: it has fewer than 7.
Expected<std::vector<int32_t>> usual_taps(int32_t num_target_layers);

}  // namespace sluice
