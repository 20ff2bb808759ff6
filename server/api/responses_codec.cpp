// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses_codec.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string string_member(const Json& object, const char* name) {
  const Json* value = find_field(object, name);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

// An assistant's turn comes as several items: reasoning, messages, calls. They are one message.
class Conversation {
 public:
  explicit Conversation(Json messages) : messages_(std::move(messages)) {}

  Expected<void> add(const Json& item, const std::string& place);
  Json take();

 private:
  Expected<void> add_message(const Json& item, const std::string& place);
  Expected<void> add_call(const Json& item, const std::string& place);
  Expected<void> add_output(const Json& item, const std::string& place);
  Expected<void> add_reasoning(const Json& item, const std::string& place);
  Json& turn();
  void end_turn();

  Json messages_;
  Json turn_;  // an assistant's message that may grow; null: none
};

Json& Conversation::turn() {
  if (turn_.is_null()) turn_ = {{"role", "assistant"}, {"content", nullptr}};
  return turn_;
}

void Conversation::end_turn() {
  if (!turn_.is_null()) messages_.push_back(std::move(turn_));
  turn_ = nullptr;
}

Json Conversation::take() {
  end_turn();
  return std::move(messages_);
}

Expected<void> Conversation::add(const Json& item, const std::string& place) {
  if (!item.is_object()) return invalid(place + " must be an object.", "input");
  const std::string type = string_member(item, "type");
  if (type.empty() || type == "message") return add_message(item, place);
  if (type == "function_call") return add_call(item, place);
  if (type == "function_call_output") return add_output(item, place);
  if (type == "reasoning") return add_reasoning(item, place);
  return unsupported(place + " has type '" + show_text(type) + "', which is not supported here.",
                     "input");
}

Expected<void> Conversation::add_message(const Json& item, const std::string& place) {
  const std::string role = string_member(item, "role");
  constexpr std::array<std::string_view, 4> kRoles = {"user", "assistant", "system", "developer"};
  if (std::ranges::find(kRoles, role) == kRoles.end()) {
    return invalid(place + ".role must be user, assistant, system or developer.", "input");
  }
  const Json* content = find_field(item, "content");
  if (content == nullptr || (!content->is_string() && !content->is_array())) {
    return invalid(place + ".content must be a string or an array of parts.", "input");
  }
  // Text behind calls begins another turn.
  if (role != "assistant" || turn().contains("tool_calls") || !turn()["content"].is_null()) {
    end_turn();
  }
  if (role == "assistant") {
    turn()["content"] = *content;
  } else {
    messages_.push_back({{"role", role}, {"content", *content}});
  }
  return {};
}

Expected<void> Conversation::add_call(const Json& item, const std::string& place) {
  const std::string id = string_member(item, "call_id");
  const std::string name = string_member(item, "name");
  const Json* arguments = find_field(item, "arguments");
  if (id.empty() || name.empty() || arguments == nullptr || !arguments->is_string()) {
    return invalid(place + " must have call_id, name and arguments, three strings.", "input");
  }
  Json& calls = turn()["tool_calls"];
  if (calls.is_null()) calls = Json::array();
  calls.push_back({{"id", id},
                   {"type", "function"},
                   {"function", {{"name", name}, {"arguments", *arguments}}}});
  return {};
}

Expected<void> Conversation::add_output(const Json& item, const std::string& place) {
  const std::string id = string_member(item, "call_id");
  const Json* output = find_field(item, "output");
  if (id.empty() || output == nullptr || (!output->is_string() && !output->is_array())) {
    return invalid(place + " must have call_id and output.", "input");
  }
  end_turn();
  messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", *output}});
  return {};
}

// Its text; what a server has encrypted for itself says nothing here.
Expected<void> Conversation::add_reasoning(const Json& item, const std::string& place) {
  const Json* content = find_field(item, "content");
  if (content == nullptr) content = find_field(item, "summary");
  if (content != nullptr && !content->is_array()) {
    return invalid(place + ".content must be an array of parts.", "input");
  }
  std::string text;
  for (size_t i = 0; content != nullptr && i < content->size(); ++i) {
    const Json& part = (*content)[i];
    if (part.is_object()) text += string_member(part, "text");
  }
  end_turn();
  if (!text.empty()) turn()["reasoning_content"] = std::move(text);
  return {};
}

Expected<Json> read_messages(const Json& body, const Json& earlier) {
  Json messages = Json::array();
  if (const Json* instructions = find_field(body, "instructions")) {
    if (!instructions->is_string())
      return invalid("instructions must be a string.", "instructions");
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  }
  messages.insert(messages.end(), earlier.begin(), earlier.end());
  const Json* input = find_field(body, "input");
  if (input == nullptr) return invalid("input is missing.", "input");
  Conversation conversation(std::move(messages));
  if (input->is_string()) {
    SLUICE_TRY_VOID(conversation.add({{"role", "user"}, {"content", *input}}, "input"));
    return conversation.take();
  }
  if (!input->is_array() || input->empty()) {
    return invalid("input must be a string or an array of items that is not empty.", "input");
  }
  for (size_t i = 0; i < input->size(); ++i) {
    SLUICE_TRY_VOID(conversation.add((*input)[i], "input[" + std::to_string(i) + "]"));
  }
  return conversation.take();
}

