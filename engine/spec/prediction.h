// SPDX-License-Identifier: Apache-2.0
// The answer that the client expects, as a guess: it is followed as long as the answer does, and
// found again where the answer has left it: one token behind, as after a token that was replaced,
// or where the answer's last two tokens stand in it.
#pragma once

#include <memory>

#include "engine/spec/proposer.h"

namespace sluice {

std::unique_ptr<Proposer> make_prediction_proposer();

// What one of these holds at most, in bytes, with so many requests of at most `max_length` tokens.
int64_t prediction_max_bytes(int32_t num_requests, int64_t max_length);

}  // namespace sluice
