// SPDX-License-Identifier: Apache-2.0
#include "server/api/messages_codec.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

std::string type_of(const Json& block) { return string_member(block, "type"); }

Expected<std::string> text_member(const Json& block, const char* name, const std::string& place) {
  const Json* text = find_field(block, name);
  if (text == nullptr || !text->is_string()) {
    return invalid(place + "." + name + " must be a string.", "messages");
  }
  return text->get<std::string>();
}

tl::unexpected<Error> wrong_block(const Json& block, const std::string& place) {
  const std::string type = type_of(block);
  if (type.empty()) return invalid(place + " must be an object with a type.", "messages");
  return unsupported(place + " has type '" + show_text(type) + "', which is not supported here.",
                     "messages");
}

Json text_part(std::string text) { return {{"type", "text"}, {"text", std::move(text)}}; }

// A string, or blocks of text alone, as parts.
Expected<Json> text_content(const Json& content, const std::string& place) {
  if (content.is_string()) return content;
  if (!content.is_array()) {
    return invalid(place + " must be a string or an array of blocks.", "messages");
  }
  Json parts = Json::array();
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string where = place + "[" + std::to_string(i) + "]";
    if (type_of(content[i]) != "text") return wrong_block(content[i], where);
    SLUICE_TRY(std::string text, text_member(content[i], "text", where));
    parts.push_back(text_part(std::move(text)));
  }
  return parts;
}

