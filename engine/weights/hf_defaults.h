// SPDX-License-Identifier: Apache-2.0
// What a config.json means by what it leaves out, and what it may not say.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/core/status.h"
#include "engine/weights/metadata.h"

namespace sluice {

// Sets the keys of metadata.h that `config` does not have at all to the values transformers' class
// of this type has. A key that is null is there: it says "none".
void take_defaults(const std::string& model_type, const nlohmann::json& config, Metadata& metadata);

// kUnsupported: a key asks for what no model here does.
Expected<void> check_unsupported(const nlohmann::json& config,
                                 const std::string& model_type,
                                 const std::string& file_name);

}  // namespace sluice
