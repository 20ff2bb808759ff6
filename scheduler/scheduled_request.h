// SPDX-License-Identifier: Apache-2.0
// A request as the scheduler holds it. The scheduler owns it; other components hold its id.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/core/token_log.h"
#include "engine/core/types.h"
#include "kvcache/kv_cache_manager.h"

namespace sluice {

inline constexpr int64_t kNoDeadline = INT64_MAX;

// Rows of a request that is pooled: those whose states are wanted. Such a request chooses no token
// and ends when its prompt is computed.
enum class PooledRows : uint8_t { kNone, kFirst, kLast, kAll };

// Whether each row of such a prompt has to be computed, whatever is cached.
constexpr bool needs_every_row(bool scores_prompt, PooledRows pooled) {
  return scores_prompt || pooled == PooledRows::kFirst || pooled == PooledRows::kAll;
}

enum class RequestStatus : uint8_t { kWaiting, kRunning, kPreempted, kFinished };

constexpr std::string_view to_string(RequestStatus status) {
  switch (status) {
    case RequestStatus::kWaiting:
      return "waiting";
    case RequestStatus::kRunning:
      return "running";
    case RequestStatus::kPreempted:
      return "preempted";
    case RequestStatus::kFinished:
      break;
  }
  return "finished";
}

// The argument of Scheduler::add.
struct NewRequest {
  RequestId id;
  std::vector<TokenId> tokens;  // the prompt, not empty; then what another worker generated
  int32_t max_tokens = 1;       // to generate in all; prompt + max_tokens <= max_model_len
  int32_t priority = 0;         // lower first
  PrefixExtras extras;
  int32_t num_generated = 0;   // trailing generated part of `tokens`; less than max_tokens
  bool scores_prompt = false;  // the logits of every prompt row are wanted
  PooledRows pooled = PooledRows::kNone;  // max_tokens and num_generated do not count where set
  bool keeps_prompt = false;              // its KV should stay cached longer than others'
  bool is_fallback = false;               // counts towards SchedulerOptions::max_fallback_share
  // Tokens whose KV another worker has computed: a request that finds fewer cached is a fallback.
  int32_t num_landed_tokens = 0;
  bool streams_kv = false;            // KV is sent to another worker by chunk: a short last chunk
  TenantId tenant{};                  // the tenant that is charged
  int64_t arrival_ms = 0;             // on the clock of schedule()
  int64_t deadline_ms = kNoDeadline;  // the request ends if not started by then
};

struct Request {
  RequestId id;
  TokenLog log;  // prompt, then generated; made by add(), appended to by update()
  int32_t num_prompt_tokens = 0;
  int32_t max_tokens = 0;
  int32_t priority = 0;
  TenantId tenant;
  PrefixExtras extras;
  uint64_t arrival_order = 0;  // set by add(); FCFS key, kept over preemptions
  RequestStatus status = RequestStatus::kWaiting;
  // The three counters: tokens with valid KV; tokens handed out by schedule() (computed + in
  // flight); tokens in steps that have not retired. Drafts count in the last two until their step
  // retires.
  int32_t num_computed_tokens = 0;
  int32_t num_scheduled_tokens = 0;
  int32_t num_in_flight_tokens = 0;
  int32_t num_cached_tokens = 0;  // prefix hit at first admission
  int32_t num_preemptions = 0;
  bool keeps_prompt = false;
  bool is_fallback = false;
  int32_t num_landed_tokens = 0;
  bool streams_kv = false;
  bool scores_prompt = false;
  PooledRows pooled = PooledRows::kNone;
  // Prompt rows whose logits, or states where it is pooled, retired steps have given.
  int32_t num_scored_tokens = 0;
  bool abort_pending = false;  // aborted while in flight: ends when the step retires
  bool restarts = false;       // StepResult::restarts was set; cleared by the preemption

  [[nodiscard]] std::span<const TokenId> tokens() const { return log.tokens(); }

  [[nodiscard]] int32_t num_tokens() const { return static_cast<int32_t>(tokens().size()); }

  [[nodiscard]] int32_t num_generated() const { return num_tokens() - num_prompt_tokens; }

  [[nodiscard]] bool needs_every_row() const {
    return sluice::needs_every_row(scores_prompt, pooled);
  }
};

}  // namespace sluice
