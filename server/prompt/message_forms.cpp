// SPDX-License-Identifier: Apache-2.0
#include "server/prompt/message_forms.h"

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "server/jinja/python_text.h"
#include "server/jinja/roles.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// A text in two versions that share no letter: anything that it reaches differs between them.
struct Versions {
  std::string_view one;
  std::string_view other;
};

constexpr Versions kText = {"qzvxkjw", "bhgmpdy"};
// A role that no template names.
constexpr std::string_view kOtherRole = "qzvxkj";

// An id that templates accept: some want nine letters and digits.
constexpr std::string_view kCallId = "call12345";

Json message(std::string_view role, Json content) {
  return {{"role", role}, {"content", std::move(content)}};
}

Json part(std::string_view text, std::string_view beside = kText.one) {
  return {{"type", "text"}, {"text", text}, {"beside", beside}};
}

Json a_tool(std::string_view name = "f") {
  const Json schema = {{"type", "object"}, {"properties", Json::object()}};
  return Json::array(
      {{{"type", "function"},
        {"function", {{"name", name}, {"description", "d"}, {"parameters", schema}}}}});
}

Json a_document() { return Json::array({{{"title", "d"}, {"text", "d"}, {"contents", "d"}}}); }

class Finder {
 public:
  explicit Finder(const TemplateRender& render) : render_(render) {}

  MessageForms find(const jinja::NamedRoles& named);

 private:
  struct Call {
    Json content;
    Json arguments;
    std::string_view name = kText.one;
  };

  // The position of a role's message among the others.
  enum class Place : uint8_t {
    kAlone,
    kFirst,         // before a user's
    kBetweenUsers,  // after a user's and before another
    kAfterUser,
    kAfterAnswer,  // after a user's and an assistant's
    kAfterCall,    // after a user's and an assistant's call
  };

  // Messages around a placed message, for a template that requires them.
  enum class Frame : uint8_t { kNone, kSystem, kAssistant, kSystemAndAssistant, kSystemAndUser };
  static constexpr std::array kFrames = {Frame::kNone,
                                         Frame::kSystem,
                                         Frame::kAssistant,
                                         Frame::kSystemAndAssistant,
                                         Frame::kSystemAndUser};

  using With = std::function<Json(std::string_view)>;

  // Returns nothing if the template fails, or if finding was given up.
  std::optional<std::string> rendered(Json messages);
  std::optional<std::string> rendered_in_frames(const Json& messages);
  // Tells whether a text that the messages are made with reaches the prompt.
  bool reaches(const With& messages_with);
  bool reaches_in_frames(const With& messages_with);
  [[nodiscard]] Json filler(std::string_view role) const;
  [[nodiscard]] Json call_message(const Call& call) const;
  [[nodiscard]] Json framed(Frame frame, Json messages) const;
  [[nodiscard]] Json placed(Place place, Json self) const;
  static std::vector<Place> places_of(std::string_view role);
  void find_setting();
  ContentForms content_in(std::string_view role, Place place, Frame frame);
  ContentForms content_of(std::string_view role);
  void find_calls(MessageForms& forms);
  bool prints_tools();
  bool takes_typescript();
  bool takes_system_tools();
  void find_instructions(const jinja::NamedRoles& named, MessageForms& forms);

  const TemplateRender& render_;
  std::vector<std::string> tokens_;  // names of tokens that the template reads
  Json tools_;                       // empty, unless the template fails without
  Json documents_;                   // empty, unless the template fails without
  std::string typescript_;           // the tools as declarations; empty: not given
  bool fills_with_parts_ = false;    // contents of the other messages are parts
  Call call_{"", Json::object()};    // a call that the template takes
  bool gave_up_ = false;
};

std::optional<std::string> Finder::rendered(Json messages) {
  if (gave_up_) return std::nullopt;
  Json variables = {{"messages", std::move(messages)},
                    {"tools", tools_},
                    {"documents", documents_},
                    {"add_generation_prompt", true},
                    {"bos_token", ""},
                    {"eos_token", ""}};
  for (const std::string& name : tokens_) variables[name] = "<" + name + ">";
  if (!typescript_.empty()) variables["tools_ts_str"] = typescript_;
  auto text = render_(variables);
  if (text) return std::move(*text);
  gave_up_ = text.error().code == ErrorCode::kResourceExhausted;
  return std::nullopt;
}

std::optional<std::string> Finder::rendered_in_frames(const Json& messages) {
  for (const Frame frame : kFrames) {
    if (auto text = rendered(framed(frame, messages))) return text;
  }
  return std::nullopt;
}

bool Finder::reaches(const With& messages_with) {
  const auto one = rendered(messages_with(kText.one));
  if (!one) return false;
  const auto other = rendered(messages_with(kText.other));
  return other && *one != *other;
}

