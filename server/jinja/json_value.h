// SPDX-License-Identifier: Apache-2.0
// JSON documents to values of a render.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "server/jinja/runtime.h"

namespace sluice::jinja {

// Strings, scalars and brackets get `origin`. kResourceExhausted where nesting is too deep.
Result json_to_value(Runtime& runtime, const nlohmann::ordered_json& json, Origin origin);
// Parses. Where it is not JSON: `otherwise`, or without it kInvalidArgument.
Result parse_json(Runtime& runtime,
                  std::string_view text,
                  Origin origin,
                  const Value* otherwise);

}  // namespace sluice::jinja