std::string joined_lines(const Json& parts) {
  std::string text;
  for (const Json& part : parts) {
    text += text.empty() ? "" : "\n";
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

// The lines that say where a quoted text is from: its members of these names that are strings.
std::string heading(const Json& block, std::initializer_list<const char*> names) {
  std::string text;
  for (const char* name : names) {
    const Json* value = find_field(block, name);
    if (value != nullptr && value->is_string() && *value != "") {
      text += value->get<std::string>() + "\n";
    }
  }
  return text;
}

// A document that is given as text: plain, or as blocks of text.
Expected<Json> document_part(const Json& block, const std::string& place) {
  const Json* source = find_field(block, "source");
  const std::string type = source != nullptr ? type_of(*source) : std::string();
  std::string text;
  if (type == "text") {
    SLUICE_TRY(text, text_member(*source, "data", place + ".source"));
  } else if (type == "content" && find_field(*source, "content") != nullptr) {
    SLUICE_TRY(const Json content,
               text_content(*find_field(*source, "content"), place + ".source.content"));
    text = content.is_string() ? content.get<std::string>() : joined_lines(content);
  } else {
    return unsupported(place + ".source has type '" + show_text(type) +
                           "'; only documents of text are supported here.",
                       "messages");
  }
  return text_part(heading(block, {"title", "context"}) + text);
}

// A part with the text of a block of any type that has one.
Expected<Json> part_of_block(const Json& block, const std::string& place) {
  const std::string type = type_of(block);
  if (type == "text") {
    SLUICE_TRY(std::string text, text_member(block, "text", place));
    return text_part(std::move(text));
  }
  if (type == "tool_reference") {  // a search over tools has found it
    SLUICE_TRY(std::string name, text_member(block, "tool_name", place));
    return text_part(std::move(name));
  }
  if (type == "search_result") {
    const Json* content = find_field(block, "content");
    if (content == nullptr) return invalid(place + ".content is missing.", "messages");
    SLUICE_TRY(const Json parts, text_content(*content, place + ".content"));
    const std::string text = parts.is_string() ? parts.get<std::string>() : joined_lines(parts);
    return text_part(heading(block, {"title", "source"}) + text);
  }
  if (type == "document") return document_part(block, place);
  return wrong_block(block, place);
}

Expected<Json> result_content(const Json& content, const std::string& place) {
  if (!content.is_array()) return text_content(content, place);
  Json parts = Json::array();
  for (size_t i = 0; i < content.size(); ++i) {
    SLUICE_TRY(Json part, part_of_block(content[i], place + "[" + std::to_string(i) + "]"));
    parts.push_back(std::move(part));
  }
  return parts;
}

// A tool's answer as a message of its own.
Expected<Json> tool_message(const Json& block, const std::string& place) {
  SLUICE_TRY(std::string id, text_member(block, "tool_use_id", place));
  const Json* given = find_field(block, "content");
  Json content = "";
  if (given != nullptr) {
    SLUICE_TRY(content, result_content(*given, place + ".content"));
  }
  return Json({{"role", "tool"}, {"tool_call_id", std::move(id)}, {"content", std::move(content)}});
}

// A user's blocks: answers of tools become messages of their own, in order.
Expected<void> add_user(const Json& blocks, const std::string& place, Json& messages) {
  if (blocks.empty()) return invalid(place + " must not be empty.", "messages");
  Json parts = Json::array();
  const auto end_text = [&] {
    if (!parts.empty()) messages.push_back({{"role", "user"}, {"content", std::move(parts)}});
    parts = Json::array();
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string where = place + "[" + std::to_string(i) + "]";
    const std::string type = type_of(blocks[i]);
    if (type == "tool_result") {
      end_text();
      SLUICE_TRY(Json message, tool_message(blocks[i], where));
      messages.push_back(std::move(message));
    } else {
      SLUICE_TRY(Json part, part_of_block(blocks[i], where));
      parts.push_back(std::move(part));
    }
  }
  end_text();
  return {};
}

Expected<Json> tool_call(const Json& block, const std::string& place) {
  SLUICE_TRY(std::string id, text_member(block, "id", place));
  SLUICE_TRY(std::string name, text_member(block, "name", place));
  const Json* input = find_field(block, "input");
  if (input != nullptr && !input->is_object()) {
    return invalid(place + ".input must be an object.", "messages");
  }
  Json function = {{"name", std::move(name)},
                   {"arguments", input != nullptr ? *input : Json::object()}};
  return Json({{"id", std::move(id)}, {"type", "function"}, {"function", std::move(function)}});
}

// Another server's secret, and what its own tools have asked and found: nothing to this model.
bool is_of_other_server(const std::string& type) {
  constexpr std::array<std::string_view, 3> kTypes = {
      "redacted_thinking", "server_tool_use", "mcp_tool_use"};
  return std::ranges::count(kTypes, type) > 0 || type.ends_with("_tool_result");
}

Expected<void> add_assistant(const Json& blocks,
                             const std::string& place,
                             IgnoredArguments& ignored,
                             Json& messages) {
  Json message = {{"role", "assistant"}};
  Json parts = Json::array();
  Json calls = Json::array();
  std::string thinking;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string where = place + "[" + std::to_string(i) + "]";
    const std::string type = type_of(blocks[i]);
    if (type == "text") {
      SLUICE_TRY(std::string text, text_member(blocks[i], "text", where));
      parts.push_back(text_part(std::move(text)));
    } else if (type == "thinking") {
      SLUICE_TRY(const std::string text, text_member(blocks[i], "thinking", where));
      thinking += text;
    } else if (is_of_other_server(type)) {
      SLUICE_TRY_VOID(ignored.add("messages." + type));
    } else if (type == "tool_use") {
      SLUICE_TRY(Json call, tool_call(blocks[i], where));
      calls.push_back(std::move(call));
    } else {
      return wrong_block(blocks[i], where);
    }
  }
  // A turn of which nothing is left is none, and not one to go on with.
  if (!blocks.empty() && parts.empty() && calls.empty() && thinking.empty()) return {};
  message["content"] = std::move(parts);
  if (!thinking.empty()) message["reasoning_content"] = std::move(thinking);
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  messages.push_back(std::move(message));
  return {};
}

// Instructions in the middle of a conversation. `is_over`: a user's message follows.
Expected<void> add_system(const Json& message,
                          const std::string& place,
                          bool is_over,
                          Json& messages) {
  if (const Json* output = find_field(message, "output_config");
      output != nullptr && !output->empty()) {
    return unsupported(place + ".output_config is not supported; set the request's output_config.",
                       "messages");
  }
  const Json* content = find_field(message, "content");
  if (content == nullptr) return invalid(place + ".content is missing.", "messages");
  SLUICE_TRY(Json parts, text_content(*content, place + ".content"));
  const Json* clear = find_field(message, "clear_at");
  if (clear != nullptr && *clear != "never" && *clear != "next_user_message") {
    return invalid(place + ".clear_at must be \"never\" or \"next_user_message\".", "messages");
  }
  const bool is_cleared = clear != nullptr && *clear == "next_user_message" && is_over;
  if (is_cleared || parts.empty() || parts == "") return {};
  messages.push_back({{"role", "system"}, {"content", std::move(parts)}});
  return {};
}

std::string role_of(const Json& message) { return string_member(message, "role"); }

Expected<void> add_message(const Json& message,
                           const std::string& place,
                           IgnoredArguments& ignored,
                           Json& messages) {
  const std::string role = role_of(message);
  const bool is_user = role == "user";
  if (!is_user && role != "assistant") {
    return invalid(place + ".role must be \"user\", \"assistant\" or \"system\".", "messages");
  }
  const Json* content = find_field(message, "content");
  if (content == nullptr || (!content->is_string() && !content->is_array())) {
    return invalid(place + ".content must be a string or an array of blocks.", "messages");
  }
  if (content->is_string()) {
    messages.push_back({{"role", role}, {"content", *content}});
    return {};
  }
  if (is_user) return add_user(*content, place + ".content", messages);
  return add_assistant(*content, place + ".content", ignored, messages);
}

// A message's content as parts.
Json parts_of(Json content) {
  if (content.is_array()) return content;
  return Json::array({text_part(content.get<std::string>())});
}

// Neighbours of one role are one turn; templates may insist that roles alternate. A call ends the
// turn that it is in, as its answer follows, and thoughts begin one.
Json joined_turns(Json messages) {
  Json turns = Json::array();
  for (Json& message : messages) {
    const std::string role = role_of(message);
    Json* const last = turns.empty() ? nullptr : &turns.back();
    const bool is_same = last != nullptr && (role == "user" || role == "assistant") &&
                         role_of(*last) == role && !last->contains("tool_calls") &&
                         !message.contains("reasoning_content");
    if (!is_same) {
      turns.push_back(std::move(message));
      continue;
    }
    Json parts = parts_of(std::move((*last)["content"]));
    Json more = parts_of(std::move(message["content"]));
    for (Json& part : more) parts.push_back(std::move(part));
    (*last)["content"] = std::move(parts);
    if (const auto calls = message.find("tool_calls"); calls != message.end()) {
      (*last)["tool_calls"] = std::move(*calls);
    }
  }
  return turns;
}

// Claude Code's first block of the system text names the client's version and a hash of the
// request. It speaks to Anthropic's billing and not to the model, and it changes with each request,
// so that no prefix of the conversation would be found again.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

bool is_billing_header(const Json& part) {
  const Json* text = part.is_object() ? find_field(part, "text") : nullptr;
  return text != nullptr && text->is_string() &&
         text->get_ref<const std::string&>().starts_with(kBillingHeader);
}

Expected<Json> chat_messages(const Json& body,
                             const MessagesRules& rules,
                             IgnoredArguments& ignored) {
  Json messages = Json::array();
  if (const Json* system = find_field(body, "system")) {
    SLUICE_TRY(Json content, text_content(*system, "system"));
    if (!rules.keeps_billing_header && content.is_array() && !content.empty() &&
        is_billing_header(content.front())) {
      ignored.note("system.x-anthropic-billing-header");
      content.erase(content.begin());
    }
    if (!content.empty() && content != "") {
      messages.push_back({{"role", "system"}, {"content", std::move(content)}});
    }
  }
  const Json* given = find_field(body, "messages");
  if (given == nullptr || !given->is_array() || given->empty()) {
    return invalid("messages must be an array of at least one message.", "messages");
  }
  size_t last_user = given->size();
  while (last_user > 0 && role_of((*given)[last_user - 1]) != "user") --last_user;
  for (size_t i = 0; i < given->size(); ++i) {
    const std::string place = "messages[" + std::to_string(i) + "]";
    const Json& message = (*given)[i];
    if (role_of(message) == "system") {
      SLUICE_TRY_VOID(add_system(message, place, /*is_over=*/i + 1 < last_user, messages));
    } else {
      SLUICE_TRY_VOID(add_message(message, place, ignored, messages));
    }
  }
  if (messages.empty()) return invalid("messages must hold a text.", "messages");
  return joined_turns(std::move(messages));
}

// Tools that Anthropic's servers run, or whose schema only its models know, are left out.
Expected<Json> chat_tools(const Json& tools, IgnoredArguments& ignored) {
  if (!tools.is_array()) return invalid("tools must be an array.", "tools");
  Json list = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string place = "tools[" + std::to_string(i) + "]";
    if (!tools[i].is_object()) return invalid(place + " must be an object.", "tools");
    const std::string type = type_of(tools[i]);
    if (type == "function") {
      return invalid(place + " has OpenAI's form; Anthropic's has `name` and `input_schema`.", "tools");
    }
    if (!type.empty() && type != "custom") {
      SLUICE_TRY_VOID(ignored.add("tools." + type));
      continue;
    }
    Json function = Json::object();
    for (const auto& [theirs, ours] : {std::pair{"name", "name"},
                                       {"description", "description"},
                                       {"input_schema", "parameters"},
                                       {"strict", "strict"}}) {
      if (const Json* value = find_field(tools[i], theirs)) function[ours] = *value;
    }
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

Expected<void> add_choice(const Json& choice, Json& chat) {
  const std::string type = type_of(choice);
  if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "tool") {
    const Json* name = find_field(choice, "name");
    if (name == nullptr || !name->is_string()) {
      return invalid("tool_choice.name must be a string.", "tool_choice");
    }
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
  } else {
    return invalid("tool_choice.type must be auto, any, tool or none.", "tool_choice");
  }
  SLUICE_TRY(const bool only_one, read_bool(choice, "disable_parallel_tool_use", false));
  if (only_one) chat["parallel_tool_calls"] = false;
  return {};
}

// `thinking` sets what templates know as enable_thinking and thinking. A budget that max_tokens
// reaches first is not a limit.
Expected<void> add_thinking(const Json& thinking, const Json& body, Json& chat) {
  const std::string type = type_of(thinking);
  constexpr std::array<std::string_view, 4> kTypes = {
      "enabled", "disabled", "adaptive", "between_tools"};
  if (std::ranges::find(kTypes, type) == kTypes.end()) {
    return invalid("thinking.type must be enabled, disabled, adaptive or between_tools.",
                   "thinking");
  }
  if (const Json* display = find_field(thinking, "display")) {
    if (*display != "summarized" && *display != "omitted") {
      return invalid("thinking.display must be \"summarized\" or \"omitted\".", "thinking");
    }
    if (*display == "omitted") chat["include_reasoning"] = false;
  }
  if (type == "enabled") {
    SLUICE_TRY(const auto budget, read_integer(thinking, "budget_tokens", 1, int64_t{1} << 31));
    const Json* most = find_field(body, "max_tokens");
    const bool is_limit = budget && most != nullptr && most->is_number_integer() &&
                          *budget + 1 < most->get<int64_t>();
    if (is_limit) chat["thinking_token_budget"] = *budget;
  }
  Json& variables = chat["chat_template_kwargs"];
  if (!variables.is_object()) variables = Json::object();
  for (const char* name : {"enable_thinking", "thinking"}) {
    if (!variables.contains(name)) variables[name] = type != "disabled";
  }
  return {};
}

// Leaves the thoughts of the last `num_kept` thoughtful answers in the conversation.
void clear_thinking(int64_t num_kept, Json& messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    if (messages[i].contains("reasoning_content") && num_kept-- <= 0) {
      messages[i].erase("reasoning_content");
    }
  }
}

