// SPDX-License-Identifier: Apache-2.0
#include "server/api/response_tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "server/front/ignored_arguments.h"
#include "server/json/json_fields.h"
#include "server/json/json_reader.h"
#include "server/prompt/tool_list.h"
#include "server/tools/json_text.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kInput = "input";
constexpr int32_t kMaxArgumentDepth = 8;

// The text that tells a model how to write a custom tool's input.
Expected<std::string> input_rule(const Json& tool, const std::string& place) {
  const Json* format = find_field(tool, "format");
  if (format == nullptr) return std::string("The tool's input, as free text.");
  const std::string type = string_member(*format, "type");
  if (type == "text") return std::string("The tool's input, as free text.");
  const std::string syntax = string_member(*format, "syntax");
  const std::string definition = string_member(*format, "definition");
  if (type != "grammar" || (syntax != "lark" && syntax != "regex") || definition.empty()) {
    return invalid(place +
                       ".format must be text, or a grammar with a definition whose syntax "
                       "is lark or regex.",
                   "tools");
  }
  const std::string kind = syntax == "lark" ? "Lark grammar" : "regular expression";
  return "The tool's input, as text that matches this " + kind + ":\n" + definition;
}

class Reader {
 public:
  Reader(IgnoredArguments& ignored, Json& chat_tools)
      : ignored_(ignored), chat_tools_(chat_tools) {}

  // `space`: the namespace that the tools are in; empty: none.
  Expected<void> read(const Json& tools, const std::string& space, const std::string& place);

  std::vector<ResponseTool> take() { return std::move(found_); }

 private:
  Expected<void> read_tool(const Json& tool, const std::string& space, const std::string& place);
  // Adds the constraint of a custom tool's input where a call is forced: a regular expression,
  // which the engine omits with a line in the log if it has no exact form inside a JSON string. A
  // Lark grammar is only shown to the model, and reported.
  void bind_input(const Json& tool, const std::string& name, Json& input);
  Expected<void> add(ResponseTool tool, Json function, const std::string& place);

  IgnoredArguments& ignored_;
  Json& chat_tools_;
  std::vector<ResponseTool> found_;
};

Expected<void> Reader::read(const Json& tools, const std::string& space, const std::string& place) {
  if (!tools.is_array()) {
    return invalid(place + " must be an array.", "tools");
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    SLUICE_TRY_VOID(read_tool(tools[i], space, place + "[" + std::to_string(i) + "]"));
  }
  return {};
}

Expected<void> Reader::read_tool(const Json& tool,
                                 const std::string& space,
                                 const std::string& place) {
  if (!tool.is_object()) {
    return invalid(place + " must be an object.", "tools");
  }
  const std::string type = string_member(tool, "type");
  const std::string name = string_member(tool, "name");
  if (type == "namespace" && space.empty()) {
    const Json* inner = find_field(tool, "tools");
    return read(inner != nullptr ? *inner : Json(), name, place + ".tools");
  }
  ResponseTool found = {
      chat_function_name(space, name), ResponseTool::Kind::kFunction, space, name};
  Json function = {{"name", found.function}};
  if (const Json* description = find_field(tool, "description")) {
    function["description"] = *description;
  }
  if (type == "function") {
    for (const char* member : {"parameters", "strict"}) {
      if (const Json* value = find_field(tool, member)) function[member] = *value;
    }
    return add(std::move(found), std::move(function), place);
  }
  if (type == "custom") {
    found.kind = ResponseTool::Kind::kCustom;
    SLUICE_TRY(std::string rule, input_rule(tool, place));
    Json input = {{"type", "string"}, {"description", std::move(rule)}};
    bind_input(tool, name, input);
    function["parameters"] = {{"type", "object"},
                              {"properties", {{kInput, std::move(input)}}},
                              {"required", Json::array({kInput})},
                              {"additionalProperties", false}};
    return add(std::move(found), std::move(function), place);
  }
  if (type.empty()) {
    return invalid(place + " must have a type.", "tools");
  }
  return ignored_.add("tools." + type);
}

