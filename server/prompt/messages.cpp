// SPDX-License-Identifier: Apache-2.0
#include "server/prompt/messages.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
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

// The members that say something.
Json without_empty(const Json& given) {
  Json kept = Json::object();
  for (const auto& [name, value] : given.items()) {
    if (!is_empty(value)) kept[name] = value;
  }
  return kept;
}

Expected<Json> normal_parts(const Json& given, const std::string& place) {
  Json parts = Json::array();
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string where = place + "[" + std::to_string(i) + "]";
    const Json& part = given[i];
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      return invalid(where + " must be an object with a type.");
    }
    const auto& type = part["type"].get_ref<const std::string&>();
    if (type != "text") {
      return make_error(ErrorCode::kUnsupported,
                        where + " has type '" + show_text(type) + "'; only 'text' is supported.",
                        "messages");
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      return invalid(where + ".text must be a string.");
    }
    parts.push_back({{"type", "text"}, {"text", part["text"]}});
  }
  return parts;
}

Expected<Json> normal_content(const Json& message, const std::string& place) {
  const auto found = message.find("content");
  if (found == message.end()) {
    if (message["role"] == "assistant") return Json("");
    return invalid(place + ".content is missing.");
  }
  if (found->is_null()) return Json("");
  if (found->is_string()) return *found;
  if (found->is_array()) return normal_parts(*found, place + ".content");
  return invalid(place + ".content must be a string or an array of parts, got " +
                 show_value(*found) + ".");
}

// Templates' integers have 64 bits.
bool has_large_integer(const Json& json) {
  if (json.is_structured()) return std::ranges::any_of(json, has_large_integer);
  return json.is_number_unsigned() &&
         json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

Json normal_arguments(const Json& function, int32_t max_depth) {
  const Json* arguments = find_field(function, "arguments");
  if (arguments == nullptr) return Json::object();
  if (!arguments->is_string()) return *arguments;
  const auto& text = arguments->get_ref<const std::string&>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
  const auto parsed = parse_json(text, max_depth);
  if (!parsed) return text;
  if (parsed->is_null()) return Json::object();
  return parsed->is_object() && !has_large_integer(*parsed) ? *parsed : Json(text);
}

Expected<Json> normal_call(const Json& given, const std::string& place, int32_t max_depth) {
  const Json* function = given.is_object() ? find_field(given, "function") : nullptr;
  if (function == nullptr || !function->is_object()) {
    return invalid(place + ".tool_calls entries must have a function object.");
  }
  Json arguments = normal_arguments(*function, max_depth);
  Json call = without_empty(given);
  Json& kept = call["function"];
  // Where they were: templates that print the function show it.
  kept = Json::object();
  for (const auto& [name, value] : function->items()) {
    if (name == "arguments") {
      kept[name] = arguments;
    } else if (!is_empty(value)) {
      kept[name] = value;
    }
  }
  if (!kept.contains("arguments")) kept["arguments"] = std::move(arguments);
  return call;
}

Expected<Json> normal_calls(const Json& given, const std::string& place, int32_t max_depth) {
  if (!given.is_array()) return invalid(place + ".tool_calls must be an array.");
  Json calls = Json::array();
  for (const Json& call : given) {
    SLUICE_TRY(Json normal, normal_call(call, place, max_depth));
    calls.push_back(std::move(normal));
  }
  return calls;
}

Expected<Json> normal_message(const Json& given, const std::string& place, int32_t max_depth) {
  if (!given.is_object()) return invalid(place + " must be an object.");
  const Json* role = find_field(given, "role");
  if (role == nullptr || !role->is_string() || is_empty(*role)) {
    return invalid(place + ".role must be a string that is not empty.");
  }
  SLUICE_TRY(Json content, normal_content(given, place));
  Json message = Json::object();
  for (const auto& [name, value] : given.items()) {
    if (name == "content") {
      message[name] = content;
    } else if (name == "tool_calls" && !value.is_null()) {
      SLUICE_TRY(Json calls, normal_calls(value, place, max_depth));
      if (!calls.empty()) message[name] = std::move(calls);
    } else if (!is_empty(value)) {
      message[name] = value;
    }
  }
  if (!message.contains("content")) message["content"] = std::move(content);
  return message;
}

}  // namespace

Expected<Json> normal_messages(const Json& given, int32_t max_depth) {
  if (!given.is_array() || given.empty()) {
    return invalid("messages must be an array of at least one message.");
  }
  Json messages = Json::array();
  for (size_t i = 0; i < given.size(); ++i) {
    SLUICE_TRY(Json message,
               normal_message(given[i], "messages[" + std::to_string(i) + "]", max_depth));
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace sluice
