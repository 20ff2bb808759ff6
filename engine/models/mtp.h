// SPDX-License-Identifier: Apache-2.0
// MTP: the module that published checkpoints have behind their layers to guess one further token,
// as a head on the model before it, its target. A row has the embedding of the next token beside a
// state of the token before, each normed, through a matrix onto the width of a whole decoder layer
// of the target's kind. What comes out is normed and read by the target's output layer; the next
// row has it as its state, as DeepSeek-V3 has before that norm, MiMo and Qwen3-Next behind it. The
// first state is what the target's output layer reads. Only the first of several modules is used,
// again and again.
#pragma once

#include <string>

#include "engine/core/status.h"
#include "engine/models/model.h"

namespace sluice {

// `configure` is none: a module has no configuration of its own (mtp_config()). Its checkpoint is
// CheckpointPart::kNextToken.
extern const ModelSpec kMtpSpec;

// What a module behind such a target is. kUnsupported, naming `path` and what was found: a target
// with experts, with norms elsewhere than before its halves, scaled halves, or no layer that
// attends to every token.
Expected<ModelConfig> mtp_config(const ModelConfig& target, const std::string& path);

}  // namespace sluice
