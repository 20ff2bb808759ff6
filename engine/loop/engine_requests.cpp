// SPDX-License-Identifier: Apache-2.0
// How requests enter and leave an engine: commands of other threads, holders on the way
// to the scheduler, and every end without another token.
#include <algorithm>
#include <utility>

#include "engine/draft/drafting.h"
#include "engine/loop/engine_core.h"
#include "engine/loop/local_engine.h"
#include "engine/loop/pool_rows.h"
#include "engine/sampling/grammar/grammar_compiler.h"

namespace sluice {

Expected<RequestId> LocalEngine::submit(ValidRequest request, OutputSink& sink) {
  if (draining_) {
    return make_error(ErrorCode::kUnavailable, "The server is draining and takes no new requests.");
  }
  if (request.pooling.has_value() != info_.pooling.has_value()) {
    return make_error(ErrorCode::kInvalidArgument,
                      info_.pooling ? "The model makes vectors and generates no tokens."
                                    : "The model generates tokens and makes no vectors.");
  }
  std::shared_ptr<const PendingGrammar> grammar;
  if (request.grammar != nullptr) {
    SLUICE_TRY(grammar, grammars_->request(request.grammar, request.tenant));
  }
  SLUICE_TRY(const QueuedWork queued, gate_.enter(request));
  QueuePlace place(gate_, queued);  // memory may be too little for what follows
  if (request.pooling) cut_padding(pooled_padding_, request.prompt);
  int64_t max_wait_ms = int64_t{1000} * config_.max_queue_wait_s;
  if (const int64_t own = request.max_queue_wait_ms; own > 0) {
    max_wait_ms = max_wait_ms > 0 ? std::min(max_wait_ms, own) : own;
  }
  const RequestId id(next_id_.fetch_add(1));
  RequestState state(id, std::move(request), sink, info_.max_model_len);
  state.queued = queued;
  state.pending_grammar = std::move(grammar);
  Request& asked = *state.request;
  if (state.record->pooling) asked.pooled = rows_to_pool(*info_.pooling, *state.record->pooling);
  if (max_wait_ms > 0) asked.deadline_ms = asked.arrival_ms + max_wait_ms;
  if (!inbox_.try_push(std::move(state))) {
    return make_error(ErrorCode::kUnavailable, "The engine has stopped.");
  }
  place.keep();
  return id;
}

EngineStats LocalEngine::stats() const {
  EngineStats copy;
  {
    const std::scoped_lock lock(stats_mutex_);
    copy = published_;
  }
  copy.step_started_ns = step_started_ns_;
  copy.last_progress_ns = last_progress_ns_;
  copy.draining = draining_;
  copy.num_refused = gate_.num_refused();
  if (grammars_ != nullptr) copy.grammars = grammars_->counters();
  // Requests in the inbox are waiting too, whether or not a step has seen them.
  copy.num_requests_waiting = std::max<int64_t>(copy.num_requests_waiting, gate_.num_waiting());
  return copy;
}

void LocalEngine::report_state(int32_t num_steps, std::function<void(EngineState)> done) {
  if (inbox_.push_urgent(StateCommand{num_steps, done})) return;
  EngineState state;
  state.stats = stats();
  done(std::move(state));
}

void LocalEngine::flush_prefix_cache(std::function<void(bool)> done) {
  if (!inbox_.push_urgent(FlushCommand{done})) done(false);
}

void LocalEngine::Core::drain_inbox() {
  engine.inbox_.drain(commands);
  for (Command& command : commands) {
    std::visit([this](auto& alternative) { handle(alternative); }, command);
  }
  requests.flush();
}

void LocalEngine::Core::handle(RequestState& submitted) {
  pass_on(requests.add(std::move(submitted)), 0);
}

// Offers the request to the holders from `first` on, then gives it to the scheduler.
void LocalEngine::Core::pass_on(RequestState& state, size_t first) {
  for (size_t i = first; i < holders.size(); ++i) {
    if (holders[i]->hold(state, Clock::now())) return;
  }
  const Expected<int32_t> slot = scheduler.add(std::move(*state.request));
  state.request.reset();
  if (!slot) {
    const Error& error = slot.error();
    end_request(state.record->id,
                {.reason = FinishReason::kError,
                 .error = error.message,
                 .code = error.code,
                 .retry_after_s = error.retry_after_s,
                 .param = error.param});
    return;
  }
  state.record->slot = *slot;
  counters.prompt_length.observe(kLengthBounds, state.record->num_prompt_tokens);
  drafting->begin(state.record);
}

// Takes what holders have released. One that goes on may be held by the next holder.
void LocalEngine::Core::advance_holders() {
  for (size_t i = 0; i < holders.size(); ++i) {
    std::vector<Holder::Released> released;
    holders[i]->advance(Clock::now(), released);
    for (const Holder::Released& one : released) {
      if (one.ending) {
        end_request(one.id, *one.ending);
      } else {
        pass_on(*requests.find(one.id), i + 1);
      }
    }
    requests.flush();
  }
  if (handoff) report_transfers();
}

// Ends a request without another token; every such end goes through here, when the scheduler has
// released the request or a step in flight will. Unknown ids have ended before.
void LocalEngine::Core::end_request(RequestId id, const Ending& ending) {
  const RequestState* state = requests.find(id);
  if (state == nullptr) return;
  if (!state->scheduled) engine.gate_.leave(state->queued);
  for (const auto& holder : holders) holder->end(id, Clock::now());
  drafting->end(id);
  requests.end(id, ending, counters);
}

void LocalEngine::Core::handle(const AbortCommand& command) {
  if (requests.find(command.id) == nullptr) return;
  // A preempted request that a holder restores belongs to the scheduler too.
  const bool was_held = std::ranges::any_of(
      holders, [&](const auto& holder) { return holder->abort(command.id, Clock::now()); });
  const bool is_gone = scheduler.abort(command.id);
  if (!was_held && !is_gone) return;  // in flight: update() reports it
  end_request(command.id, {.reason = FinishReason::kAbort});
}

void LocalEngine::Core::handle(const StateCommand& command) {
  EngineState state;
  publish_stats();
  state.stats = engine.stats();
  for (const RowTimes::Measured& measured : scheduler.row_times()) {
    state.row_times.push_back({.num_rows = measured.num_rows, .ms = measured.ms});
  }
  const KvUsage usage = kv.usage();
  state.num_blocks_free = usage.num_free;
  state.num_blocks_cached = usage.num_cached;
  const Clock::time_point now = Clock::now();
  for (const auto& [id, known] : requests.states()) {
    RequestSummary& summary = state.requests.emplace_back();
    summary.id = id;
    summary.tenant = known.queued.tenant;
    summary.status = "restoring";
    for (const auto& holder : holders) {
      if (const char* const status = holder->status_of(id)) summary.status = status;
    }
    summary.age_ms = 1e3 * seconds_between(known.record->arrival, now);
    summary.num_prompt_tokens = known.record->num_prompt_tokens;
    summary.num_cached_tokens = known.num_cached_tokens;
    summary.num_generated = known.num_generated;
    summary.max_tokens = known.record->sampling.max_tokens;
    summary.num_draft_tokens = known.num_draft_tokens;
    summary.num_accepted_tokens = known.num_accepted_tokens;
    summary.timings = RequestTable::timings(known);
    const Request* request = scheduler.find(id);
    if (request == nullptr) continue;  // a holder has it
    summary.status = to_string(request->status);
    summary.priority = request->priority;
    summary.num_computed_tokens = request->num_computed_tokens;
    for (int32_t group = 0; group < kv.num_groups(); ++group) {
      const std::span<const BlockId> table = kv.block_table(id, group);
      summary.num_blocks += static_cast<int32_t>(
          std::ranges::count_if(table, [](BlockId block) { return block != kNullBlock; }));
    }
  }
  std::ranges::sort(state.requests, {}, &RequestSummary::id);
  state.steps = steps.last(static_cast<size_t>(command.num_steps));
  command.done(std::move(state));
}

void LocalEngine::Core::handle(const FlushCommand& command) {
  const bool is_idle = requests.states().empty();
  if (is_idle) kv.reset_prefix_cache();
  command.done(is_idle);
}

void LocalEngine::Core::handle(const StopCommand&) { stopping = true; }

// Ends requests that the scheduler dropped without running them: those that waited past their
// deadlines, with the expected start of their tenant's next request as retry time, and those that
// can never run.
void LocalEngine::Core::end_undecided(const SchedulerOutput& output) {
  for (const RequestId id : output.expired) {
    end_request(id,
                {.reason = FinishReason::kError,
                 .error = "The request waited for its start until its deadline.",
                 .code = ErrorCode::kDeadlineExceeded,
                 .retry_after_s = engine.gate_.retry_after_s(requests.find(id)->queued.tenant)});
  }
  for (const RequestFailure& failure : output.failed) {
    end_request(failure.id, {.reason = FinishReason::kError, .error = failure.reason});
  }
}

}  // namespace sluice
