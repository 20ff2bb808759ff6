// SPDX-License-Identifier: Apache-2.0
// The request's side of tools: `tools`, `tool_choice` and `parallel_tool_calls` as OpenAI's chat
// API has them. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "server/parse/families.h"
#include "server/parse/tool_schemas.h"

namespace sluice {

struct ValidationContext;

// What a request says of calls; constant once read.
struct ToolPlan {
  bool parses_calls = false;                   // calls are looked for in the output
  bool may_call_several = true;                // false: the answer ends with its first call
  bool must_call = false;                      // the answer is calls and nothing else
  bool binds_calls = false;                    // a grammar says what the answer may be
  bool is_named = false;                       // of the one function that the request names
  std::vector<std::string> allowed;            // names that may be called; empty: all
  std::shared_ptr<const ToolSchemas> schemas;  // null: no tools
  CallIdRule id_rule = CallIdRule::kAny;
  int64_t num_earlier_calls = 0;  // in the conversation's history
};

// The request's `tools`, unmodified, for the template: null where there are none. kInvalidArgument:
// one is broken, two have one name; kUnsupported: one is no function, or the chat template shows no
// tools, which only `tool_choice: none` makes harmless.
Expected<nlohmann::ordered_json> read_tool_list(const ValidationContext& context,
                                                const nlohmann::ordered_json& body);

// `body` passed read_tool_list().
Expected<ToolPlan> read_tool_plan(const ValidationContext& context,
                                  const nlohmann::ordered_json& body);

}  // namespace sluice
