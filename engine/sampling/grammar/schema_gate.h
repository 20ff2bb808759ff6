// SPDX-License-Identifier: Apache-2.0
// Checks and rewrites JSON schemas before the grammar library reads them. The library silently
// ignores much of JSON Schema, and may take the first of several keywords for all; so a schema is
// rewritten into one that it reads exactly, or is refused by keyword and place. The result is never
// wider than the schema. It is narrower in this alone: properties appear in the schema's order,
// objects and arrays have nothing that the schema does not name, and numbers between bounds other
// than 0, or 0 and 1, have six places and no exponent.
//
// Sizes are counted before anything is expanded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/sampling/grammar/schema_limits.h"
#include "engine/sampling/grammar/schema_loss.h"

namespace sluice {

// Returns the schema to compile. `is_best_effort`: parts without an exact form are left out, as by
// OpenAI without `strict`. Any thread. kInvalidArgument: not a schema, or beyond a limit;
// kUnsupported: names keyword and JSON pointer. Appends to `left_out`, where there is one, what is
// left out, and bounds of numbers that leave valid ones out, up to 64 keywords.
[[nodiscard]] Expected<std::string> gate_schema(std::string_view schema,
                                                bool is_best_effort,
                                                const SchemaLimits& limits,
                                                std::vector<LeftOutKeyword>* left_out = nullptr);

// Returns a client's regular expression to compile (exact_regex.h).
[[nodiscard]] Expected<std::string> gate_regex(std::string_view regex, const SchemaLimits& limits);

}  // namespace sluice
