// SPDX-License-Identifier: Apache-2.0
// For tests and measurements: a request's `prediction` is its recorded answer, and every token of
// it is guessed, but for a share that is made wrong. So any acceptance can be had on any text.
// Which tokens are wrong is a function of the seed and the position.
#pragma once

#include <memory>

#include "engine/spec/proposer.h"

namespace sluice {

// `error_rate`: 0 to 1. `vocab_size`: at least 2.
std::unique_ptr<Proposer> make_replay_proposer(double error_rate,
                                               uint64_t seed,
                                               int32_t vocab_size);

// What one of these holds at most, in bytes, with so many requests of at most `max_length` tokens.
int64_t replay_max_bytes(int32_t num_requests, int64_t max_length);

}  // namespace sluice
