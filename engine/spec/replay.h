// SPDX-License-Identifier: Apache-2.0
// For tests and measurements: a request's `prediction` is its recorded answer, and every token of
// it is guessed, except for a share that is made wrong. Any acceptance is thus possible on any
// text. The seed and the position determine the wrong tokens.
#pragma once

#include <memory>

#include "engine/spec/proposer.h"

namespace sluice {

// `error_rate`: 0 to 1. `vocab_size`: at least 2.
std::unique_ptr<Proposer> make_replay_proposer(double error_rate,
                                               uint64_t seed,
                                               int32_t vocab_size);

// The most bytes that one holds for `num_requests` requests of at most `max_length` tokens.
int64_t replay_max_bytes(int32_t num_requests, int64_t max_length);

}  // namespace sluice
