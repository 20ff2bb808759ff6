// SPDX-License-Identifier: Apache-2.0
// MTP: the module behind the layers of some published checkpoints that guesses one further token,
// run as a head on the preceding model, its target. A row is the next token's embedding beside the
// previous token's state, each normed, mapped by a matrix to the width of a whole decoder layer of
// the target's kind. The target's output layer reads the normed result, or in Step-3.5 the module's
// own; it is also the next row's state, before that norm in DeepSeek-V3 and Step-3.5, after it
// in MiMo and Qwen3-Next. The first state is the input of the target's output layer, in Step-3.5
// that before the last norm. Only the first of several modules is used, repeatedly.
#pragma once

#include <string>

#include "engine/core/status.h"
#include "engine/models/model_spec.h"

namespace sluice {

// `configure` is null: a module has no configuration of its own (mtp_config()). Its checkpoint is
// CheckpointPart::kNextToken.
extern const ModelSpec kMtpSpec;

// Returns the configuration of this module, whose checkpoint is CheckpointPart::kNextToken, of such
// a target. kUnsupported, naming its path and what was found: a target with norms elsewhere than
// before its halves, with scaled halves, or without a layer that attends to every token.
Expected<ModelConfig> mtp_config(const ModelConfig& target, const Checkpoint& module);

}  // namespace sluice
