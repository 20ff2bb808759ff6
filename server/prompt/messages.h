// SPDX-License-Identifier: Apache-2.0
// The one form of a conversation, whatever its API and client. Templates never see another:
// fit_messages() brings it into the form that a template takes. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "engine/core/status.h"

namespace sluice {

// Rules for reading the arguments of calls.
struct CallArgumentRules {
  int32_t max_depth = 64;   // maximum nesting of their JSON
  bool keeps_text = false;  // text stays as it was sent, for a template that wants text
};

// `given`: an array of at least one message, in OpenAI's form. In the result, for every role:
// - `role` is a string that is not empty; which roles there are, the template decides;
// - `content` is there: a string, or an array of {"type": "text", "text": string}; null is "", and
//   so is a missing one of an assistant, a tool or a function. A string among the parts is a text
//   part, and so are parts of the types input_text, output_text and refusal;
// - a member that is null, "", [] or {} is left out, also in a tool call and its function, but for
//   a call's `id` and its function's `name`, in which null is "", and a missing name is added;
// - `tool_calls` is an array of objects with a `function`, whose `arguments` are an object: the one
//   that their text spells, {} where they are left out, null, "" or the text null. Text that spells
//   no object stays text, since a model's answer may have been cut off, and so do NaN, an integer
//   beyond 64 bits and nesting beyond max_depth;
// - `function_call` of an older client's message is its only tool call;
// - the first of `reasoning_content`, `thinking` and `reasoning` that is not null is also in
//   `reasoning_content`, and in `thinking` where that is missing.
// Other members stay as they are, in the order they came in.
// kInvalidArgument and kUnsupported name the place.
Expected<nlohmann::ordered_json> normal_messages(const nlohmann::ordered_json& given,
                                                 const CallArgumentRules& rules);

}  // namespace sluice
