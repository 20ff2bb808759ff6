// SPDX-License-Identifier: Apache-2.0
// Drafts what a grammar determines: where its mask has a single token, the answer continues with
// it, whatever the model computes. Where all tokens of the mask begin one text, the longest is the
// guess, although the answer may be spelled otherwise. A run of such tokens is one draft.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "engine/spec/proposer.h"

namespace sluice {

// Returns the bytes of a token, valid as long as the engine lives; empty: it has none.
using TokenText = std::function<std::string_view(TokenId)>;

// `text` may be null: then only masks of one token are followed.
std::unique_ptr<Proposer> make_forced_proposer(int32_t vocab_size, TokenText text);

// The most bytes that one such proposer holds for `num_requests` requests of at most `max_length`
// tokens, without the matchers of their grammars.
int64_t forced_max_bytes(int32_t num_requests, int64_t max_length);

}  // namespace sluice
