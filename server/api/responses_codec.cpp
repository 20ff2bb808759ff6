// SPDX-License-Identifier: Apache-2.0
#include "server/api/responses_codec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "server/front/ignored_arguments.h"
#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// A call in a history, other than of a function: its type, the function by which the chat knows it
// (empty: the item's own name), and the member that holds its arguments.
struct CallItem {
  std::string_view type;
  std::string_view function;
  const char* arguments;
};

constexpr std::array kCallItems = {CallItem{"custom_tool_call", {}, "input"},
                                   CallItem{"local_shell_call", "local_shell", "action"},
                                   CallItem{"shell_call", "shell", "action"},
                                   CallItem{"apply_patch_call", "apply_patch", "operation"}};

// What tools of OpenAI's servers left in a history, and says nothing here.
constexpr std::array<std::string_view, 12> kHostedItems = {"web_search_call",
                                                           "file_search_call",
                                                           "image_generation_call",
                                                           "code_interpreter_call",
                                                           "computer_call",
                                                           "computer_call_output",
                                                           "mcp_list_tools",
                                                           "mcp_call",
                                                           "mcp_approval_request",
                                                           "mcp_approval_response",
                                                           "tool_search_call",
                                                           "tool_search_output"};

constexpr size_t kNoItem = static_cast<size_t>(-1);

// An assistant's turn is several items: reasoning, messages, calls. They are one message.
class Conversation {
 public:
  Conversation(Json messages, IgnoredArguments& ignored)
      : messages_(std::move(messages)), ignored_(ignored), items_(messages_.size(), kNoItem) {}

  Expected<void> add(const Json& item, const std::string& place);
  // Gives the messages, and for each of them the index of its item; kNoItem: it has none.
  Json take(std::vector<size_t>* items);

 private:
  Expected<void> add_message(const Json& item, const std::string& place);
  Expected<void> add_call(const Json& item, const std::string& place);
  Expected<void> add_other_call(const CallItem& kind, const Json& item, const std::string& place);
  void push_call(const std::string& id, const std::string& name, Json arguments);
  Expected<void> add_output(const Json& item, const std::string& place);
  Expected<void> add_reasoning(const Json& item, const std::string& place);
  Json& turn();
  void end_turn();
  void push(Json message, size_t item);

  Json messages_;
  IgnoredArguments& ignored_;
  std::vector<size_t> items_;  // by message
  size_t num_added_ = 0;
  Json turn_;             // an assistant's message that may grow; null: none
  size_t turn_item_ = 0;  // the item with its text, or its first
};

Json& Conversation::turn() {
  if (turn_.is_null()) {
    turn_ = {{"role", "assistant"}, {"content", nullptr}};
    turn_item_ = num_added_ - 1;
  }
  return turn_;
}

void Conversation::end_turn() {
  if (!turn_.is_null()) push(std::move(turn_), turn_item_);
  turn_ = nullptr;
}

void Conversation::push(Json message, size_t item) {
  messages_.push_back(std::move(message));
  items_.push_back(item);
}

Json Conversation::take(std::vector<size_t>* items) {
  end_turn();
  if (items != nullptr) *items = std::move(items_);
  return std::move(messages_);
}

