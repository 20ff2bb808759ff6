// SPDX-License-Identifier: Apache-2.0
// Tools as declarations of TypeScript, which Kimi-K2.5 and its successors have in their prompts:
// the variable `tools_ts_str` of their templates, as tool_declaration_ts.py beside their weights
// writes it. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace sluice {

// Returns the declarations of checked tools (read_tool_list), whose keys are sorted. Nothing: a
// schema has what the published code refuses, whose caller then leaves the tools to the template's
// JSON.
std::optional<std::string> typescript_of_tools(const nlohmann::ordered_json& tools);

// Returns the document with the keys of each object ascending by code point.
nlohmann::ordered_json with_sorted_keys(nlohmann::ordered_json json);

}  // namespace sluice
