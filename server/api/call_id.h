// SPDX-License-Identifier: Apache-2.0
// Ids of calls: a function of the answer's id, the choice and the call, so that a stream that is
// continued on another worker names its calls as before.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/tools/pieces.h"
#include "server/tools/tool_plan.h"

namespace sluice {

// `begin`: a kCallBegin; the model's own id, if it gave one, is the call's. `prefix`: precedes
// 24 letters and digits, if the family leaves the form free. Any thread.
std::string call_id(const Piece& begin,
                    const ToolPlan& tools,
                    std::string_view answer_id,
                    size_t choice_idx,
                    std::string_view prefix);

// Returns `num_characters` letters and digits, at most 32: a function of the other arguments. Any
// thread.
std::string derived_name(std::string_view answer_id,
                         size_t choice_idx,
                         int64_t item_idx,
                         size_t num_characters);

}  // namespace sluice