Expected<void> Conversation::add(const Json& item, const std::string& place) {
  ++num_added_;
  if (!item.is_object()) return invalid(place + " must be an object.", "input");
  const std::string type = string_member(item, "type");
  if (type.empty() || type == "message") return add_message(item, place);
  if (type == "function_call") return add_call(item, place);
  if (type == "reasoning") return add_reasoning(item, place);
  const auto kind = std::ranges::find(kCallItems, type, &CallItem::type);
  if (kind != kCallItems.end()) return add_other_call(*kind, item, place);
  const auto is_output_of = [&](std::string_view call) {
    return type == std::string(call) + "_output";
  };
  if (is_output_of("function_call") ||
      std::ranges::any_of(kCallItems, is_output_of, &CallItem::type)) {
    return add_output(item, place);
  }
  if (std::ranges::count(kHostedItems, type) > 0) return ignored_.add("input." + type);
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
  // Text after calls begins another turn.
  if (role != "assistant" || turn().contains("tool_calls") || !turn()["content"].is_null()) {
    end_turn();
  }
  if (role == "assistant") {
    turn()["content"] = *content;
    turn_item_ = num_added_ - 1;
  } else {
    push({{"role", role}, {"content", *content}}, num_added_ - 1);
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
  push_call(id, chat_function_name(string_member(item, "namespace"), name), *arguments);
  return {};
}

Expected<void> Conversation::add_other_call(const CallItem& kind,
                                            const Json& item,
                                            const std::string& place) {
  const bool is_custom = kind.function.empty();
  const std::string id = string_member(item, "call_id");
  const std::string name =
      is_custom ? chat_function_name(string_member(item, "namespace"), string_member(item, "name"))
                : std::string(kind.function);
  const Json* arguments = find_field(item, kind.arguments);
  if (id.empty() || name.empty() || arguments == nullptr || arguments->is_string() != is_custom) {
    return invalid(
        place + " must have call_id" + (is_custom ? ", name and " : " and ") + kind.arguments + ".",
        "input");
  }
  push_call(
      id,
      name,
      is_custom ? Json(custom_arguments(arguments->get_ref<const std::string&>())) : *arguments);
  return {};
}

void Conversation::push_call(const std::string& id, const std::string& name, Json arguments) {
  Json& calls = turn()["tool_calls"];
  if (calls.is_null()) calls = Json::array();
  calls.push_back({{"id", id},
                   {"type", "function"},
                   {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
}

// What each command of a shell call has written, and its end where that says something.
std::string shell_text(const Json& outputs) {
  std::string text;
  for (const Json& output : outputs) {
    text += string_member(output, "stdout") + string_member(output, "stderr");
    const Json* outcome = output.is_object() ? find_field(output, "outcome") : nullptr;
    if (outcome == nullptr) continue;
    const Json* code = outcome->is_object() ? find_field(*outcome, "exit_code") : nullptr;
    if (string_member(*outcome, "type") == "timeout") {
      text += "\n[timed out]\n";
    } else if (code != nullptr && *code != 0) {
      text += "\n[exit code " + show_value(*code) + "]\n";
    }
  }
  return text;
}

Expected<void> Conversation::add_output(const Json& item, const std::string& place) {
  // A local shell's output has its call's name under `id`.
  std::string id = string_member(item, "call_id");
  if (id.empty()) id = string_member(item, "id");
  const Json* output = find_field(item, "output");
  if (output == nullptr && item["type"] == "apply_patch_call_output") {
    output = find_field(item, "status");  // all that a patch without a log has to say
  }
  if (id.empty() || output == nullptr || (!output->is_string() && !output->is_array())) {
    return invalid(place + " must have call_id and output.", "input");
  }
  end_turn();
  const bool is_shell = output->is_array() && item["type"] == "shell_call_output";
  push({{"role", "tool"},
        {"tool_call_id", id},
        {"content", is_shell ? Json(shell_text(*output)) : *output}},
       num_added_ - 1);
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

Expected<Json> read_messages(const Json& body,
                             const Json& earlier,
                             IgnoredArguments& ignored,
                             std::vector<size_t>* items) {
  Json messages = Json::array();
  if (const Json* instructions = find_field(body, "instructions")) {
    if (!instructions->is_string())
      return invalid("instructions must be a string.", "instructions");
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  }
  messages.insert(messages.end(), earlier.begin(), earlier.end());
  const Json* input = find_field(body, "input");
  if (input == nullptr) return invalid("input is missing.", "input");
  Conversation conversation(std::move(messages), ignored);
  if (input->is_string()) {
    SLUICE_TRY_VOID(conversation.add({{"role", "user"}, {"content", *input}}, "input"));
    return conversation.take(nullptr);
  }
  if (!input->is_array() || input->empty()) {
    return invalid("input must be a string or an array of items that is not empty.", "input");
  }
  for (size_t i = 0; i < input->size(); ++i) {
    SLUICE_TRY_VOID(conversation.add((*input)[i], "input[" + std::to_string(i) + "]"));
  }
  return conversation.take(items);
}

// Tells whether the input ends within an answer, which goes on.
bool ends_within_answer(const Json& input) {
  if (!input.is_array() || input.empty()) return false;
  const Json& last = input.back();
  const std::string type = string_member(last, "type");
  const std::string status = string_member(last, "status");
  return (type.empty() || type == "message") && string_member(last, "role") == "assistant" &&
         (status == "in_progress" || status == "incomplete");
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

// The log-probabilities of the answer's text, by one of two names.
Expected<void> add_logprobs(const Json& body, Json& chat) {
  const Json* include = find_field(body, "include");
  const bool is_included =
      include != nullptr && std::ranges::count(*include, "message.output_text.logprobs") > 0;
  const Json* top = find_field(body, "top_logprobs");
  if (!is_included && (top == nullptr || *top == 0)) return {};
  chat["logprobs"] = true;
  if (top != nullptr) chat["top_logprobs"] = *top;
  return {};
}

}  // namespace

Expected<Json> chat_of_responses(const Json& body,
                                 const Json& earlier,
                                 IgnoredArguments& ignored,
                                 std::vector<ResponseTool>& tools,
                                 std::vector<size_t>* items) {
  Json chat = Json::object();
  SLUICE_TRY(chat["messages"], read_messages(body, earlier, ignored, items));
  for (const char* name : {"model",
                           "temperature",
                           "top_p",
                           "top_k",
                           "seed",
                           "min_p",
                           "presence_penalty",
                           "frequency_penalty",
                           "repetition_penalty",
                           "min_tokens",
                           "ignore_eos",
                           "stop",
                           "stop_token_ids",
                           "include_stop_str_in_output",
                           "skip_special_tokens",
                           "logit_bias",
                           "bad_words",
                           "allowed_token_ids",
                           "structured_outputs",
                           "priority",
                           "max_queue_wait_ms",
                           "cache_salt",
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
  if (const Json* given = find_field(body, "tools")) {
    Json functions = Json::array();
    SLUICE_TRY(tools, read_response_tools(*given, ignored, functions));
    if (!functions.empty()) chat["tools"] = std::move(functions);
  }
  if (const Json* choice = find_field(body, "tool_choice")) {
    SLUICE_TRY(chat["tool_choice"], read_response_choice(*choice));
  }
  const Json* reasoning = find_field(body, "reasoning");
  if (reasoning != nullptr && !reasoning->is_object()) {
    return invalid("reasoning must be an object.", "reasoning");
  }
  if (reasoning != nullptr) {
    if (const Json* effort = find_field(*reasoning, "effort")) chat["reasoning_effort"] = *effort;
  }
  if (const Json* text = find_field(body, "text")) SLUICE_TRY_VOID(add_text_format(*text, chat));
  SLUICE_TRY_VOID(add_logprobs(body, chat));
  if (ends_within_answer(body["input"])) chat["continue_final_message"] = true;
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

Error with_responses_names(Error error, std::span<const size_t> items) {
  constexpr std::string_view kPlace = "messages[";
  size_t message = 0;
  const char* const end = error.message.data() + error.message.size();
  if (error.message.starts_with(kPlace)) {
    const auto [behind, fault] =
        std::from_chars(error.message.data() + kPlace.size(), end, message);
    if (fault == std::errc() && behind != end && *behind == ']') {
      const bool is_known = message < items.size() && items[message] != kNoItem;
      const std::string place = is_known ? "input[" + std::to_string(items[message]) + "]" : "input";
      error.message = place + std::string(behind + 1, end);
    }
  }
  return with_names(std::move(error), responses_names());
}

}  // namespace sluice
