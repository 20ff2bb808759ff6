// SPDX-License-Identifier: Apache-2.0
// Prompt lookup: finds the text's last tokens earlier in it and guesses what followed there. The
// latest occurrence of the last `max_n` tokens counts, otherwise that of the last `min_n`. A guess
// that reaches the text's end continues with itself, as a repetition.
#pragma once

#include <memory>

#include "engine/spec/proposer.h"

namespace sluice {

// Requires 1 <= min_n <= max_n.
std::unique_ptr<Proposer> make_ngram_proposer(int32_t min_n, int32_t max_n);

// The most bytes that one holds for `num_requests` requests of at most `max_length` tokens.
int64_t ngram_max_bytes(int32_t num_requests, int64_t max_length);

}  // namespace sluice
