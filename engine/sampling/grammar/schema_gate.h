// SPDX-License-Identifier: Apache-2.0
// JSON schemas before the grammar library reads them. It leaves much of JSON Schema out without a
// word, and takes the first keyword of several for all; so a schema is rewritten here into one that
// it reads exactly, or is refused by keyword and place. What is generated is never wider than the
// schema; it may be narrower: properties come in the schema's order, and objects and arrays have
// nothing that the schema does not name.
//
// Sizes are counted before anything is expanded.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "engine/sampling/grammar/schema_limits.h"

namespace sluice {

// The schema to compile. `is_best_effort`: what has no exact form is left out, as OpenAI does
// without `strict`. Any thread. kInvalidArgument: not a schema, or beyond a limit; kUnsupported:
// names keyword and JSON pointer.
[[nodiscard]] Expected<std::string> gate_schema(std::string_view schema,
                                                bool is_best_effort,
                                                const SchemaLimits& limits);

}  // namespace sluice