void Reader::bind_input(const Json& tool, const std::string& name, Json& input) {
  const Json* format = find_field(tool, "format");
  if (format == nullptr || string_member(*format, "type") != "grammar") return;
  if (string_member(*format, "syntax") == "regex") {
    input["pattern"] = "^(?:" + string_member(*format, "definition") + ")$";
  } else {
    ignored_.note("tools." + name + ".format");
  }
}

Expected<void> Reader::add(ResponseTool tool, Json function, const std::string& place) {
  // Before the search below, which is linear.
  if (found_.size() == kMaxTools) {
    return invalid("tools may have at most " + std::to_string(kMaxTools) +
                       " functions and custom tools, those in namespaces included.",
                   "tools");
  }
  if (find_tool(found_, tool.function) != nullptr) {
    return invalid(place + ".name is that of an earlier tool: " + show_text(tool.function) + ".",
                   "tools");
  }
  found_.push_back(std::move(tool));
  chat_tools_.push_back({{"type", "function"}, {"function", std::move(function)}});
  return {};
}

// The input as far as arguments that were cut have it; nullopt: they are no custom tool's.
std::optional<std::string> cut_input(std::string_view arguments) {
  for (const std::string_view piece : {"{", "\"input\"", ":", "\""}) {
    arguments.remove_prefix(std::min(arguments.find_first_not_of(" \t\r\n"), arguments.size()));
    if (piece.starts_with(arguments)) return std::string();
    if (!arguments.starts_with(piece)) return std::nullopt;
    arguments.remove_prefix(piece.size());
  }
  std::string input;
  JsonString string;
  for (const char c : arguments) {
    if (string.feed(c, input)) break;
  }
  return input;
}

// The chat's form of a choice of one tool.
Expected<Json> chosen_function(const Json& choice) {
  const std::string type = string_member(choice, "type");
  if (type != "function" && type != "custom") {
    return unsupported(
        "tool_choice asks for a tool of type '" + show_text(type) +
            "', which this server does not run; ask for a function or a custom tool.",
        "tool_choice");
  }
  const std::string name =
      chat_function_name(string_member(choice, "namespace"), string_member(choice, "name"));
  return Json({{"type", "function"}, {"function", {{"name", name}}}});
}

}  // namespace

std::string chat_function_name(std::string_view space, std::string_view name) {
  std::string function(space);
  if (!space.empty() && !space.ends_with("__")) function += "__";
  return function.append(name);
}

std::string custom_arguments(std::string_view input) {
  return Json({{kInput, input}}).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string custom_input(const std::string& arguments) {
  const auto parsed = parse_written_json(arguments, kMaxArgumentDepth);
  if (!parsed) return cut_input(arguments).value_or(arguments);
  if (!parsed->is_object()) return arguments;
  const Json* input = find_field(*parsed, kInput);
  return input != nullptr && input->is_string() ? input->get<std::string>() : arguments;
}

const ResponseTool* find_tool(std::span<const ResponseTool> tools, std::string_view function) {
  const auto tool = std::ranges::find(tools, function, &ResponseTool::function);
  return tool != tools.end() ? &*tool : nullptr;
}

Expected<std::vector<ResponseTool>> read_response_tools(const Json& tools,
                                                        IgnoredArguments& ignored,
                                                        Json& chat_tools) {
  Reader reader(ignored, chat_tools);
  SLUICE_TRY_VOID(reader.read(tools, {}, "tools"));
  return reader.take();
}

Expected<Json> read_response_choice(const Json& choice) {
  if (!choice.is_object()) return choice;
  if (string_member(choice, "type") != "allowed_tools") return chosen_function(choice);
  const Json* tools = find_field(choice, "tools");
  if (tools == nullptr || !tools->is_array()) {
    return invalid("tool_choice.tools must be an array.", "tool_choice");
  }
  Json list = Json::array();
  for (const Json& tool : *tools) {
    SLUICE_TRY(Json function, chosen_function(tool.is_object() ? tool : Json::object()));
    list.push_back(std::move(function));
  }
  const Json* mode = find_field(choice, "mode");
  return Json({{"type", "allowed_tools"},
               {"allowed_tools",
                {{"mode", mode != nullptr ? *mode : Json("auto")}, {"tools", std::move(list)}}}});
}

}  // namespace sluice
