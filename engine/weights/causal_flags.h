// SPDX-License-Identifier: Apache-2.0
// What --hf-overrides and config.json say of whether tokens of a pooling model see later ones. Read
// once, while loading.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "engine/core/status.h"

namespace sluice {

struct Config;
class Checkpoint;

// Returns is_causal of --hf-overrides; none: it is not there. kInvalidArgument: it is no boolean,
// or the flag no object.
Expected<std::optional<bool>> causal_override(const Config& config);

// kUnsupported, with the flag that is needed: `config`, a config.json, names a class that is code
// beside the weights and may let tokens of a decoder see later ones, as that of gte-Qwen2 does, and
// neither file nor flag says whether they do.
Expected<void> check_remote_class(const Checkpoint& checkpoint, const nlohmann::json& config);

}  // namespace sluice