// Thoughts of earlier answers are cleared as asked, by the edit that keeps the fewest; other edits
// are a server's that keeps the conversation.
Expected<void> add_context_edits(const Json& management, Json& chat) {
  const Json* edits = management.is_object() ? find_field(management, "edits") : nullptr;
  if (edits == nullptr) return {};
  if (!edits->is_array()) {
    return invalid("context_management.edits must be an array.", "context_management");
  }
  std::optional<int64_t> fewest;
  for (const Json& edit : *edits) {
    const std::string type = type_of(edit);
    if (!type.starts_with("clear_thinking_")) {
      return unsupported("context_management.edits of type '" + show_text(type) +
                             "' are not supported; the client shortens the conversation.",
                         "context_management");
    }
    const Json* keep = find_field(edit, "keep");
    if (keep != nullptr && (*keep == "all" || type_of(*keep) == "all")) continue;
    int64_t num_kept = 1;
    if (keep != nullptr) {
      SLUICE_TRY(const auto value, read_integer(*keep, "value", 1, int64_t{1} << 31));
      num_kept = value.value_or(1);
    }
    fewest = std::min(num_kept, fewest.value_or(num_kept));
  }
  if (fewest) clear_thinking(*fewest, chat["messages"]);
  return {};
}

// `name`: the client's spelling of the field.
Expected<void> add_format(const Json& format, const std::string& name, Json& chat) {
  const Json* schema = type_of(format) == "json_schema" ? find_field(format, "schema") : nullptr;
  if (schema == nullptr) {
    return invalid(name + " must have type json_schema and a schema.",
                   name.substr(0, name.find('.')));
  }
  chat["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"name", "output"}, {"schema", *schema}}}};
  return {};
}

Expected<void> add_output(const Json& output, Json& chat) {
  if (!output.is_object()) return invalid("output_config must be an object.", "output_config");
  if (const Json* effort = find_field(output, "effort")) chat["reasoning_effort"] = *effort;
  const Json* format = find_field(output, "format");
  return format != nullptr ? add_format(*format, "output_config.format", chat) : Expected<void>();
}

}  // namespace

