// SPDX-License-Identifier: Apache-2.0
// What a grammar leaves no choice about: where its mask has one token, the answer goes on so,
// whatever the model thinks. Where all tokens of the mask begin one text, the longest is the guess:
// the answer may be spelled otherwise. A run of such tokens is one draft.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "engine/spec/proposer.h"

namespace sluice {

// The bytes of a token, as long as the engine lives; empty: it has none.
using TokenText = std::function<std::string_view(TokenId)>;

// `text` may be null: then only masks of one token are followed.
std::unique_ptr<Proposer> make_forced_proposer(int32_t vocab_size, TokenText text);

// What one of these holds at most, in bytes, with so many requests of at most `max_length` tokens,
// without what the matchers of their grammars take.
int64_t forced_max_bytes(int32_t num_requests, int64_t max_length);

}  // namespace sluice
