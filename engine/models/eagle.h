// SPDX-License-Identifier: Apache-2.0
// EAGLE, the first and second: a head of one decoder layer without norms but that of its
// feed-forward half. A row has the embedding of the next token beside a state of the token before,
// through a matrix onto the layer's width: the target's, as its output layer reads it, or the
// head's own. What comes out is that state, and read by the target's output layer.
#pragma once

#include "engine/models/model.h"

namespace sluice {

// Named by the caller, as such heads call themselves Llama. In Hugging Face's layout alone.
extern const ModelSpec kEagleSpec;

}  // namespace sluice
