// SPDX-License-Identifier: Apache-2.0
// Prompt lookup: the text's last tokens are looked for earlier in it, and what followed there is
// the guess. The latest occurrence of the last `max_n` tokens counts, else that of the last
// `min_n`. A guess that reaches the text's end goes on with itself, as a repetition does.
#pragma once

#include <memory>

#include "engine/spec/proposer.h"

namespace sluice {

// 1 <= min_n <= max_n.
std::unique_ptr<Proposer> make_ngram_proposer(int32_t min_n, int32_t max_n);

// What one of these holds at most, in bytes, with so many requests of at most `max_length` tokens.
int64_t ngram_max_bytes(int32_t num_requests, int64_t max_length);

}  // namespace sluice
