// SPDX-License-Identifier: Apache-2.0
// What of a request does not change once the scheduler has it. From then on it is shared, on any
// thread, by all that choose, draft or score its tokens; each adds only what is its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/core/pooling.h"
#include "engine/core/sampling_params.h"
#include "engine/core/token_log.h"
#include "engine/core/trace_context.h"
#include "engine/core/types.h"
#include "engine/sampling/grammar/grammar.h"

namespace sluice {

struct RequestRecord {
  RequestId id = {};
  int32_t slot = -1;  // the scheduler's, from Scheduler::add on
  TokenLog log = {};
  int32_t num_prompt_tokens = 0;
  int32_t num_given = 0;  // answer tokens that another worker gave before
  SamplingParams sampling = {};
  std::shared_ptr<const BoundGrammar> grammar = {};  // null: none
  std::optional<PoolingParams> pooling = {};
  bool speculative = true;
  std::vector<TokenId> prediction = {};  // see ValidRequest
  uint64_t tenant_salt = 0;
  bool checks_first_row = false;  // SampledRequest::check of its first token is wanted
  std::chrono::steady_clock::time_point arrival = {};
  TraceContext trace = {};
};

}  // namespace sluice
