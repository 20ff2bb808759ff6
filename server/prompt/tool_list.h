// SPDX-License-Identifier: Apache-2.0
// The list of a request's tools, checked and as the template gets it: `tools` of OpenAI's chat API.
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/core/status.h"

namespace sluice {

struct ValidationContext;

inline constexpr size_t kMaxTools = 512;  // of a request

// Returns the request's `tools`, unmodified, for the template: null if there are none.
// kInvalidArgument: one is broken, or two have one name; kUnsupported: one is not a function, or
// the chat template shows no tools, which only `tool_choice: none` makes harmless.
Expected<nlohmann::ordered_json> read_tool_list(const ValidationContext& context,
                                                const nlohmann::ordered_json& body);

// Tells whether `tool_choice` leaves the tools to the model.
bool may_call(const nlohmann::ordered_json& body);

// Returns null if there are no tools. Many clients send an empty list, which means the same.
const nlohmann::ordered_json* find_tools(const nlohmann::ordered_json& body);

// Returns the function of `value`, an object {"type": "function", "function": {"name": ...}}.
// Errors say `place` for the value and name the field `param`.
Expected<const nlohmann::ordered_json*> function_of(const nlohmann::ordered_json& value,
                                                    const std::string& place,
                                                    const std::string& param);

}  // namespace sluice
