// SPDX-License-Identifier: Apache-2.0
// Requests of OpenAI's Responses API as chat requests of ours. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "engine/core/status.h"
#include "server/api/field_names.h"

namespace sluice {

// `body`: an object that passed check_parameters(Endpoint::kResponses). `earlier`: messages of the
// conversation before it, an array, without instructions. Returns the body of a chat with the same
// meaning; what cannot be given to the model is refused by name. Errors name this API's fields.
Expected<nlohmann::ordered_json> chat_of_responses(const nlohmann::ordered_json& body,
                                                   const nlohmann::ordered_json& earlier);

// The messages of a conversation that begins at `first` or at a user's message behind it, after its
// instructions: what `truncation: auto` keeps. Null: nothing is left.
nlohmann::ordered_json later_messages(const nlohmann::ordered_json& messages, size_t first);

// Names that this API has for fields of the chat.
std::span<const FieldName> responses_names();

}  // namespace sluice
