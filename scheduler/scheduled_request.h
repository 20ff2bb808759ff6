// SPDX-License-Identifier: Apache-2.0
// A request as the scheduler holds it. Made when it arrives; from Scheduler::add on the scheduler
// owns it, and other components hold its id.
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

struct Request {
  // Given to Scheduler::add, and not changed by it.
  RequestId id;
  // The prompt, not empty, then what another worker generated; update() appends. Has room for
  // max_tokens after the prompt.
  TokenLog log;
  int32_t num_prompt_tokens = 0;
  int32_t max_tokens = 1;  // to generate in all; prompt + max_tokens <= max_model_len
  int32_t priority = 0;    // lower first
  TenantId tenant{};       // the tenant that is charged
  PrefixExtras extras = {};
  bool scores_prompt = false;             // the logits of every prompt row are wanted
  PooledRows pooled = PooledRows::kNone;  // where set, max_tokens does not count
  bool keeps_prompt = false;              // its KV should stay cached longer than others'
  bool is_fallback = false;               // counts towards SchedulerOptions::max_fallback_share
  // Tokens whose KV another worker has computed: a request that finds fewer cached is a fallback.
  int32_t num_landed_tokens = 0;
  bool streams_kv = false;            // KV is sent to another worker by chunk: a short last chunk
  int64_t arrival_ms = 0;             // on the clock of schedule()
  int64_t deadline_ms = kNoDeadline;  // the request ends if not started by then

  // The scheduler's.
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
  // Prompt rows whose logits, or states where it is pooled, retired steps have given.
  int32_t num_scored_tokens = 0;
  bool abort_pending = false;  // aborted while in flight: ends when the step retires
  bool restarts = false;       // StepResult::restarts was set; cleared by the preemption

  [[nodiscard]] std::span<const TokenId> tokens() const { return log.tokens(); }

  [[nodiscard]] int32_t num_tokens() const { return static_cast<int32_t>(tokens().size()); }

  [[nodiscard]] int32_t num_generated() const { return num_tokens() - num_prompt_tokens; }

  // Whether each row of the prompt has to be computed, whatever is cached.
  [[nodiscard]] bool needs_every_row() const {
    return scores_prompt || pooled == PooledRows::kFirst || pooled == PooledRows::kAll;
  }
};

}  // namespace sluice
