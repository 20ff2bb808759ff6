// SPDX-License-Identifier: Apache-2.0
// Turns requests of Anthropic's Messages API into chat requests. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "engine/core/status.h"
#include "server/api/field_names.h"
#include "server/front/ignored_arguments.h"

namespace sluice {

struct MessagesRules {
  // Claude Code's first block of the system text, which changes with each request, reaches the
  // prompt. Otherwise it is left out and `ignored` names it.
  bool keeps_billing_header = false;
};

// `body`: an object that passed check_parameters(Endpoint::kMessages). Returns the body of a chat
// with the same meaning; content that the model cannot take is refused by name, and parts of
// earlier answers that another server gave go to `ignored`. Errors name Anthropic's fields.
Expected<nlohmann::ordered_json> chat_of_messages(const nlohmann::ordered_json& body,
                                                  const MessagesRules& rules,
                                                  IgnoredArguments& ignored);

// Returns Anthropic's names for fields of the chat.
std::span<const FieldName> messages_names();

}  // namespace sluice
