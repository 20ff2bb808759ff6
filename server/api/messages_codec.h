// SPDX-License-Identifier: Apache-2.0
// Requests of Anthropic's Messages API as chat requests of ours. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "engine/core/status.h"
#include "server/api/field_names.h"
#include "server/api/ignored_arguments.h"

namespace sluice {

// `body`: an object that passed check_parameters(Endpoint::kMessages). Returns the body of a chat
// with the same meaning; content that cannot be given to the model is refused by name, and what a
// client sends of earlier answers that were not ours goes to `ignored`. Errors name Anthropic's
// fields.
Expected<nlohmann::ordered_json> chat_of_messages(const nlohmann::ordered_json& body,
                                                  IgnoredArguments& ignored);

// Names that Anthropic's API has for fields of the chat.
std::span<const FieldName> messages_names();

}  // namespace sluice
