// SPDX-License-Identifier: Apache-2.0
#include "server/prompt/messages.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "server/json/json_fields.h"
#include "server/json/json_reader.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

tl::unexpected<Error> invalid(std::string message) {
  return make_error(ErrorCode::kInvalidArgument, std::move(message), "messages");
}

bool is_empty(const Json& value) {
  return value.is_null() || (value.is_structured() && value.empty()) || value == "";
}

// Returns the member with the text of a part of this type; empty: none that is rendered.
std::string_view text_member(std::string_view type) {
  if (type == "text" || type == "input_text" || type == "output_text") return "text";
  return type == "refusal" ? "refusal" : "";
}

Expected<Json> normal_part(const Json& part, const std::string& where) {
  if (part.is_string()) return Json({{"type", "text"}, {"text", part}});
  if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
    return invalid(where + " must be a string or an object with a type.");
  }
  const auto& type = part["type"].get_ref<const std::string&>();
  const std::string member(text_member(type));
  if (member.empty()) {
    return make_error(ErrorCode::kUnsupported,
                      where + " has type '" + show_text(type) + "'; only 'text' is supported.",
                      "messages");
  }
  if (!part.contains(member) || !part[member].is_string()) {
    return invalid(where + "." + member + " must be a string.");
  }
  return Json({{"type", "text"}, {"text", part[member]}});
}

Expected<Json> normal_parts(const Json& given, const std::string& place) {
  Json parts = Json::array();
  for (size_t i = 0; i < given.size(); ++i) {
    SLUICE_TRY(Json part, normal_part(given[i], place + "[" + std::to_string(i) + "]"));
    parts.push_back(std::move(part));
  }
  return parts;
}

Expected<Json> normal_content(const Json& message, const std::string& place) {
  const auto found = message.find("content");
  if (found == message.end()) {
    const Json& role = message["role"];
    if (role == "assistant" || role == "tool" || role == "function") return Json("");
    return invalid(place + ".content is missing.");
  }
  if (found->is_null()) return Json("");
  if (found->is_string()) return *found;
  if (found->is_array()) return normal_parts(*found, place + ".content");
  return invalid(place + ".content must be a string or an array of parts, got " +
                 show_value(*found) + ".");
}