bool Finder::reaches_in_frames(const With& messages_with) {
  const auto one = rendered_in_frames(messages_with(kText.one));
  if (!one) return false;
  const auto other = rendered_in_frames(messages_with(kText.other));
  return other && *one != *other;
}

Json Finder::filler(std::string_view role) const {
  return message(role, fills_with_parts_ ? Json::array({part("u")}) : Json("u"));
}

Json Finder::call_message(const Call& call) const {
  Json made = message("assistant", call.content);
  made["tool_calls"] =
      Json::array({{{"id", kCallId},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", call.arguments}}}}});
  return made;
}

Json Finder::framed(Frame frame, Json messages) const {
  if (frame != Frame::kNone && frame != Frame::kAssistant) {
    messages.insert(messages.begin(), filler("system"));
  }
  if (frame != Frame::kNone && frame != Frame::kSystem) messages.push_back(filler("assistant"));
  if (frame == Frame::kSystemAndUser) messages.push_back(filler("user"));
  return messages;
}

Json Finder::placed(Place place, Json self) const {
  const Json user = filler("user");
  switch (place) {
    case Place::kAlone:
      return Json::array({std::move(self)});
    case Place::kFirst:
      return Json::array({std::move(self), user});
    case Place::kBetweenUsers:
      return Json::array({user, std::move(self), user});
    case Place::kAfterUser:
      return Json::array({user, std::move(self)});
    case Place::kAfterAnswer:
      return Json::array({user, filler("assistant"), std::move(self)});
    case Place::kAfterCall:
      self["tool_call_id"] = kCallId;
      self["name"] = "n";
      return Json::array({user, call_message(call_), std::move(self)});
  }
  return {};
}

// Returns the places for a role's message, the usual place first.
std::vector<Finder::Place> Finder::places_of(std::string_view role) {
  if (role == "user") return {Place::kAlone};
  if (role == "assistant") return {Place::kBetweenUsers, Place::kAfterUser};
  if (role == "tool") return {Place::kAfterCall, Place::kAfterAnswer};
  if (role == "system" || role == "developer") return {Place::kFirst, Place::kAfterAnswer};
  return {Place::kAfterCall, Place::kFirst, Place::kAfterAnswer};
}

// Finds the tools, documents and parts that a template needs to render anything.
void Finder::find_setting() {
  for (const bool has_documents : {false, true}) {
    for (const bool has_tools : {false, true}) {
      for (const bool has_parts : {false, true}) {
        documents_ = has_documents ? a_document() : Json();
        tools_ = has_tools ? a_tool() : Json();
        fills_with_parts_ = has_parts;
        if (rendered_in_frames(Json::array({filler("user")})) || gave_up_) return;
      }
    }
  }
  documents_ = nullptr;
  tools_ = nullptr;
  fills_with_parts_ = false;
}

ContentForms Finder::content_in(std::string_view role, Place place, Frame frame) {
  const auto conversation = [&](Json content) {
    return framed(frame, placed(place, message(role, std::move(content))));
  };
  const auto shows = [&](const With& content_with) {
    return reaches([&](std::string_view text) { return conversation(content_with(text)); });
  };
  const auto list = [](Json first) { return Json::array({std::move(first)}); };
  ContentForms found;
  found.strings = shows([](std::string_view text) { return Json(text); });
  found.parts = shows([&](std::string_view text) {
                  return Json::array({part(text), part("u")});
                }) &&
                shows([&](std::string_view text) {
                  return Json::array({part("u"), part(text)});
                }) &&
                // It also shows if the template prints a list as a whole.
                !shows([&](std::string_view text) {
                  return Json::array({part("u", text), part("u")});
                });
  found.one_part = !found.strings && !found.parts &&
                   shows([&](std::string_view text) { return list(part(text)); }) &&
                   !shows([&](std::string_view text) { return list(part("u", text)); });
  return found;
}

// Finds the forms of a role's contents; the first frame that renders decides.
ContentForms Finder::content_of(std::string_view role) {
  for (const Frame frame : kFrames) {
    bool renders = false;
    for (const Place place : places_of(role)) {
      const ContentForms found = content_in(role, place, frame);
      if (found.any()) return found;
      renders = renders || rendered(framed(frame, placed(place, filler(role))));
    }
    if (renders) break;
  }
  return {};
}

// The first way to write a call in which its name and its arguments reach the prompt: transformers'
// own, then what some templates want instead. An object that is printed as Python's, and not as
// JSON, is the last choice.
void Finder::find_calls(MessageForms& forms) {
  const Json user = filler("user");
  Json answer = filler("tool");
  answer["tool_call_id"] = kCallId;
  const auto text_with = [&](const Call& call) {
    auto text = rendered_in_frames(Json::array({user, call_message(call), answer}));
    return text ? text : rendered_in_frames(Json::array({user, call_message(call)}));
  };
  const auto argument = [](std::string_view text, bool is_text) {
    const Json object = {{"key", text}};
    return is_text ? Json(object.dump()) : object;
  };
  bool has_call = false;
  for (const bool is_null : {false, true}) {
    if (has_call) return;
    for (const bool is_text : {false, true}) {
      const Json none = is_null ? Json() : Json("");
      const Call call{none, argument(kText.one, is_text)};
      const auto text = text_with(call);
      if (!text) continue;
      const auto named = text_with({none, call.arguments, kText.other});
      const auto other = text_with({none, argument(kText.other, is_text)});
      if (!named || *named == *text || !other || *other == *text) continue;
      const bool is_python = !is_text && text->find("{'key': '") != std::string::npos;
      has_call = forms.prints_calls = true;
      forms.text_arguments = is_text;
      forms.null_beside_calls = is_null;
      call_ = call;
      const std::string cut = R"({"key": ")";
      forms.object_arguments = !is_text && !text_with({none, cut}) && !gave_up_;
      if (!is_python) return;
    }
  }
}

bool Finder::prints_tools() {
  const Json setting = tools_;
  const bool prints = reaches_in_frames([&](std::string_view name) {
    tools_ = a_tool(name);
    return Json::array({filler("user")});
  });
  tools_ = setting;
  return prints || gave_up_;
}

bool Finder::takes_typescript() {
  const Json setting = std::exchange(tools_, a_tool());
  const bool takes = reaches_in_frames([&](std::string_view text) {
    typescript_ = text;
    return Json::array({filler("user")});
  });
  tools_ = setting;
  typescript_.clear();
  return takes;
}

bool Finder::takes_system_tools() {
  return reaches_in_frames([&](std::string_view name) {
    Json system = filler("system");
    system["tools"] = a_tool(name).dump();
    return Json::array({std::move(system), filler("user")});
  });
}

void Finder::find_instructions(const jinja::NamedRoles& named, MessageForms& forms) {
  const Json user = filler("user");
  const Json assistant = filler("assistant");
  const bool takes = content_of("developer").any();
  // Refusal counts only as an error of the template's own, which says why.
  const bool refuses =
      named.has_developer && !rendered_in_frames(placed(Place::kFirst, filler("developer")));
  forms.takes_developer = takes || refuses || gave_up_;
  const ContentForms& alone = forms.content_of("system");
  if (refuses || !alone.any()) return;
  const auto system = [&](std::string_view role, std::string_view text) {
    return message(role, alone.strings ? Json(text) : Json::array({part(text)}));
  };
  const std::string_view second = forms.takes_developer ? "developer" : "system";
  const auto both_reach = [&](const std::function<Json(Json, Json)>& conversation) {
    return reaches_in_frames([&](std::string_view text) {
             return conversation(system("system", text), system(second, "u"));
           }) &&
           reaches_in_frames([&](std::string_view text) {
             return conversation(system("system", "u"), system(second, text));
           });
  };
  forms.takes_two_instructions = both_reach([&](Json one, Json two) {
    return Json::array({one, two, user});
  });
  if (forms.takes_two_instructions) {
    const auto late = [&](const Json& one, const Json& two) {
      return Json::array({one, user, assistant, two, user});
    };
    forms.takes_late_instructions =
        both_reach(late) || !rendered_in_frames(late(system("system", "u"), system(second, "u")));
  } else {
    forms.takes_late_instructions = reaches_in_frames([&](std::string_view text) {
      return Json::array({user, assistant, system(second, text), user});
    });
  }
  if (!gave_up_) return;
  forms.takes_two_instructions = true;
  forms.takes_late_instructions = true;
}

MessageForms Finder::find(const jinja::NamedRoles& named) {
  MessageForms forms;
  tokens_ = named.tokens;
  find_setting();
  find_calls(forms);
  forms.prints_tools = prints_tools();
  forms.typescript_tools = forms.prints_tools && takes_typescript();
  forms.system_tools = !forms.prints_tools && takes_system_tools();
  std::vector<std::string> roles = {"system", "user", "assistant", "tool"};
  for (const std::string& role : named.compared) {
    if (std::ranges::find(roles, role) == roles.end()) roles.push_back(role);
  }
  for (const std::string& role : roles) forms.roles.emplace_back(role, content_of(role));
  forms.other_roles = content_of(kOtherRole);
  find_instructions(named, forms);
  return forms;
}

std::string joined_texts(const Json& parts) {
  std::string text;
  for (const Json& part : parts) {
    const auto& more = part["text"].get_ref<const std::string&>();
    if (!text.empty() && !more.empty()) text += '\n';
    text += more;
  }
  return text;
}

void fit_content(const ContentForms& forms, Json& content) {
  if (content.is_array() && !forms.parts) content = joined_texts(content);
  if (content.is_string() && !forms.strings && forms.any()) {
    content = Json::array({{{"type", "text"}, {"text", content}}});
  }
}

void fit_calls(const MessageForms& forms, Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  for (Json& call : *calls) {
    Json& arguments = call["function"]["arguments"];
    if (forms.text_arguments && !arguments.is_string()) arguments = jinja::python_json(arguments);
    if (forms.object_arguments && !arguments.is_object()) {
      arguments = Json::object({{"arguments", arguments}});
    }
  }
  if (forms.null_beside_calls && message["content"] == "") message["content"] = nullptr;
}

// Returns another text with as many characters and white space at the same places.
std::string another(std::string_view text) {
  std::string made;
  for (const char c : text) {
    const bool continues = (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
    if (continues) continue;
    const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
    made += is_space ? c : c == 'q' ? 'b' : 'q';
  }
  return made;
}

// Appends a message's content to an instruction's, in place: there may be a great many.
void append_content(Json& content, Json& more) {
  if (content.is_string() && more.is_string()) {
    content.get_ref<std::string&>().append("\n\n").append(more.get_ref<const std::string&>());
    return;
  }
  const auto put_in_list = [](Json& text) {
    if (!text.is_array()) text = Json::array({{{"type", "text"}, {"text", std::move(text)}}});
  };
  put_in_list(content);
  put_in_list(more);
  for (Json& part : more) content.push_back(std::move(part));
}

// Joins the instructions into one at the front, if not all would reach the prompt.
void join_instructions(const MessageForms& forms, Json& messages) {
  const auto is_instruction = [](const Json& message) {
    return message["role"] == "system" || message["role"] == "developer";
  };
  const auto num = std::ranges::count_if(messages, is_instruction);
  const bool is_late = num > 0 && !is_instruction(messages.front());
  const bool is_one = num == 1 && !is_late;
  if (num == 0 || is_one) return;
  if (forms.takes_late_instructions && (forms.takes_two_instructions || num == 1)) return;
  const bool are_first = std::ranges::is_partitioned(messages, is_instruction);
  if (forms.takes_two_instructions && are_first) return;
  Json one;
  Json* content = nullptr;  // of that one
  Json others = Json::array();
  for (Json& message : messages) {
    if (!is_instruction(message)) {
      others.push_back(std::move(message));
    } else if (content == nullptr) {
      one = std::move(message);
      content = &one["content"];
    } else {
      append_content(*content, message["content"]);
    }
  }
  others.insert(others.begin(), std::move(one));
  messages = std::move(others);
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
  for (Json& message : messages) {
    if (message["role"] == "developer" && !forms.takes_developer) message["role"] = "system";
    if (message["role"] == "function" && !forms.content_of("function").any()) {
      message["role"] = "tool";
    }
  }
  join_instructions(forms, messages);
  for (Json& message : messages) {
    fit_content(forms.content_of(message["role"].get_ref<const std::string&>()),
                message["content"]);
    fit_calls(forms, message);
  }
}

MessageForms forms_of_request(const MessageForms& forms,
                              const Json& messages,
                              const MessagesRender& render) {
  if (forms.content_of("user").any()) return forms;
  size_t index = messages.size();
  while (index > 0 && messages[index - 1]["role"] != "user") --index;
  if (index == 0) return forms;
  --index;
  for (const ContentForms form : {ContentForms{.strings = true},
                                  ContentForms{.parts = true},
                                  ContentForms{.one_part = true}}) {
    MessageForms tried = forms;
    for (auto& [role, content] : tried.roles) {
      if (!content.any()) content = form;
    }
    if (!tried.other_roles.any()) tried.other_roles = form;
    const auto rendered = [&](Json some) {
      fit_messages(tried, some);
      return render(std::move(some));
    };
    const auto as_it_is = rendered(messages);
    if (!as_it_is) continue;
    // The first and the last part are changed, so that a template which shows only one is not taken
    // for a list's.
    const auto reaches = [&](bool front) {
      Json changed = messages;
      Json* text = &changed[index]["content"];
      if (text->is_array() && text->empty()) return true;
      if (text->is_array()) text = &(front ? text->front() : text->back())["text"];
      *text = another(text->get_ref<const std::string&>());
      const auto other = rendered(std::move(changed));
      return other && *other != *as_it_is;
    };
    if (reaches(true) && reaches(false)) return tried;
  }
  return forms;
}

}  // namespace sluice
