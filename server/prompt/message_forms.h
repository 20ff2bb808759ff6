// SPDX-License-Identifier: Apache-2.0
// What a chat template takes of a message: content as a string or as parts, which roles, arguments
// of calls as an object or as text. Found once, when a template is compiled, by rendering small
// conversations twice with different texts: a text that reaches the prompt changes it. No name or
// spelling of a known template is relied on.
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

// What reaches the prompt of the content of a role's messages. Neither: the template refuses the
// role or leaves it out, and gets strings.
struct ContentForms {
  bool strings = false;
  bool parts = false;     // every part's text does, and nothing else that a part holds
  bool one_part = false;  // a list of one part alone: neither strings nor further parts do

  [[nodiscard]] bool any() const { return strings || parts || one_part; }
};

// A value of the compiled template; constant, read by any thread.
struct MessageForms {
  // By role, for the roles that the template names in a comparison; "system", "user", "assistant"
  // and "tool" are always there.
  std::vector<std::pair<std::string, ContentForms>> roles;
  ContentForms other_roles;  // a role that the template does not name
  // A developer's text reaches the prompt, or the template speaks of developers and refuses one.
  // Otherwise developers are rendered as system.
  bool takes_developer = true;
  // Of two instructions, of a system and a developer, at the front, both reach the prompt.
  bool takes_two_instructions = true;
  // An instruction behind other messages reaches the prompt, or the template refuses it; where it
  // takes two, that holds beside one at the front.
  bool takes_late_instructions = true;
  bool text_arguments = false;     // arguments of calls are wanted as JSON text, not as an object
  bool object_arguments = false;   // arguments that are no object are an error of the template
  bool prints_tools = false;       // the name of a tool reaches the prompt
  bool null_beside_calls = false;  // calls reach the prompt only where the content is null

  [[nodiscard]] const ContentForms& content_of(std::string_view role) const;
};

// Renders variables (a JSON object) with the template in question.
using TemplateRender = std::function<Expected<std::string>(const nlohmann::ordered_json&)>;

// Gives up, with the defaults for what is not yet known, at the first kResourceExhausted: a
// template costs at most what its limits allow for one render, beside renders that end well.
MessageForms find_message_forms(const jinja::Block& block, const TemplateRender& render);

// Brings messages in their normal form (normal_messages) into the one that the template takes:
// - content that the template takes as it is stays; else parts are joined with line feeds, and a
//   string becomes one text part;
// - a developer becomes system; instructions of which not all would reach the prompt are joined,
//   into one at the front;
// - a function's answer becomes a tool's where a function's would not reach the prompt;
// - arguments become JSON text, and arguments that are no object {"arguments": them}, for a
//   template that would fail otherwise.
void fit_messages(const MessageForms& forms, nlohmann::ordered_json& messages);

// Renders messages that were fitted, with all else that a request says.
using MessagesRender = std::function<Expected<std::string>(nlohmann::ordered_json messages)>;

// The forms for one request in its normal form. They are the template's, unless no small
// conversation showed how users' contents reach the prompt, because the template asks for what only
// a request has. The form is then the first of strings, parts and one part in which a change of the
// last user's text changes the prompt; the template's where none does.
MessageForms forms_of_request(const MessageForms& forms,
                              const nlohmann::ordered_json& messages,
                              const MessagesRender& render);

}  // namespace sluice
