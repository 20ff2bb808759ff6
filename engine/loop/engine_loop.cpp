// SPDX-License-Identifier: Apache-2.0
// The step loop: drain inbox -> schedule -> run -> sample -> commit -> publish. Everything happens
// on one thread, except that with --overlap or on a GPU a step runs and samples while the next one
// is scheduled.
#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/core/log.h"
#include "engine/draft/drafting.h"
#include "engine/loop/engine_core.h"
#include "engine/loop/local_engine.h"
#include "engine/run/step_executor.h"
#include "engine/tiers/kv_event_publisher.h"

namespace sluice {
namespace {

const char* failure_of(const StepWork& work, bool grammar_failed = false) {
  if (grammar_failed) return "The answer cannot go on in its grammar.";
  if (work.has_failed) return "A rank that computes a part of the model has failed.";
  return work.pooled.empty() ? "The model produced logits that are not finite."
                             : "The model produced a vector that is not finite.";
}

}  // namespace

void LocalEngine::run() {
  constexpr auto kRestoreWait = std::chrono::milliseconds(50);
  bool has_rested = false;
  while (!stopping_) {
    drain_inbox();
    if (stopping_) break;
    advance_holders();
    if (core_->scheduler.has_work()) {
      has_rested = false;
      // All waiting requests may be waiting for the room of one that is being restored.
      if (!step() && core_->scheduler.num_restoring() > 0) inbox_.wait_for(kRestoreWait);
    } else {
      release_ended();
      last_progress_ns_ = now_ns();
      publish_stats();
      if (core_->events) core_->events->end_step();  // publishes what tiers have written since
      rest(has_rested);
    }
  }
  inbox_.close();
  while (core_->executor->num_in_flight() > 0) core_->executor->retire();
  drain_inbox();  // late submissions get their reply too
  while (!core_->requests.states().empty()) {
    end_request(core_->requests.states().begin()->first,
                {.reason = FinishReason::kAbort, .error = "The server has stopped."});
  }
  publish_stats();
  core_->requests.flush();
}

// Waits for commands. When none has come for a moment, which is longer than a client takes between
// requests, lets the system give memory that the next ones will need, a piece at a time.
void LocalEngine::rest(bool& has_rested) {
  constexpr auto kMoment = std::chrono::microseconds(5'000);
  if (!has_rested) {
    inbox_.wait_for(std::min(idle_wait(), kMoment));
  } else if (!back_ahead()) {
    inbox_.wait_for(idle_wait());
  }
  has_rested = true;
}

bool LocalEngine::back_ahead() {
  if (core_->executor->num_in_flight() > 0) return false;
  for (int32_t group = 0; group < core_->kv.num_groups(); ++group) {
    if (core_->runner->back_ahead(group, core_->kv.num_filled(group))) return true;
  }
  return false;
}

// Releases grammars and tokens of ended requests before the next order would.
void LocalEngine::release_ended() {
  if (core_->executor->num_in_flight() > 0) return;
  core_->ended.clear();
  core_->orders.take_ended(core_->requests, core_->ended);
  if (!core_->ended.empty()) core_->executor->release(core_->ended);
}

// Records what the scheduler has decided; the times follow during the step.
void LocalEngine::record(const SchedulerOutput& output, StepRecord& step) const {
  step.predicted_ms = output.predicted_ms;
  step.num_tokens = output.total_tokens;
  step.num_prefill_tokens = output.num_prefill_tokens;
  step.num_preempted = static_cast<int32_t>(output.preempted.size());
  for (const ScheduledRequest& item : output.scheduled) {
    step.items.push_back({.id = item.id,
                          .position = item.num_computed_tokens,
                          .num_tokens = item.num_scheduled_tokens,
                          .samples = !item.chosen.empty(),
                          .num_drafts = item.num_draft_tokens});
  }
}

// Restores preempted requests from the store, where it has something worth reading.
void LocalEngine::restore_preempted(const SchedulerOutput& output) {
  for (const RequestId id : output.restoring) {
    const Request& request = *core_->scheduler.find(id);
    if (!core_->store->hold_preempted(request, Clock::now())) core_->scheduler.resume(id);
  }
}

// Returns whether anything ran.
bool LocalEngine::step() {
  bool retires = false;
  if (core_->executor->num_in_flight() > 0 &&
      core_->drafting->should_wait(core_->scheduler, counters_.drafts)) {
    while (core_->executor->num_in_flight() > 0) retire();
    retires = true;
  }
  const bool is_launched = launch();
  // Where nothing could be launched, what the next step to retire leaves may allow it.
  const int32_t may_run =
      is_launched ? core_->executor->depth() : std::max(core_->executor->num_in_flight() - 1, 0);
  while (core_->executor->num_in_flight() > may_run || core_->executor->is_oldest_done()) {
    retire();
    retires = true;
  }
  if (core_->events) core_->events->end_step();
  // A client that has seen a request's end finds it counted.
  publish_stats();
  core_->requests.flush();
  return is_launched || retires;
}

// Decides a step and submits it; false: there was nothing to run.
bool LocalEngine::launch() {
  const int64_t begin_ns = now_ns();
  core_->drafting->offer(core_->scheduler, counters_.drafts);
  give_back_room();
  const bool anybody_waited = core_->scheduler.num_unstarted() > 0;
  const SchedulerOutput& output = core_->scheduler.schedule(to_ms(Clock::now()));
  for (const RequestId id : output.preempted) core_->requests.note_preempted(id);
  restore_preempted(output);
  end_undecided(output);
  if (output.scheduled.empty()) return false;
  const Clock::time_point started = Clock::now();
  Core::StepNote& note = core_->notes.emplace_back();
  note.anybody_waited = anybody_waited;
  StepRecord& step = core_->steps.begin();
  note.number = step.number;
  step.begin_ns = begin_ns;
  step.scheduled_ns = now_ns();
  step.num_in_flight = core_->executor->num_in_flight();
  record(output, step);
  if (step.num_in_flight == 0) step_started_ns_ = step.scheduled_ns;
  for (const ScheduledRequest& item : output.scheduled) {
    const Request& request = *core_->scheduler.find(item.id);
    if (core_->requests.note_scheduled(item.id, request.num_cached_tokens, started, counters_)) {
      const QueuedWork& queued = core_->requests.find(item.id)->queued;
      note.work_started += queued.work;
      gate_.leave(queued);
    }
  }
  core_->orders.write(output, core_->requests, core_->executor->next_order());
  core_->executor->submit();
  return true;
}

// Retires the oldest step in flight.
void LocalEngine::retire() {
  StepWork& work = core_->executor->retire();
  const Core::StepNote note = core_->notes.front();
  core_->notes.erase(core_->notes.begin());
  StepRecord& step = core_->steps.of(note.number);
  step.started_ns = to_ns(work.started);
  step.executed_ns = to_ns(work.executed);
  step.sampled_ns = to_ns(work.sampled);
  step.retired_ns = now_ns();
  step.device_idle_ns = static_cast<int64_t>(1e9 * work.device_idle);
  counters_.device_idle_ns += static_cast<uint64_t>(step.device_idle_ns);
  add_results(work);
  commit(work);
  core_->drafting->follow(work.order.decision);
  step.num_running = core_->scheduler.num_running();
  step.num_waiting = core_->scheduler.num_waiting();
  step.end_ns = now_ns();
  if (note.anybody_waited) {
    gate_.observe_step(note.work_started, seconds_between(work.started, Clock::now()));
  }
  step_started_ns_ = core_->executor->num_in_flight() > 0 ? step.end_ns : 0;
  last_progress_ns_ = step.end_ns;
}

// A failed rank never recovers: the process has to be restarted from outside.
void LocalEngine::note_failed_rank() {
  if (std::exchange(has_failed_, true)) return;
  draining_ = true;
  log_event(LogLevel::kError, "rank_failed", "then", "no new requests, the others end");
}

// Publishes the results of requests that have not ended while the step was in flight.
void LocalEngine::add_results(StepWork& work) {
  const Clock::time_point now = Clock::now();
  core_->failed.clear();
  if (work.has_failed) {
    note_failed_rank();
    for (const ScheduledRequest& item : work.order.decision.scheduled) {
      core_->failed.push_back(item.id);
    }
  }
  for (ScoredPrompt& prompt : work.prompts) {
    const bool is_over = core_->requests.find(prompt.id) == nullptr;  // an earlier chunk failed
    if (is_over || !prompt.is_finite) core_->failed.push_back(prompt.id);
    if (is_over || work.has_failed) continue;
    core_->requests.add_prompt_logprobs(prompt.id, std::move(prompt.logprobs));
  }
  if (!work.has_failed) add_pooled(work);
  core_->results.clear();
  core_->finished.clear();
  for (const SampledRequest& sampled : work.requests) {
    const RequestId id = sampled.id;
    const bool has_failed = std::ranges::find(core_->failed, id) != core_->failed.end();
    const size_t num_tokens = has_failed ? 0 : sampled.num_tokens;
    const std::span<const SamplerResult> results =
        std::span(work.results).subspan(sampled.first_row, num_tokens);
    const bool ends = results.empty() || results.back().finish_reason != FinishReason::kNone;
    const std::span<const TokenId> tokens =
        std::span(work.tokens).subspan(sampled.first_row, num_tokens);
    const bool is_over = core_->requests.find(id) == nullptr;
    const bool restarts = !is_over && !results.empty() &&
                          must_restart(*core_->scheduler.find(id), sampled.check, tokens.front());
    const bool is_void = is_over || restarts;
    if (restarts) {
      core_->results.push_back({.id = id, .tokens = {}, .restarts = true});
    } else {
      core_->results.push_back({.id = id, .tokens = tokens, .finished = ends});
    }
    Drafting::count(sampled.draft_source,
                    sampled.drafts.size(),
                    is_void ? 0 : num_tokens,
                    ends || is_void,
                    counters_.drafts);
    if (is_void) continue;
    const Request& request = *core_->scheduler.find(id);
    if (ends) core_->finished.push_back(id);
    if (results.empty()) {
      const bool has_grammar_failed = work.results[sampled.first_row].grammar_failed;
      end_request(id,
                  {.reason = FinishReason::kError, .error = failure_of(work, has_grammar_failed)});
    } else {
      const bool are_predicted = sampled.draft_source == DraftSource::kPrediction;
      core_->requests.add_tokens(id, results, sampled.drafts.size(), are_predicted, now, counters_);
    }
    const int32_t num_generated = request.num_generated() + static_cast<int32_t>(results.size());
    if (ends) gate_.observe_output(num_generated);
  }
}

// Adds rows to pooled requests that have not ended meanwhile, and publishes those that are done.
void LocalEngine::add_pooled(StepWork& work) {
  for (const EmbeddedRow& row : work.embedded) {
    if (core_->requests.find(row.id) == nullptr || row.state.empty()) continue;
    core_->requests.add_pooled_row(row.id, *info_.pooling, row.state);
  }
  if (work.pooled.empty()) return;
  std::erase_if(work.pooled,
                [this](RequestId id) { return core_->requests.find(id) == nullptr; });
  core_->requests.end_pooled(
      work.pooled, *info_.pooling, pooled_layers_, counters_, core_->failed);
}

void LocalEngine::commit(StepWork& work) {
  const SchedulerOutput& output = work.order.decision;
  const double seconds = seconds_between(work.started, work.sampled);
  core_->aborted.clear();
  if (core_->store) {
    core_->store->save(output, core_->scheduler, core_->results, core_->failed);
  }
  core_->scheduler.update(output, core_->results, 1e3 * seconds, core_->aborted);
  for (const RequestId id : core_->finished) core_->drafting->end(id);
  for (const RequestId id : core_->aborted) {
    end_request(id, {.reason = FinishReason::kAbort});
  }
  for (const RequestId id : core_->failed) {  // requests that did not sample
    core_->scheduler.abort(id);
    end_request(id, {.reason = FinishReason::kError, .error = failure_of(work)});
  }
  if (core_->store) core_->store->end_step(output, core_->scheduler, seconds);
  retire_handoffs(output);
  if (output.drafts_off) ++counters_.drafts.num_steps_off[static_cast<size_t>(*output.drafts_off)];
  if (!output.draft_bins.empty()) counters_.drafts.gain_ratio = output.predicted_gain;
  ++counters_.num_steps;
  counters_.num_preemptions += output.preempted.size();
  counters_.iteration_tokens.observe(kIterationBounds, output.total_tokens);
  counters_.step_time.observe(kStepTimeBounds, seconds);
}

void LocalEngine::publish_stats() {
  const std::unique_lock lock(stats_mutex_, std::try_to_lock);
  if (!lock) return;  // a reader copies right now; the next step publishes
  const KvUsage usage = core_->kv.usage();
  counters_.num_requests_running = core_->scheduler.num_running();
  counters_.num_requests_waiting = core_->scheduler.num_waiting();
  counters_.num_blocks_total = usage.num_blocks;
  counters_.num_blocks_used = usage.num_referenced;
  counters_.num_states_total = usage.num_states;
  counters_.num_states_used = usage.num_states_referenced;
  counters_.block_size = core_->kv.block_size();
  counters_.prefix_cache_queries = usage.prefix_queries;
  counters_.prefix_cache_hits = usage.prefix_hits;
  if (core_->store) core_->store->add_stats(counters_);
  if (core_->handoff) counters_.handoff = core_->handoff->stats();
  published_ = counters_;
}

}  // namespace sluice
