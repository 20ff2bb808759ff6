// SPDX-License-Identifier: Apache-2.0
// Suffix decoding (Oliaro et al. 2024): a guess goes on as the text's last tokens went on most
// often, in the request itself and in earlier answers to requests of its salt. It is as long as it
// is likely: a longer match and a surer continuation give more tokens. A finished answer is learned
// some tokens at a time, beside the guesses of others.
#pragma once

#include <memory>

#include "engine/spec/proposer.h"

namespace sluice {

struct SuffixOptions {
  int32_t max_depth = 24;               // tokens of a match and its guess together; at least 2
  int32_t max_cached_requests = 10000;  // answers that are remembered; 0: none
  double max_spec_factor = 1.0;         // guessed tokens for each one matched
  double min_token_prob = 0.1;          // that the guess goes on so, by what was counted
};

std::unique_ptr<Proposer> make_suffix_proposer(const SuffixOptions& options);

// What one of these holds at most, in bytes, with so many requests of at most `max_length` tokens.
int64_t suffix_max_bytes(const SuffixOptions& options, int32_t num_requests, int64_t max_length);

}  // namespace sluice
