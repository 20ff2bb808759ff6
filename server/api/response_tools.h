// SPDX-License-Identifier: Apache-2.0
// The tools of a Responses request and the functions by which the chat knows them: functions alone
// or in a namespace, and custom tools, whose input is free text. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

class IgnoredArguments;

struct ResponseTool {
  enum class Kind : uint8_t { kFunction, kCustom };

  std::string function;  // the chat's name
  Kind kind = Kind::kFunction;
  std::string space;  // its namespace; empty: none
  std::string name;   // the client's name, inside the namespace
};

// Returns the chat's name of a tool: the name alone, or the namespace, "__" and the name.
std::string chat_function_name(std::string_view space, std::string_view name);

// Returns the arguments by which a chat calls a custom tool with this input, as JSON text.
std::string custom_arguments(std::string_view input);

// Returns the input of a call of a custom tool: the `input` of the arguments, also if they were cut
// in the middle. Those that cannot become an object with a string `input` are the input themselves.
std::string custom_input(const std::string& arguments);

// Null: no tool is called so.
const ResponseTool* find_tool(std::span<const ResponseTool> tools, std::string_view function);

// Appends the functions of `tools` to the array `chat_tools`. Tools that OpenAI's servers run
// themselves are left out and go to `ignored`. kInvalidArgument: a tool is broken, two get one name
// in the chat, or there are more than kMaxTools.
Expected<std::vector<ResponseTool>> read_response_tools(const nlohmann::ordered_json& tools,
                                                        IgnoredArguments& ignored,
                                                        nlohmann::ordered_json& chat_tools);

// Returns the chat's form of `tool_choice`. kUnsupported: it asks for a tool that was left out.
Expected<nlohmann::ordered_json> read_response_choice(const nlohmann::ordered_json& choice);

}  // namespace sluice