// Tells whether an integer exceeds the 64 bits of templates' integers.
bool has_large_integer(const Json& json) {
  if (json.is_structured()) return std::ranges::any_of(json, has_large_integer);
  return json.is_number_unsigned() &&
         json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

Json normal_arguments(const Json& function, const CallArgumentRules& rules) {
  const Json* arguments = find_field(function, "arguments");
  if (arguments == nullptr) return Json::object();
  if (!arguments->is_string()) {
    return has_large_integer(*arguments) ? Json(arguments->dump()) : *arguments;
  }
  const auto& text = arguments->get_ref<const std::string&>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
  const auto parsed = parse_written_json(text, rules.max_depth);
  if (!parsed) return text;
  if (parsed->is_null()) return Json::object();
  const bool is_parsed = !rules.keeps_text && parsed->is_object() && !has_large_integer(*parsed);
  return is_parsed ? *parsed : Json(text);
}

// Returns a required member: null counts as an empty text.
Json required_text(const Json& value) { return value.is_null() ? Json("") : value; }

// Normalizes a function. Members keep their order, which templates that print it show. No two have
// one name, so that none is looked up.
Json normal_function(const Json& given, const CallArgumentRules& rules) {
  Json arguments = normal_arguments(given, rules);
  Json function = Json::object();
  for (const auto& [name, value] : given.items()) {
    if (name == "arguments") {
      append_member(function, name, arguments);
    } else if (name == "name") {
      append_member(function, name, required_text(value));
    } else if (!is_empty(value)) {
      append_member(function, name, value);
    }
  }
  if (!function.contains("name")) function["name"] = "";
  if (!function.contains("arguments")) function["arguments"] = std::move(arguments);
  return function;
}

Expected<Json> normal_call(const Json& given,
                           const std::string& place,
                           const CallArgumentRules& rules) {
  const Json* function = given.is_object() ? find_field(given, "function") : nullptr;
  if (function == nullptr || !function->is_object()) {
    return invalid(place + ".tool_calls entries must have a function object.");
  }
  Json call = Json::object();
  for (const auto& [name, value] : given.items()) {
    if (name == "function") {
      append_member(call, name, normal_function(value, rules));
    } else if (name == "id") {
      append_member(call, name, required_text(value));
    } else if (!is_empty(value)) {
      append_member(call, name, value);
    }
  }
  return call;
}

Expected<Json> normal_calls(const Json& given,
                            const std::string& place,
                            const CallArgumentRules& rules) {
  if (!given.is_array()) return invalid(place + ".tool_calls must be an array.");
  Json calls = Json::array();
  for (const Json& call : given) {
    SLUICE_TRY(Json normal, normal_call(call, place, rules));
    calls.push_back(std::move(normal));
  }
  return calls;
}

// Names of a message's reasoning; the first that is not null counts.
constexpr std::array<const char*, 3> kReasoningFields = {
    "reasoning_content", "thinking", "reasoning"};

const Json* find_reasoning(const Json& message) {
  for (const char* name : kReasoningFields) {
    if (const Json* reasoning = find_field(message, name)) return reasoning;
  }
  return nullptr;
}

// Returns the call of a message in OpenAI's older form; null: it has none.
Expected<Json> older_call(const Json& message,
                          const std::string& place,
                          const CallArgumentRules& rules) {
  const Json* function = find_field(message, "function_call");
  const Json* calls = find_field(message, "tool_calls");
  if (function == nullptr || (calls != nullptr && !calls->empty())) return Json();
  if (!function->is_object()) return invalid(place + ".function_call must be an object.");
  if (function->empty()) return Json();
  return Json::array({{{"type", "function"}, {"function", normal_function(*function, rules)}}});
}

Expected<Json> normal_message(const Json& given,
                              const std::string& place,
                              const CallArgumentRules& rules) {
  if (!given.is_object()) return invalid(place + " must be an object.");
  const Json* role = find_field(given, "role");
  if (role == nullptr || !role->is_string() || is_empty(*role)) {
    return invalid(place + ".role must be a string that is not empty.");
  }
  if (const Json* audio = find_field(given, "audio"); audio != nullptr && !is_empty(*audio)) {
    return make_error(ErrorCode::kUnsupported,
                      place + ".audio is not supported; send the answer's text.",
                      "messages");
  }
  SLUICE_TRY(Json content, normal_content(given, place));
  SLUICE_TRY(Json older_calls, older_call(given, place, rules));
  const Json* reasoning = find_reasoning(given);
  const bool has_reasoning = reasoning != nullptr && !is_empty(*reasoning);
  Json message = Json::object();
  // The member is where transformers puts it, which templates that print the whole message
  // show.
  if (has_reasoning && find_field(given, "thinking") == nullptr) message["thinking"] = *reasoning;
  for (const auto& [name, value] : given.items()) {
    if (name == "content") {
      append_member(message, name, content);
    } else if (name == "function_call") {
      if (!older_calls.is_null()) append_member(message, "tool_calls", older_calls);
    } else if (name == "tool_calls" && !value.is_null()) {
      SLUICE_TRY(Json calls, normal_calls(value, place, rules));
      if (!calls.empty()) append_member(message, name, std::move(calls));
    } else if (!is_empty(value)) {
      append_member(message, name, value);
    }
  }
  if (has_reasoning) message["reasoning_content"] = *reasoning;
  if (!message.contains("content")) message["content"] = std::move(content);
  return message;
}

}  // namespace

Expected<Json> normal_messages(const Json& given, const CallArgumentRules& rules) {
  if (!given.is_array() || given.empty()) {
    return invalid("messages must be an array of at least one message.");
  }
  Json messages = Json::array();
  for (size_t i = 0; i < given.size(); ++i) {
    SLUICE_TRY(Json message,
               normal_message(given[i], "messages[" + std::to_string(i) + "]", rules));
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace sluice
