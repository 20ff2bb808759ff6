// SPDX-License-Identifier: Apache-2.0
// Suffix decoding (Oliaro et al. 2024): guesses the most frequent continuation of the text's last
// tokens, in the request itself and in earlier answers to requests with its salt. A longer match
// and a surer continuation give more tokens. A finished answer is learned a few tokens at a time,
// during other guesses.
#pragma once

#include <memory>

#include "engine/spec/proposer.h"

namespace sluice {

struct SuffixOptions {
  int32_t max_depth = 24;               // tokens of a match and its guess together; at least 2
  int32_t max_cached_requests = 10000;  // answers kept; 0: none
  double max_spec_factor = 1.0;         // guessed tokens per matched token
  double min_token_prob = 0.1;          // least counted probability of the guess so far
};

std::unique_ptr<Proposer> make_suffix_proposer(const SuffixOptions& options);

// The most bytes that one holds for `num_requests` requests of at most `max_length` tokens.
int64_t suffix_max_bytes(const SuffixOptions& options, int32_t num_requests, int64_t max_length);

}  // namespace sluice
