// SPDX-License-Identifier: Apache-2.0
// Small JSON files beside a model's weights.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/core/status.h"

namespace sluice {

// The most bytes of a configuration's file; one that names the scheme of each matrix has megabytes.
inline constexpr size_t kMaxConfigBytes = size_t{64} << 20;

// Parses a file of at most kMaxConfigBytes and few levels; null: there is no such file.
Expected<nlohmann::json> read_json_file(const std::string& path);

// Makes the error "FILE: FIELD: found FOUND, expected EXPECTED" (kUnsupported).
tl::unexpected<Error> wrong_in_file(const std::string& file,
                                    const std::string& field,
                                    const std::string& found,
                                    const std::string& expected);

}  // namespace sluice
