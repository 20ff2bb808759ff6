// SPDX-License-Identifier: Apache-2.0
// The forms of a message that a chat template takes: content as a string or as parts, which roles,
// arguments of calls as an object or as text. They are found when a template is compiled, by
// rendering small conversations twice with different texts: a text that reaches the prompt changes
// it. No name or spelling of a known template is relied on.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "server/jinja/ast.h"

namespace sluice {

// The contents of a role's messages that reach the prompt. Neither: the template refuses the role
// or leaves it out, and gets strings.
struct ContentForms {
  bool strings = false;
  bool parts = false;     // every part's text reaches it, and nothing else of a part
  bool one_part = false;  // only a list of one part reaches it: neither strings nor more parts

  [[nodiscard]] bool any() const { return strings || parts || one_part; }
};

// The forms of one compiled template; constant, read by any thread.
struct MessageForms {
  // Forms by role, for the roles that the template names in a comparison; "system", "user",
  // "assistant" and "tool" are always there.
  std::vector<std::pair<std::string, ContentForms>> roles;
  ContentForms other_roles;  // a role that the template does not name
  // A developer's text reaches the prompt, or the template speaks of developers and refuses one.
  // Otherwise developers are rendered as system.
  bool takes_developer = true;
  // Two instructions at the front, a system's and a developer's, both reach the prompt.
  bool takes_two_instructions = true;
  // An instruction after other messages reaches the prompt, or the template rejects it; if
  // takes_two_instructions, also when there is one at the front.
  bool takes_late_instructions = true;
  bool text_arguments = false;     // calls' arguments are wanted as JSON text, not as an object
  bool object_arguments = false;   // non-object arguments make the template fail
  bool prints_tools = false;       // the name of a tool reaches the prompt
  bool typescript_tools = false;   // and so do its declarations (typescript_tools.h)
  bool system_tools = false;       // if not, it does from JSON text in a system message's `tools`
  bool prints_calls = false;       // name and arguments of a call reach the prompt
  bool null_beside_calls = false;  // calls reach the prompt only where the content is null

  [[nodiscard]] const ContentForms& content_of(std::string_view role) const;
};

// Renders variables (a JSON object) with the template under examination.
using TemplateRender = std::function<Expected<std::string>(const nlohmann::ordered_json&)>;

// Finds the forms. At the first kResourceExhausted it stops, with the defaults for unknown forms: a
// template costs at most the limits of one render, beside renders that end well.
MessageForms find_message_forms(const jinja::Block& block, const TemplateRender& render);

// Brings messages in their normal form (normal_messages) into the one that the template takes:
// - content in a form that the template takes stays; otherwise parts are joined with line feeds,
//   and a string becomes one text part;
// - a developer becomes system; if not all instructions would reach the prompt, they are joined
//   into one at the front;
// - a function's answer becomes a tool's if a function's would not reach the prompt;
// - for a template that would fail otherwise, arguments become JSON text, and arguments that are no
//   object {"arguments": them}.
void fit_messages(const MessageForms& forms, nlohmann::ordered_json& messages);

// Renders fitted messages with everything else that a request says.
using MessagesRender = std::function<Expected<std::string>(nlohmann::ordered_json messages)>;

// Returns the forms for one request in its normal form. They are the template's, unless no small
// conversation showed how users' contents reach the prompt, because the template asks for something
// that only a request has. The form is then the first of strings, parts and one part in which a
// change of the last user's text changes the prompt; if there is none, the template's.
MessageForms forms_of_request(const MessageForms& forms,
                              const nlohmann::ordered_json& messages,
                              const MessagesRender& render);

}  // namespace sluice
