// SPDX-License-Identifier: Apache-2.0
// Structural tags, the library's notation for JSON inside a text: their schemas go through
// the gate (schema_gate.h) like any other. Two members beside a `json_schema` are for
// the gate and are taken out: `is_best_effort`, a boolean for that schema alone, and `owner`, a
// text that its errors name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/sampling/grammar/schema_limits.h"
#include "engine/sampling/grammar/schema_loss.h"

namespace sluice {

// Returns the tag to compile. Any thread. kInvalidArgument: not JSON, the older form without
// `format`, or beyond a limit; other errors are those of gate_schema().
[[nodiscard]] Expected<std::string> gate_structural_tag(
    std::string_view tag,
    bool is_best_effort,
    const SchemaLimits& limits,
    std::vector<LeftOutKeyword>* left_out = nullptr);

}  // namespace sluice
