// SPDX-License-Identifier: Apache-2.0
// Tools for a chat template that has no variable of them. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/prompt/message_forms.h"

namespace sluice {

// For a template that describes no tools: their JSON goes into the instructions, and the calls and
// results of a conversation become text, in the form that the family `hermes` reads. `tools`: an
// array as read_tool_list() returns it. `messages`: in their normal form. The description is the
// end of the first instructions; a template that takes no instructions gets it before the first
// user's text. Results of tools are users' texts, and users' texts in a row become one, since many
// such templates want turns by turns.
void describe_tools(const MessageForms& forms,
                    const nlohmann::ordered_json& tools,
                    nlohmann::ordered_json& messages);

// For a template that takes tools as JSON text in the system message (MessageForms::system_tools),
// as Phi-4-mini's does: they go into the first one, made if there is none. Calls become text in
// that model's form if the template would not show them.
void put_tools_into_system(const MessageForms& forms,
                           const nlohmann::ordered_json& tools,
                           nlohmann::ordered_json& messages);

}  // namespace sluice
