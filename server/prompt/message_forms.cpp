// SPDX-License-Identifier: Apache-2.0
#include "server/prompt/message_forms.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "server/jinja/json_value.h"
#include "server/jinja/print.h"
#include "server/jinja/roles.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Texts that no template holds. A part has one that must not show up: it does where a list is
// printed as a whole.
constexpr std::string_view kText = "qzvxkjw";
constexpr std::string_view kFirst = "qzvxkjf";
constexpr std::string_view kSecond = "qzvxkjs";
constexpr std::string_view kBeside = "qzvxkjb";
constexpr std::string_view kFunction = "qzvxkjn";
constexpr std::string_view kArgument = "qzvxkja";
// A role that no template names.
constexpr std::string_view kOtherRole = "qzvxkj";

// Templates that ask for an id want nine letters and digits.
constexpr std::string_view kCallId = "call12345";

bool holds(const std::string& text, std::string_view what) {
  return text.find(what) != std::string::npos;
}

Json message(std::string_view role, Json content) {
  return {{"role", role}, {"content", std::move(content)}};
}

Json one_part(std::string_view text) {
  return Json::array({{{"type", "text"}, {"text", text}, {"beside", kBeside}}});
}

Json two_parts() {
  Json parts = one_part(kFirst);
  parts.push_back(one_part(kSecond)[0]);
  return parts;
}

Json a_tool() {
  const Json schema = {{"type", "object"}, {"properties", Json::object()}};
  return Json::array(
      {{{"type", "function"},
        {"function", {{"name", "f"}, {"description", "d"}, {"parameters", schema}}}}});
}

// Joins what two contents hold, as one instruction.
Json joined(const Json& first, const Json& second) {
  if (first.is_string() && second.is_string()) {
    return first.get<std::string>() + "\n\n" + second.get<std::string>();
  }
  Json parts = Json::array();
  for (const Json* content : {&first, &second}) {
    if (content->is_array()) {
      parts.insert(parts.end(), content->begin(), content->end());
    } else {
      parts.push_back({{"type", "text"}, {"text", *content}});
    }
  }
  return parts;
}

class Finder {
 public:
  explicit Finder(const TemplateRender& render) : render_(render) {}

  MessageForms find(const jinja::NamedRoles& named);

 private:
  struct Call {
    Json content;
    Json arguments;
  };

  // Nothing: the template fails, or finding was given up.
  std::optional<std::string> rendered(Json messages);
  [[nodiscard]] Json call_message(const Call& call) const;
  // The role's message in the places where conversations have it, the usual one first.
  [[nodiscard]] std::vector<Json> places(std::string_view role, const Json& content) const;
  ContentForms content_of(std::string_view role);
  void find_calls(MessageForms& forms);
  void find_instructions(const jinja::NamedRoles& named, MessageForms& forms);

  const TemplateRender& render_;
  Json tools_;                     // without any, unless the template fails then
  Call call_{"", Json::object()};  // that the template takes
  bool gave_up_ = false;
};

std::optional<std::string> Finder::rendered(Json messages) {
  if (gave_up_) return std::nullopt;
  const Json variables = {{"messages", std::move(messages)},
                          {"tools", tools_},
                          {"documents", nullptr},
                          {"add_generation_prompt", true},
                          {"bos_token", ""},
                          {"eos_token", ""}};
  auto text = render_(variables);
  if (text) return std::move(*text);
  gave_up_ = text.error().code == ErrorCode::kResourceExhausted;
  return std::nullopt;
}

Json Finder::call_message(const Call& call) const {
  Json made = message("assistant", call.content);
  made["tool_calls"] =
      Json::array({{{"id", kCallId},
                    {"type", "function"},
                    {"function", {{"name", kFunction}, {"arguments", call.arguments}}}}});
  return made;
}

std::vector<Json> Finder::places(std::string_view role, const Json& content) const {
  Json self = message(role, content);
  const Json user = message("user", "u");
  if (role == "user") return {Json::array({self})};
  if (role == "assistant") return {Json::array({user, self, user})};
  Json answer = self;
  answer["tool_call_id"] = kCallId;
  answer["name"] = "n";
  const Json last = Json::array({user, call_message(call_), answer});
  const Json first = Json::array({self, user});
  const Json middle = Json::array({user, message("assistant", "a"), self});
  if (role == "tool") return {last, middle};
  if (role == "system" || role == "developer") return {first, middle};
  return {last, first, middle};
}

ContentForms Finder::content_of(std::string_view role) {
  const std::vector<Json> with_text = places(role, kText);
  const std::vector<Json> with_parts = places(role, two_parts());
  for (size_t i = 0; i < with_text.size(); ++i) {
    ContentForms found;
    const auto text = rendered(with_text[i]);
    found.strings = text && holds(*text, kText);
    const auto parts = rendered(with_parts[i]);
    found.parts =
        parts && holds(*parts, kFirst) && holds(*parts, kSecond) && !holds(*parts, kBeside);
    if (found.strings || found.parts) return found;
  }
  return {};
}

