// SPDX-License-Identifier: Apache-2.0
// The implied values of keys that a config.json omits, and the values that are unsupported.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/core/status.h"
#include "engine/weights/metadata.h"

namespace sluice {

// Sets the keys of metadata.h that `config` omits to the defaults of transformers' class of this
// type. A null key is present: it means "none".
void take_defaults(const std::string& model_type, const nlohmann::json& config, Metadata& metadata);

// kUnsupported: a key asks for what no model here implements.
Expected<void> check_unsupported(const nlohmann::json& config,
                                 const std::string& model_type,
                                 const std::string& file_name);

}  // namespace sluice
