// SPDX-License-Identifier: Apache-2.0
// EAGLE 1 and 2: a draft head of one decoder layer with only the norm of its feed-forward half. A
// row is the next token's embedding beside the previous token's state, mapped by a matrix to the
// layer's width. That state is the target's, as its output layer reads it, or the head's own
// result. The target's output layer reads the result.
#pragma once

#include "engine/models/model_spec.h"

namespace sluice {

// The caller selects it, as such heads call themselves Llama. Hugging Face's layout only.
extern const ModelSpec kEagleSpec;

}  // namespace sluice
