// SPDX-License-Identifier: Apache-2.0
// Drafts from the answer that the client expects: follows it as long as the answer does. After a
// deviation it resumes one token later, as after a replaced token, or where the answer's last two
// tokens occur in it.
#pragma once

#include <memory>

#include "engine/spec/proposer.h"

namespace sluice {

std::unique_ptr<Proposer> make_prediction_proposer();

// The most bytes that one holds for `num_requests` requests of at most `max_length` tokens.
int64_t prediction_max_bytes(int32_t num_requests, int64_t max_length);

}  // namespace sluice