Expected<Json> chat_of_messages(const Json& body,
                                const MessagesRules& rules,
                                IgnoredArguments& ignored) {
  if (find_field(body, "thread") != nullptr) {
    return make_error(ErrorCode::kUnsupported,
                      "Threads are not kept here; send the whole conversation.",
                      "thread",
                      "thread_unsupported_request");
  }
  Json chat = Json::object();
  SLUICE_TRY(chat["messages"], chat_messages(body, rules, ignored));
  for (const char* name : {"model",
                           "max_tokens",
                           "temperature",
                           "top_p",
                           "top_k",
                           "seed",
                           "stream",
                           "chat_template_kwargs"}) {
    if (const Json* value = find_field(body, name)) chat[name] = *value;
  }
  if (const Json* stops = find_field(body, "stop_sequences")) {
    if (!stops->is_array()) return invalid("stop_sequences must be an array.", "stop_sequences");
    chat["stop"] = *stops;
  }
  const Json* tools = find_field(body, "tools");
  if (tools != nullptr && !tools->empty()) {
    SLUICE_TRY(Json functions, chat_tools(*tools, ignored));
    if (!functions.empty()) chat["tools"] = std::move(functions);
  }
  if (const Json* choice = find_field(body, "tool_choice")) {
    SLUICE_TRY_VOID(add_choice(*choice, chat));
  }
  if (const Json* thinking = find_field(body, "thinking")) {
    SLUICE_TRY_VOID(add_thinking(*thinking, body, chat));
  }
  if (const Json* output = find_field(body, "output_config")) {
    SLUICE_TRY_VOID(add_output(*output, chat));
  }
  if (const Json* management = find_field(body, "context_management")) {
    SLUICE_TRY_VOID(add_context_edits(*management, chat));
  }
  // The older name of output_config.format.
  if (const Json* format = find_field(body, "output_format");
      format != nullptr && !chat.contains("response_format")) {
    SLUICE_TRY_VOID(add_format(*format, "output_format", chat));
  }
  // An answer that its client has begun.
  const Json& last = chat["messages"].back();
  if (last["role"] == "assistant" && !last.contains("tool_calls")) {
    chat["continue_final_message"] = true;
  }
  return chat;
}

std::span<const FieldName> messages_names() {
  static constexpr std::array<FieldName, 7> kNames = {{
      {"stop", "stop_sequences"},
      {"reasoning_effort", "output_config.effort"},
      {"thinking_token_budget", "thinking.budget_tokens"},
      {"response_format.json_schema", "output_config.format"},
      {"response_format", "output_config.format"},
      {".function.parameters", ".input_schema"},
      {".function", ""},
  }};
  return kNames;
}

}  // namespace sluice
