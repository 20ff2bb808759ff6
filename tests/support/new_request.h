// SPDX-License-Identifier: Apache-2.0
// Requests for a scheduler without an engine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler/scheduled_request.h"

namespace sluice::testing {

// Returns a request with this prompt; the caller sets the other fields.
inline Request new_request(uint64_t id, std::vector<TokenId> prompt, int32_t max_tokens) {
  Request request;
  request.id = RequestId{id};
  request.num_prompt_tokens = static_cast<int32_t>(prompt.size());
  const size_t num_in_all = prompt.size() + static_cast<size_t>(std::max(max_tokens, 0));
  request.log = TokenLog(std::move(prompt), num_in_all);
  request.max_tokens = max_tokens;
  return request;
}

}  // namespace sluice::testing
