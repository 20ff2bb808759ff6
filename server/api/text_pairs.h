// SPDX-License-Identifier: Apache-2.0
// Two texts as one input of a model that scores how they belong together.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "server/api/pooled_inputs.h"
#include "server/prompt/validation_context.h"

namespace sluice {

// Returns the ids of a pair: for a model with a layer that scores, the tokenizer's form of pairs,
// for one whose score is a token's probability, its conversation. Where the whole is too long and
// `rules` says to cut, the second text is cut. `index`: as in encode_input(), of the second text.
[[nodiscard]] Expected<std::vector<TokenId>> encode_pair(const ValidationContext& context,
                                                         const InputRules& rules,
                                                         std::string_view first,
                                                         std::string_view second,
                                                         int64_t index);

}  // namespace sluice
