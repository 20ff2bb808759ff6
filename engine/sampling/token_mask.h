// SPDX-License-Identifier: Apache-2.0
// The tokens that a request may choose next: those of its grammar, reduced by allowed_token_ids, by
// end and stop tokens before min_tokens, and by completions of bad_words. A rule that would leave
// no token is not applied; what the grammar forbids stays forbidden. At the limit of reasoning, the
// next token of its end is the only one, if the grammar allows it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/sampling_params.h"
#include "engine/core/token_log.h"
#include "engine/core/types.h"

namespace sluice {

// Writes the mask, of token_mask_words(vocab_size) words (bit i: token i is allowed), and returns
// true, or returns false if all are allowed. `generated`: the output so far; may be empty without
// bad_words and a limit of reasoning. `end_tokens`: the model's own. `grammar`: a mask with at
// least one token, or empty: all.
bool write_token_mask(const SamplingParams& params,
                      int32_t num_generated,
                      const TokenSequence& generated,
                      std::span<const TokenId> end_tokens,
                      int32_t vocab_size,
                      std::span<const uint32_t> grammar,
                      std::span<uint32_t> mask);

}  // namespace sluice
