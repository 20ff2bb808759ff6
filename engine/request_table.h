// SPDX-License-Identifier: Apache-2.0
// The engine's side of a request: its sink, parameters and times. What the scheduler needs lives in
// scheduler/request.h. Engine thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/stats.h"
#include "engine/core/types.h"
#include "engine/request.h"
#include "engine/sampling/grammar/grammar.h"
#include "engine/sampling/sampler.h"
#include "scheduler/admission.h"

namespace sluice {

// Why a request ends without another token.
struct Ending {
  FinishReason reason = FinishReason::kAbort;
  std::string error = {};                       // with kError: one line for the client
  ErrorCode code = ErrorCode::kInternal;        // with kError
  int32_t retry_after_s = 0;                    // with kError: when to come back; 0: not known
  std::string param = {};                       // with kError: request field at fault
};

struct RequestState {
  using Clock = std::chrono::steady_clock;

  std::shared_ptr<const SamplingParams> sampling;  // shared with steps in flight
  std::shared_ptr<const Grammar> grammar;          // the same; null: none, or being compiled
  std::vector<TokenId> begins_behind;              // as in GrammarSpec
  OutputSink* sink = nullptr;
  TraceContext trace;
  QueuedWork queued;  // until it is scheduled
  Clock::time_point arrival;
  Clock::time_point first_scheduled;
  Clock::time_point first_token;
  Clock::time_point last_token;
  int32_t num_prompt_tokens = 0;
  int32_t num_cached_tokens = 0;
  int32_t num_given = 0;      // of its answer, by another worker before it came here
  int32_t num_generated = 0;  // those included
  int32_t num_preemptions = 0;
  int32_t num_draft_tokens = 0;          // in steps
  int32_t num_accepted_tokens = 0;       // of them
  int32_t num_accepted_predictions = 0;  // tokens; TokenOutput's
  int32_t num_rejected_predictions = 0;
  bool scheduled = false;
  bool has_handoff = false;
  std::shared_ptr<const HandoffOffer> offer;  // of its last output
};

class RequestTable {
 public:
  using Clock = RequestState::Clock;

  void add(RequestId id, ValidRequest request, const QueuedWork& queued, OutputSink& sink);
  [[nodiscard]] const RequestState* find(RequestId id) const;

  // True the first time: the request has left the queue.
  bool note_scheduled(RequestId id,
                      int32_t num_cached_tokens,
                      Clock::time_point now,
                      EngineStats& stats);
  // Before it is scheduled.
  void set_grammar(RequestId id,
                   std::shared_ptr<const Grammar> grammar,
                   std::vector<TokenId> begins_behind) {
    RequestState& state = states_.at(id);
    state.grammar = std::move(grammar);
    state.begins_behind = std::move(begins_behind);
  }
  // Before it is scheduled: the seed of another worker counts.
  void set_seed(RequestId id, uint64_t seed);
  // Before it is scheduled: another worker has a part in it.
  void note_handoff(RequestId id) { states_.at(id).has_handoff = true; }
  // Before its last token: what that output carries.
  void set_offer(RequestId id, std::shared_ptr<const HandoffOffer> offer) {
    states_.at(id).offer = std::move(offer);
  }
  void note_preempted(RequestId id) { ++states_.at(id).num_preemptions; }
  // Queues the outputs of a step, at least one; the request leaves the table when the last one
  // carries a finish reason. All outputs but the last are drafts of the step, of which there were
  // `num_drafts`; `are_predicted`: by the client.
  void add_tokens(RequestId id,
                  std::span<const SamplerResult> results,
                  size_t num_drafts,
                  bool are_predicted,
                  Clock::time_point now,
                  EngineStats& stats);
  void add_prompt_logprobs(RequestId id, std::vector<PromptLogprob> logprobs);
  // Queues an output without a token and removes the request. Unknown ids are ignored.
  void end(RequestId id, const Ending& ending, EngineStats& stats);

  // Requests that have left the table.
  [[nodiscard]] uint64_t num_ended() const { return num_ended_; }

  [[nodiscard]] static RequestTimings timings(const RequestState& state);
  [[nodiscard]] const std::unordered_map<RequestId, RequestState>& states() const {
    return states_;
  }

  // Hands each sink what was queued for it since the last call.
  void flush();

 private:
  void queue(OutputSink* sink, TokenOutput output);
  void remove(RequestId id);
  void queue_token(RequestId id, const RequestState& state, const SamplerResult& result);
  static void count_end(const RequestState& state, FinishReason reason, EngineStats& stats);

  std::unordered_map<RequestId, RequestState> states_;
  uint64_t num_ended_ = 0;
  struct Pending {
    OutputSink* sink;
    OutputBatch batch;
  };

  std::vector<Pending> pending_;  // one per sink with output, usually one per I/O thread
};

}  // namespace sluice
