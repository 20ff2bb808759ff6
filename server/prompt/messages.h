// SPDX-License-Identifier: Apache-2.0
// The one form of a conversation, whatever API it came by and whatever its client wrote. Templates
// never see another: fit_messages() brings it into what a template takes. Pure functions; any
// thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/core/status.h"

namespace sluice {

// `given`: an array of at least one message, in OpenAI's form. In what comes back, for every role:
// - `role` is a string that is not empty; which roles there are, the template decides;
// - `content` is there: a string, or an array of {"type": "text", "text": string}; null is "";
// - a member that is null, "", [] or {} is left out, also in a tool call and its function;
// - `tool_calls` is an array of objects with a `function`, whose `arguments` are an object: the one
//   that their text spells, {} where they are left out, null, "" or the text null. Text that spells
//   no object, or one with an integer beyond 64 bits, stays text: a model's answer may have been
//   cut off.
// Other members stay as they are, in the order they came in.
// kInvalidArgument and kUnsupported name the place; max_depth bounds the JSON of arguments.
Expected<nlohmann::ordered_json> normal_messages(const nlohmann::ordered_json& given,
                                                 int32_t max_depth);

}  // namespace sluice
