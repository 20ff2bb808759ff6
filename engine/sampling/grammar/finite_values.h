// SPDX-License-Identifier: Apache-2.0
// Whether schemas have a value that ends, among definitions that refer to each other.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace sluice {

// Schemas are as the gate writes them: "#/$defs/d7" is the definition 7.
[[nodiscard]] std::vector<bool> finite_definitions(
    const std::vector<nlohmann::ordered_json>& definitions);
[[nodiscard]] bool has_finite_value(const nlohmann::ordered_json& schema,
                                    const std::vector<bool>& finite);

}  // namespace sluice
