// SPDX-License-Identifier: Apache-2.0
#include "server/prompt/generic_tools.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string description_of(const Json& tools) {
  std::string text =
      "You can call functions. Each line between <tools> and </tools> describes one of them; its "
      "parameters are a JSON schema.\n<tools>\n";
  for (const Json& tool : tools) text += dumped(tool["function"]) + "\n";
  text +=
      "</tools>\nTo call a function, write its name and its arguments as a JSON object, like "
      "this:\n"
      "<tool_call>\n{\"name\": \"the function\", \"arguments\": {\"a parameter\": \"its value\"}}\n"
      "</tool_call>\nThe result comes back between <tool_response> and </tool_response>. Call a "
      "function only where it helps; otherwise answer in plain words.";
  return text;
}

// Appends text to a message's content, a string or parts. A string grows in place: a conversation
// may have a great many calls and results.
void append_text(Json& content, const std::string& text) {
  if (content.is_array()) {
    content.push_back({{"type", "text"}, {"text", text}});
  } else if (!content.is_string() || content == "") {
    content = text;
  } else {
    content.get_ref<std::string&>().append("\n\n").append(text);
  }
}

void prepend_text(Json& content, const std::string& text) {
  if (content.is_array()) {
    content.insert(content.begin(), Json({{"type", "text"}, {"text", text}}));
  } else {
    content = text + "\n\n" + content.get<std::string>();
  }
}

std::string object_of_call(const Json& function) {
  const Json& arguments = function["arguments"];
  const std::string written =
      arguments.is_string() ? arguments.get<std::string>() : dumped(arguments);
  return "{\"name\": " + dumped(function["name"]) + ", \"arguments\": " + written + "}";
}

std::string text_of_content(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (const Json& part : content) text += part["text"].get_ref<const std::string&>();
  return text;
}

// Calls become a part of the answer's text.
void write_calls(Json& message) {
  const auto found = message.find("tool_calls");
  if (found == message.end()) return;
  const Json calls = std::move(*found);
  message.erase(found);
  Json& content = message["content"];
  for (const Json& call : calls) {
    append_text(content, "<tool_call>\n" + object_of_call(call["function"]) + "\n</tool_call>");
  }
}

void write_calls_as_list(Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  std::string list;
  for (const Json& call : *calls) {
    list += (list.empty() ? "" : ", ") + object_of_call(call["function"]);
  }
  append_text(message["content"], "<|tool_call|>[" + list + "]<|/tool_call|>");
  message.erase("tool_calls");
}

void write_result(Json& message) {
  message = {{"role", "user"},
             {"content",
              "<tool_response>\n" + text_of_content(message["content"]) + "\n</tool_response>"}};
}

// Messages in which what follows a result is joined to it.
class JoinedMessages {
 public:
  // `may_join`: a result, or what follows one. Users' own turns stay as they are.
  void add(Json message, bool is_result, bool may_join) {
    Json* content = message["role"] == "user" ? &message["content"] : nullptr;
    if (may_join && content != nullptr && last_user_ != nullptr &&
        (is_result || content->is_string())) {
      append_text(*last_user_, text_of_content(*content));
      return;
    }
    messages_.push_back(std::move(message));
    last_user_ = content;
  }

  Json take() { return std::move(messages_); }

 private:
  Json messages_ = Json::array();
  Json* last_user_ = nullptr;  // the last message's content, if it is a user's
};

}  // namespace

void put_tools_into_system(const MessageForms& forms, const Json& tools, Json& messages) {
  Json functions = Json::array();
  for (const Json& tool : tools) functions.push_back(tool["function"]);
  const bool has_instructions = !messages.empty() && (messages.front()["role"] == "system" ||
                                                      messages.front()["role"] == "developer");
  if (!has_instructions) {
    messages.insert(messages.begin(), Json({{"role", "system"}, {"content", ""}}));
  }
  messages.front()["tools"] = dumped(functions);
  if (forms.prints_calls) return;
  for (Json& message : messages) write_calls_as_list(message);
}

void describe_tools(const MessageForms& forms, const Json& tools, Json& messages) {
  JoinedMessages joined;
  bool follows_result = false;
  for (Json& message : messages) {
    const bool is_result = message["role"] == "tool" || message["role"] == "function";
    if (is_result) write_result(message);
    write_calls(message);
    joined.add(std::move(message), is_result, is_result || follows_result);
    follows_result = is_result;
  }
  messages = joined.take();
  const std::string description = description_of(tools);
  if (forms.content_of("system").any()) {
    const bool has_instructions = !messages.empty() && (messages.front()["role"] == "system" ||
                                                        messages.front()["role"] == "developer");
    if (has_instructions) return append_text(messages.front()["content"], description);
    messages.insert(messages.begin(), Json({{"role", "system"}, {"content", description}}));
    return;
  }
  for (Json& message : messages) {
    if (message["role"] == "user") return prepend_text(message["content"], description);
  }
  messages.insert(messages.begin(), Json({{"role", "user"}, {"content", description}}));
}

}  // namespace sluice