Json nested_function(const Json& tool) {
  Json function = Json::object();
  for (const char* name : {"name", "description", "parameters", "strict"}) {
    if (const Json* value = find_field(tool, name)) function[name] = *value;
  }
  return {{"type", "function"}, {"function", std::move(function)}};
}

Expected<Json> read_tools(const Json& tools, const std::string& place, const std::string& param) {
  if (!tools.is_array()) return invalid(place + " must be an array.", param);
  Json list = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = place + "[" + std::to_string(i) + "]";
    if (!tools[i].is_object()) return invalid(where + " must be an object.", param);
    const std::string type = string_member(tools[i], "type");
    if (type != "function") {
      return unsupported(
          where + " has type '" + show_text(type) + "'; only 'function' is supported.", param);
    }
    list.push_back(nested_function(tools[i]));
  }
  return list;
}

Expected<Json> read_choice(const Json& choice) {
  if (!choice.is_object()) return choice;
  const std::string type = string_member(choice, "type");
  if (type == "function") return nested_function(choice);
  if (type != "allowed_tools") {
    return unsupported(
        "tool_choice has type '" + show_text(type) + "', which is not supported here.",
        "tool_choice");
  }
  const Json* tools = find_field(choice, "tools");
  SLUICE_TRY(Json list,
             read_tools(tools != nullptr ? *tools : Json(), "tool_choice.tools", "tool_choice"));
  const Json* mode = find_field(choice, "mode");
  return Json({{"type", "allowed_tools"},
               {"allowed_tools",
                {{"mode", mode != nullptr ? *mode : Json("auto")}, {"tools", std::move(list)}}}});
}

// `text`: its format is the chat's response_format; how wordy an answer is, is up to the model.
Expected<void> add_text_format(const Json& text, Json& chat) {
  if (!text.is_object()) {
    return invalid("text must be an object, got " + show_value(text) + ".", "text");
  }
  const Json* format = find_field(text, "format");
  if (format == nullptr) return {};
  const std::string type = format->is_object() ? string_member(*format, "type") : std::string();
  if (type != "json_schema") {
    chat["response_format"] = *format;
    return {};
  }
  Json schema = *format;
  schema.erase("type");
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  return {};
}

}  // namespace

Expected<Json> chat_of_responses(const Json& body, const Json& earlier) {
  Json chat = Json::object();
  SLUICE_TRY(chat["messages"], read_messages(body, earlier));
  for (const char* name : {"model",
                           "temperature",
                           "top_p",
                           "top_k",
                           "seed",
                           "stream",
                           "parallel_tool_calls",
                           "chat_template_kwargs",
                           "kv_transfer_params",
                           "bootstrap_host",
                           "bootstrap_port",
                           "bootstrap_room"}) {
    if (const Json* value = find_field(body, name)) chat[name] = *value;
  }
  if (const Json* most = find_field(body, "max_output_tokens")) {
    chat["max_completion_tokens"] = *most;
  }
  const Json* tools = find_field(body, "tools");
  if (tools != nullptr && !tools->empty()) {
    SLUICE_TRY(chat["tools"], read_tools(*tools, "tools", "tools"));
  }
  if (const Json* choice = find_field(body, "tool_choice")) {
    SLUICE_TRY(chat["tool_choice"], read_choice(*choice));
  }
  const Json* reasoning = find_field(body, "reasoning");
  if (reasoning != nullptr && !reasoning->is_object()) {
    return invalid("reasoning must be an object.", "reasoning");
  }
  if (reasoning != nullptr) {
    if (const Json* effort = find_field(*reasoning, "effort")) chat["reasoning_effort"] = *effort;
  }
  if (const Json* text = find_field(body, "text")) SLUICE_TRY_VOID(add_text_format(*text, chat));
  return chat;
}

Json later_messages(const Json& messages, size_t first) {
  const auto has_role = [&](size_t i, const char* role) { return messages[i]["role"] == role; };
  while (first < messages.size() && !has_role(first, "user")) ++first;
  if (first >= messages.size()) return nullptr;
  Json kept = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_instruction = has_role(i, "system") || has_role(i, "developer");
    if (i >= first || is_instruction) kept.push_back(messages[i]);
  }
  return kept;
}

std::span<const FieldName> responses_names() {
  static constexpr std::array<FieldName, 7> kNames = {{
      {"messages", "input"},
      {"max_completion_tokens", "max_output_tokens"},
      {"max_tokens", "max_output_tokens"},
      {"reasoning_effort", "reasoning.effort"},
      {"response_format.json_schema", "text.format"},
      {"response_format", "text.format"},
      {".function", ""},
  }};
  return kNames;
}

}  // namespace sluice
