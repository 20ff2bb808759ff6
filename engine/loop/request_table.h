// SPDX-License-Identifier: Apache-2.0
// The engine's state of each request: sink, parameters and times. The scheduler's state is in
// scheduler/scheduled_request.h. Engine thread only, but for the constructor of RequestState.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/pooling.h"
#include "engine/core/stats.h"
#include "engine/core/types.h"
#include "engine/loop/pool_rows.h"
#include "engine/request.h"
#include "engine/sampling/request_record.h"
#include "engine/sampling/sampler.h"
#include "scheduler/admission.h"
#include "scheduler/scheduled_request.h"

namespace sluice {

class PendingGrammar;

// The reason why a request ends without another token.
struct Ending {
  FinishReason reason = FinishReason::kAbort;
  std::string error = {};                 // one line for the client: see TokenOutput::error
  ErrorCode code = ErrorCode::kInternal;  // with kError
  int32_t retry_after_s = 0;              // with kError: when to retry; 0: not known
  std::string param = {};                 // with kError: request field at fault
};

struct RequestState {
  using Clock = std::chrono::steady_clock;

  // Takes a request over from its front end, on any thread. `max_model_len` bounds its tokens.
  RequestState(RequestId id, ValidRequest&& valid, OutputSink& sink, int32_t max_model_len);

  // Complete when the scheduler has the request; until then the grammar is compiled, another worker
  // takes part, that worker's seed applies.
  std::shared_ptr<RequestRecord> record;
  std::optional<Request> request;                         // until the scheduler has it
  std::shared_ptr<const PendingGrammar> pending_grammar;  // null: none
  std::shared_ptr<const GrammarSpec> grammar_spec;        // until it is compiled
  std::optional<HandoffSpec> handoff;
  OutputSink* sink = nullptr;
  QueuedWork queued;  // valid before it is scheduled
  Clock::time_point first_scheduled;
  Clock::time_point first_token;
  Clock::time_point last_token;
  int32_t num_cached_tokens = 0;
  int32_t num_generated = 0;  // includes record->num_given
  int32_t num_preemptions = 0;
  int32_t num_draft_tokens = 0;          // drafts in steps
  int32_t num_accepted_tokens = 0;       // accepted ones
  int32_t num_accepted_predictions = 0;  // see TokenOutput
  int32_t num_rejected_predictions = 0;
  bool scheduled = false;
  std::shared_ptr<const HandoffOffer> offer;  // for its last output
  std::vector<float> pooled;                  // what its rows have given so far (pool_rows.h)

  // Called once if there is a grammar to compile.
  void set_grammar(std::shared_ptr<const Grammar> grammar);
};

class RequestTable {
 public:
  using Clock = RequestState::Clock;

  RequestState& add(RequestState state);
  // Returns null for a request that has ended.
  [[nodiscard]] RequestState* find(RequestId id);
  [[nodiscard]] const RequestState* find(RequestId id) const;

  // True at the first call for a request, which then leaves the queue.
  bool note_scheduled(RequestId id,
                      int32_t num_cached_tokens,
                      Clock::time_point now,
                      EngineStats& stats);
  // Queues the outputs of a step, at least one; the request leaves the table when the last one
  // carries a finish reason. All outputs but the last are accepted drafts, out of `num_drafts`;
  // `are_predicted`: the client predicted them.
  void add_tokens(RequestId id,
                  std::span<const SamplerResult> results,
                  size_t num_drafts,
                  bool are_predicted,
                  Clock::time_point now,
                  EngineStats& stats);
  void add_prompt_logprobs(RequestId id, std::vector<PromptLogprob> logprobs);
  // Adds the state of a pooled request's next row.
  void add_pooled_row(RequestId id,
                      const PoolingInfo& info,
                      int32_t position,
                      std::span<const float> state);
  // Queues the answers of pooled requests whose rows are complete, and removes the requests. Those
  // whose answer is not finite stay and are added to `failed`.
  void end_pooled(std::span<const RequestId> ids,
                  const PoolingInfo& info,
                  const PooledOperators& layers,
                  EngineStats& stats,
                  std::vector<RequestId>& failed);
  // Queues an output without a token and removes the request. Unknown ids are ignored.
  void end(RequestId id, const Ending& ending, EngineStats& stats);

  // The number of requests that have left the table.
  [[nodiscard]] uint64_t num_ended() const { return num_ended_; }

  [[nodiscard]] static RequestTimings timings(const RequestState& state);

  [[nodiscard]] const std::unordered_map<RequestId, RequestState>& states() const {
    return states_;
  }

  // Hands each sink its queued outputs since the last call.
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
