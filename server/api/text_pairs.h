// SPDX-License-Identifier: Apache-2.0
// Two texts as one input of a model that scores how they belong together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "server/api/judge_prompt.h"
#include "server/api/pooled_inputs.h"
#include "server/prompt/validation_context.h"

namespace sluice {

// The first text of pairs, tokenized once for all that share it.
struct PairFront {
  std::string_view text;
  std::vector<TokenId> ids = {};  // empty for a model whose score is a token's probability
  JudgeForm form = JudgeForm::kQwen3;  // of such a model
};

// `text` outlives the result; `num_pairs` share it. `form`: none before a request's first text, and
// found once for all. kUnsupported: as of judge_form().
// kInvalidArgument: in the conversations of a
// model whose score is a token's probability, where it is tokenized with each second text, it would
// take too long.
[[nodiscard]] Expected<PairFront> pair_front(const ValidationContext& context,
                                             const InputRules& rules,
                                             std::optional<JudgeForm>& form,
                                             std::string_view text,
                                             size_t num_pairs = 1);

// Returns the ids of a pair: for a model with a layer that scores, the tokenizer's form of pairs,
// for one whose score is a token's probability, its conversation. Where the whole is too long and
// `rules` says to cut, the longer text is cut, and both where that is not enough. A conversation,
// like every pair where documents alone are cut, loses tokens of the second text. `index`: as in
// encode_input(), of the second text.
[[nodiscard]] Expected<std::vector<TokenId>> encode_pair(const ValidationContext& context,
                                                         const InputRules& rules,
                                                         const PairFront& front,
                                                         std::string_view second,
                                                         int64_t index);

}  // namespace sluice
