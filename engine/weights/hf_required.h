// SPDX-License-Identifier: Apache-2.0
// Values of config.json that no model here implements.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/core/status.h"
#include "engine/weights/file_spec.h"

namespace sluice {

// Whether a layer of this type, of layer_types, keeps a state.
bool is_recurrent_type(const nlohmann::json& type);

// kUnsupported: a key asks for what no model of this family implements. `has_window`: the model has
// a sliding window, stated or implied.
Expected<void> check_required(const nlohmann::json& config,
                              const FileSpec& spec,
                              bool has_window,
                              const std::string& file_name);

}  // namespace sluice
