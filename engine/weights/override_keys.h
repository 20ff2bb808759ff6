// SPDX-License-Identifier: Apache-2.0
// The keys of --hf-overrides: those of how texts become vectors or scores (pooling_files.h,
// causal_flags.h) and those of what the model is (config_overrides.h). Read once, while loading.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/core/status.h"

namespace sluice {

// Returns the object of --hf-overrides. kInvalidArgument: the text is none. kUnsupported names a
// key that nothing reads.
Expected<nlohmann::json> parse_overrides(const std::string& text);

// Returns the keys that say what the model is, as the text of a JSON object with sorted keys;
// empty: there are none, or no flag. Errors as above.
Expected<std::string> model_overrides(const std::string& text);

}  // namespace sluice
