// SPDX-License-Identifier: Apache-2.0
// What --hf-overrides says of the model itself: keys put over those of config.json before it is
// read, as transformers and vLLM do, or, of rotations, over those of a GGUF file. Called once,
// while loading.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/core/status.h"
#include "engine/weights/metadata.h"

namespace sluice {

// Puts `overrides`, as model_overrides() returns them, over `root`, a config.json: over its text
// model's configuration, if that is an object inside. rope_scaling and rope_parameters are two
// names of one object, which is replaced as a whole; the base of the rotations stays unless it is
// stated. kInvalidArgument: they contradict each other, or what kinds of layers have of their own.
Expected<void> override_config(const std::string& overrides, nlohmann::json& root);

// Does the same for a GGUF file's keys: the length, and rotations that are not scaled, or linearly
// or by YaRN. kUnsupported names any other key, and kinds of scaling that a file has as tensors.
Expected<void> override_metadata(const std::string& overrides,
                                 bool has_rope_tensors,
                                 Metadata& metadata);

}  // namespace sluice
