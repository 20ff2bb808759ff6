// SPDX-License-Identifier: Apache-2.0
// Small JSON files beside a model's weights.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/core/status.h"

namespace sluice {

// Parses a file of at most 1 MiB and few levels; null: there is no such file.
Expected<nlohmann::json> read_json_file(const std::string& path);

// Makes the error "FILE: FIELD: found FOUND, expected EXPECTED" (kUnsupported).
tl::unexpected<Error> wrong_in_file(const std::string& file,
                                    const std::string& field,
                                    const std::string& found,
                                    const std::string& expected);

}  // namespace sluice
