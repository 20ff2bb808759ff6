// SPDX-License-Identifier: Apache-2.0
// Turns requests of OpenAI's Responses API into chat requests. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "engine/core/status.h"
#include "server/api/field_names.h"
#include "server/api/response_tools.h"

namespace sluice {

class IgnoredArguments;

// `body`: an object that passed check_parameters(Endpoint::kResponses), whose `include`, if any, is
// an array of strings. `earlier`: messages of the conversation before it, an array, without
// instructions. Returns the body of a chat with the same meaning, which continues an answer that
// ends the input in progress or incomplete, and in `tools` the client's names of its tools.
// `items`, if any, gets the index of each message's item in the input; an input of text has no
// items. Content that the model cannot take is refused by name; tools of OpenAI's servers, and
// what they left in the history, go to `ignored`. Errors name this API's fields.
Expected<nlohmann::ordered_json> chat_of_responses(const nlohmann::ordered_json& body,
                                                   const nlohmann::ordered_json& earlier,
                                                   IgnoredArguments& ignored,
                                                   std::vector<ResponseTool>& tools,
                                                   std::vector<size_t>* items = nullptr);

// Returns what `truncation: auto` keeps: the instructions, and the messages from `first` or from a
// later user message. Null: nothing is left.
nlohmann::ordered_json later_messages(const nlohmann::ordered_json& messages, size_t first);

// Returns this API's names for fields of the chat.
std::span<const FieldName> responses_names();

// Returns the error of a chat in this API's names. `items`: those of chat_of_responses().
Error with_responses_names(Error error, std::span<const size_t> items);

}  // namespace sluice
