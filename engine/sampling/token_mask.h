// SPDX-License-Identifier: Apache-2.0
// Which tokens a request may choose next: those that its grammar allows, and of these
// allowed_token_ids, no end or stop token before min_tokens, no completion of one of bad_words. A
// rule that would leave no token is not applied; what the grammar forbids stays forbidden. Where
// reasoning has reached its limit, the next token of its end is the only one, if the grammar allows
// it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/sampling_params.h"
#include "engine/core/types.h"

namespace sluice {

// Writes the mask, of token_mask_words(vocab_size), and returns true, or returns false: all may be
// chosen (bit i: token i may). `generated`: the output so far, of so many tokens; may be empty
// without bad_words and a limit of reasoning. `end_tokens`: the model's own. `grammar`: a mask with
// a token in it, or empty: all.
bool write_token_mask(const SamplingParams& params,
                      int32_t num_generated,
                      std::span<const TokenId> generated,
                      std::span<const TokenId> end_tokens,
                      int32_t vocab_size,
                      std::span<const uint32_t> grammar,
                      std::span<uint32_t> mask);

}  // namespace sluice
