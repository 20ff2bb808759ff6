// SPDX-License-Identifier: Apache-2.0
// The rules of a request for calls: `tool_choice` and `parallel_tool_calls` of OpenAI's chat API.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "server/tools/families.h"
#include "server/tools/tool_schemas.h"

namespace sluice {

struct ValidationContext;

// A request's rules for calls; constant once read.
struct ToolPlan {
  bool parses_calls = false;                   // calls are parsed from the output
  bool may_call_several = true;                // false: the answer ends with its first call
  bool must_call = false;                      // the answer consists of calls only
  bool binds_calls = false;                    // a grammar constrains the answer
  bool is_named = false;                       // the request names the one function to call
  std::vector<std::string> allowed;            // names that may be called; empty: all
  std::shared_ptr<const ToolSchemas> schemas;  // null: no tools
  CallIdRule id_rule = CallIdRule::kAny;
  int64_t num_earlier_calls = 0;  // in the conversation's history
};

// `body`: passed read_tool_list().
Expected<ToolPlan> read_tool_plan(const ValidationContext& context,
                                  const nlohmann::ordered_json& body);

}  // namespace sluice