// The first way to write a call in which its name and its arguments reach the prompt: transformers'
// own, then what some templates want instead.
void Finder::find_calls(MessageForms& forms) {
  const Json user = message("user", "u");
  Json answer = message("tool", "t");
  answer["tool_call_id"] = kCallId;
  const auto text_with = [&](const Call& call) {
    auto text = rendered(Json::array({user, call_message(call), answer}));
    return text ? text : rendered(Json::array({user, call_message(call)}));
  };
  const Json object = {{"key", kArgument}};
  for (const bool is_null : {false, true}) {
    for (const bool is_text : {false, true}) {
      const Json content = is_null ? Json() : Json("");
      const Call call{content, is_text ? Json(object.dump()) : object};
      const auto text = text_with(call);
      if (!text || !holds(*text, kFunction) || !holds(*text, kArgument)) continue;
      forms.text_arguments = is_text;
      forms.null_beside_calls = is_null;
      call_ = call;
      const std::string cut = R"({"key": ")";
      forms.object_arguments = !is_text && !text_with({content, cut}) && !gave_up_;
      return;
    }
  }
}

void Finder::find_instructions(const jinja::NamedRoles& named, MessageForms& forms) {
  const Json user = message("user", "u");
  const ContentForms taken = content_of("developer");
  // An error of the template's own says why; silence does not.
  const bool refuses =
      named.has_developer && !rendered(Json::array({message("developer", "d"), user}));
  forms.takes_developer = taken.strings || taken.parts || refuses || gave_up_;
  const bool parts_only = !forms.content_of("system").strings;
  const auto content = [&](std::string_view text) {
    return parts_only ? one_part(text) : Json(text);
  };
  const std::string_view second = forms.takes_developer ? "developer" : "system";
  const auto both = rendered(
      Json::array({message("system", content(kFirst)), message(second, content(kSecond)), user}));
  const ContentForms& alone = forms.content_of("system");
  const bool has_both = both && holds(*both, kFirst) && holds(*both, kSecond);
  forms.takes_two_instructions =
      has_both || refuses || gave_up_ || (!alone.strings && !alone.parts);
}

MessageForms Finder::find(const jinja::NamedRoles& named) {
  MessageForms forms;
  if (!rendered(Json::array({message("user", "u")})) && !gave_up_) tools_ = a_tool();
  find_calls(forms);
  std::vector<std::string> roles = {"system", "user", "assistant", "tool"};
  for (const std::string& role : named.compared) {
    if (std::ranges::find(roles, role) == roles.end()) roles.push_back(role);
  }
  for (const std::string& role : roles) forms.roles.emplace_back(role, content_of(role));
  forms.other_roles = content_of(kOtherRole);
  find_instructions(named, forms);
  return forms;
}

// JSON as a template's tojson writes it.
std::string text_of(const Json& json) {
  const jinja::Limits limits = {.fuel = 10'000'000,
                                .max_output_bytes = 16 << 20,
                                .max_memory_bytes = 64 << 20,
                                .max_depth = 256};
  const jinja::Clock no_clock;
  jinja::Runtime runtime(limits, no_clock);
  jinja::JsonStyle style;
  style.item_separator = jinja::Text(", ", jinja::Origin::kInput);
  style.key_separator = jinja::Text(": ", jinja::Origin::kInput);
  const auto written = [&]() -> Expected<std::string> {
    SLUICE_TRY(const auto value, jinja::json_to_value(runtime, json, jinja::Origin::kInput));
    SLUICE_TRY(const auto text, jinja::to_json(runtime, value, style));
    return std::string(text.view());
  }();
  return written ? *written : json.dump();
}

void fit_content(const ContentForms& forms, Json& content) {
  if (content.is_string() && forms.parts && !forms.strings) {
    content = Json::array({{{"type", "text"}, {"text", content}}});
  }
  if (!content.is_array() || forms.parts) return;
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    if (i > 0) text += '\n';
    text += content[i]["text"].get_ref<const std::string&>();
  }
  content = std::move(text);
}

void fit_calls(const MessageForms& forms, Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  for (Json& call : *calls) {
    Json& arguments = call["function"]["arguments"];
    if (forms.text_arguments && !arguments.is_string()) arguments = text_of(arguments);
    if (forms.object_arguments && !arguments.is_object()) {
      arguments = Json::object({{"arguments", arguments}});
    }
  }
  if (forms.null_beside_calls && message["content"] == "") message["content"] = nullptr;
}

}  // namespace

const ContentForms& MessageForms::content_of(std::string_view role) const {
  for (const auto& [name, forms] : roles) {
    if (name == role) return forms;
  }
  return other_roles;
}

MessageForms find_message_forms(const jinja::Block& block, const TemplateRender& render) {
  const jinja::NamedRoles named = jinja::find_named_roles(block);
  if (!named.reads_messages) return {};
  return Finder(render).find(named);
}

void fit_messages(const MessageForms& forms, Json& messages) {
  Json fitted = Json::array();
  bool follows_instruction = false;
  bool follows_developer = false;
  for (Json& message : messages) {
    const bool is_developer = message["role"] == "developer";
    const bool is_instruction = is_developer || message["role"] == "system";
    if (is_developer && !forms.takes_developer) message["role"] = "system";
    const bool joins = is_instruction && follows_instruction && (is_developer || follows_developer);
    if (joins && !forms.takes_two_instructions) {
      Json& content = fitted.back()["content"];
      content = joined(content, message["content"]);
    } else {
      fitted.push_back(std::move(message));
    }
    follows_instruction = is_instruction;
    follows_developer = is_developer;
  }
  for (Json& message : fitted) {
    fit_content(forms.content_of(message["role"].get_ref<const std::string&>()),
                message["content"]);
    fit_calls(forms, message);
  }
  messages = std::move(fitted);
}

}  // namespace sluice
