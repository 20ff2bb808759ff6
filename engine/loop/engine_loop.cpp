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

// A failed rank is the end of this engine, and no request's fault: a router goes on elsewhere.
Ending ending_of(const StepWork& work, bool grammar_failed = false) {
  if (work.has_failed) {
    return {.reason = FinishReason::kAbort,
            .error = "A rank that computes a part of the model has failed."};
  }
  const char* const error = grammar_failed ? "The answer cannot go on in its grammar."
                            : work.pooled.empty()
                                ? "The model produced logits that are not finite."
                                : "The model produced a vector that is not finite.";
  return {.reason = FinishReason::kError, .error = error};
}

// Records what the scheduler has decided; the times follow during the step.
void record(const SchedulerOutput& output, StepRecord& step) {
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

}  // namespace

void LocalEngine::Core::run() {
  constexpr auto kBlocksWait = std::chrono::milliseconds(50);
  bool has_rested = false;
  while (!stopping) {
    drain_inbox();
    if (stopping) break;
    advance_holders();
    if (scheduler.has_work()) {
      has_rested = false;
      // All waiting requests may be waiting for the room of one that is being restored.
      const bool runs = step();
      if (!runs && (scheduler.num_restoring() > 0 || waits_for_blocks)) {
        engine.inbox_.wait_for(kBlocksWait);
      }
    } else {
      release_ended();
      engine.last_progress_ns_ = now_ns();
      publish_stats();
      if (engine.events_) engine.events_->end_step();  // publishes what tiers have written since
      rest(has_rested);
    }
  }
  engine.inbox_.close();
  while (executor->num_in_flight() > 0) executor->retire();
  drain_inbox();  // late submissions get their reply too
  while (!requests.states().empty()) {
    end_request(requests.states().begin()->first,
                {.reason = FinishReason::kAbort, .error = "The server has stopped."});
  }
  publish_stats();
  requests.flush();
}

// Waits for commands. When none has come for a moment, which is longer than a client takes between
// requests, lets the system give memory that the next ones will need, a piece at a time.
void LocalEngine::Core::rest(bool& has_rested) {
  constexpr auto kMoment = std::chrono::microseconds(5'000);
  if (!has_rested) {
    engine.inbox_.wait_for(std::min(idle_wait(), kMoment));
  } else if (!back_ahead()) {
    engine.inbox_.wait_for(idle_wait());
  }
  has_rested = true;
}

bool LocalEngine::Core::back_ahead() {
  if (executor->num_in_flight() > 0) return false;
  for (int32_t group = 0; group < kv.num_groups(); ++group) {
    if (runner->back_ahead(group, kv.num_filled(group))) return true;
  }
  return false;
}

// Releases grammars and tokens of ended requests before the next order would.
void LocalEngine::Core::release_ended() {
  if (executor->num_in_flight() > 0) return;
  std::vector<int32_t> ended;  // slots
  orders.take_ended(requests, ended);
  if (!ended.empty()) executor->release(ended);
}

// Restores preempted requests from the store, where it has something worth reading.
void LocalEngine::Core::restore_preempted(const SchedulerOutput& output) {
  for (const RequestId id : output.restoring) {
    const Request& request = *scheduler.find(id);
    if (!store->hold_preempted(request, Clock::now())) scheduler.resume(id);
  }
}

// Returns whether anything ran.
bool LocalEngine::Core::step() {
  bool retires = false;
  if (executor->num_in_flight() > 0 && drafting->should_wait(scheduler, counters.drafts)) {
    while (executor->num_in_flight() > 0) retire();
    retires = true;
  }
  const bool is_launched = launch();
  // Where nothing could be launched, what the next step to retire leaves may allow it.
  const int32_t may_run =
      is_launched ? executor->depth() : std::max(executor->num_in_flight() - 1, 0);
  while (executor->num_in_flight() > may_run || executor->is_oldest_done()) {
    retire();
    retires = true;
  }
  if (engine.events_) engine.events_->end_step();
  // A client that has seen a request's end finds it counted.
  publish_stats();
  requests.flush();
  return is_launched || retires;
}

// Decides a step and submits it; false: there was nothing to run.
bool LocalEngine::Core::launch() {
  const int64_t begin_ns = now_ns();
  drafting->offer(scheduler, counters.drafts);
  const bool anybody_waited = scheduler.num_unstarted() > 0;
  const SchedulerOutput& output = scheduler.schedule(to_ms(Clock::now()));
  for (const RequestId id : output.preempted) ++requests.find(id)->num_preemptions;
  restore_preempted(output);
  end_undecided(output);
  // Blocks that the scheduler does not see: they wait for peers, or are being read. The latter come
  // back by themselves.
  waits_for_blocks = output.is_starved && !(handoff && handoff->give_back_blocks(Clock::now()));
  if (output.scheduled.empty()) return false;
  const Clock::time_point started = Clock::now();
  StepNote& note = notes.emplace_back();
  note.anybody_waited = anybody_waited;
  StepRecord& step = steps.begin();
  note.number = step.number;
  step.begin_ns = begin_ns;
  step.scheduled_ns = now_ns();
  step.num_in_flight = executor->num_in_flight();
  record(output, step);
  if (step.num_in_flight == 0) engine.step_started_ns_ = step.scheduled_ns;
  for (const ScheduledRequest& item : output.scheduled) {
    const Request& request = *scheduler.find(item.id);
    if (requests.note_scheduled(item.id, request.num_cached_tokens, started, counters)) {
      const QueuedWork& queued = requests.find(item.id)->queued;
      note.work_started += queued.work;
      engine.gate_.leave(queued);
    }
  }
  orders.write(output, requests, executor->next_order());
  executor->submit();
  return true;
}

// Retires the oldest step in flight.
void LocalEngine::Core::retire() {
  StepWork& work = executor->retire();
  const StepNote note = notes.front();
  notes.erase(notes.begin());
  StepRecord& step = steps.of(note.number);
  step.started_ns = to_ns(work.started);
  step.executed_ns = to_ns(work.executed);
  step.sampled_ns = to_ns(work.sampled);
  step.retired_ns = now_ns();
  step.device_idle_ns = static_cast<int64_t>(1e9 * work.device_idle);
  counters.device_idle_ns += static_cast<uint64_t>(step.device_idle_ns);
  add_results(work);
  commit(work);
  drafting->follow(work.order.decision);
  step.num_running = scheduler.num_running();
  step.num_waiting = scheduler.num_waiting();
  step.end_ns = now_ns();
  if (note.anybody_waited) {
    engine.gate_.observe_step(note.work_started, seconds_between(work.started, Clock::now()));
  }
  engine.step_started_ns_ = executor->num_in_flight() > 0 ? step.end_ns : 0;
  engine.last_progress_ns_ = step.end_ns;
}

// A failed rank never recovers: the process has to be restarted from outside.
void LocalEngine::Core::note_failed_rank() {
  if (std::exchange(has_lost_rank, true)) return;
  engine.draining_ = true;
  log_event(LogLevel::kError, "rank_failed", "then", "no new requests, the others end");
}

// Publishes the results of requests that have not ended while the step was in flight.
void LocalEngine::Core::add_results(StepWork& work) {
  const Clock::time_point now = Clock::now();
  auto& [results, finished, failed, aborted] = outcome;
  results.clear();
  finished.clear();
  failed.clear();
  aborted.clear();
  if (work.has_failed) {
    note_failed_rank();
    for (const ScheduledRequest& item : work.order.decision.scheduled) {
      failed.push_back(item.id);
    }
  }
  for (ScoredPrompt& prompt : work.prompts) {
    const bool is_over = requests.find(prompt.id) == nullptr;  // an earlier chunk failed
    if (is_over || !prompt.is_finite) failed.push_back(prompt.id);
    if (is_over || work.has_failed) continue;
    requests.add_prompt_logprobs(prompt.id, std::move(prompt.logprobs));
  }
  if (!work.has_failed) add_pooled(work);
  for (const SampledRequest& sampled : work.requests) {
    const RequestId id = sampled.id;
    const bool has_failed = std::ranges::find(failed, id) != failed.end();
    const size_t num_tokens = has_failed ? 0 : sampled.num_tokens;
    const std::span<const SamplerResult> rows =
        std::span(work.results).subspan(sampled.first_row, num_tokens);
    const bool ends = rows.empty() || rows.back().finish_reason != FinishReason::kNone;
    const std::span<const TokenId> tokens =
        std::span(work.tokens).subspan(sampled.first_row, num_tokens);
    const bool is_over = requests.find(id) == nullptr;
    const bool restarts = !is_over && !rows.empty() &&
                          must_restart(*scheduler.find(id), sampled.check, tokens.front());
    const bool is_void = is_over || restarts;
    if (restarts) {
      results.push_back({.id = id, .tokens = {}, .restarts = true});
    } else {
      results.push_back({.id = id, .tokens = tokens, .finished = ends});
    }
    Drafting::count(sampled.draft_source,
                    sampled.drafts.size(),
                    is_void ? 0 : num_tokens,
                    ends || is_void,
                    counters.drafts);
    if (is_void) continue;
    const Request& request = *scheduler.find(id);
    if (ends) finished.push_back(id);
    if (rows.empty()) {
      const bool has_grammar_failed = work.results[sampled.first_row].grammar_failed;
      end_request(id, ending_of(work, has_grammar_failed));
    } else {
      const bool are_predicted = sampled.draft_source == DraftSource::kPrediction;
      requests.add_tokens(id, rows, sampled.drafts.size(), are_predicted, now, counters);
    }
    const int32_t num_generated = request.num_generated() + static_cast<int32_t>(rows.size());
    if (ends) engine.gate_.observe_output(num_generated);
  }
}

// Adds rows to pooled requests that have not ended meanwhile, and publishes those that are done.
void LocalEngine::Core::add_pooled(StepWork& work) {
  for (const EmbeddedRow& row : work.embedded) {
    if (requests.find(row.id) == nullptr || row.state.empty()) continue;
    requests.add_pooled_row(row.id, *engine.info_.pooling, row.position, row.state);
  }
  if (work.pooled.empty()) return;
  std::erase_if(work.pooled, [this](RequestId id) { return requests.find(id) == nullptr; });
  requests.end_pooled(
      work.pooled, *engine.info_.pooling, engine.pooled_layers_, counters, outcome.failed);
}

void LocalEngine::Core::commit(StepWork& work) {
  const SchedulerOutput& output = work.order.decision;
  const double seconds = seconds_between(work.started, work.sampled);
  if (store) store->save(output, scheduler, outcome.results, outcome.failed);
  scheduler.update(output, outcome.results, 1e3 * seconds, outcome.aborted);
  for (const RequestId id : outcome.finished) drafting->end(id);
  for (const RequestId id : outcome.aborted) {
    end_request(id, {.reason = FinishReason::kAbort});
  }
  for (const RequestId id : outcome.failed) {  // requests that did not sample
    scheduler.abort(id);
    end_request(id, ending_of(work));
  }
  if (store) store->end_step(output, scheduler, seconds);
  retire_handoffs(output);
  if (output.drafts_off) ++counters.drafts.num_steps_off[static_cast<size_t>(*output.drafts_off)];
  if (!output.draft_bins.empty()) counters.drafts.gain_ratio = output.predicted_gain;
  ++counters.num_steps;
  counters.num_preemptions += output.preempted.size();
  counters.iteration_tokens.observe(kIterationBounds, output.total_tokens);
  counters.step_time.observe(kStepTimeBounds, seconds);
}

void LocalEngine::Core::publish_stats() {
  const std::unique_lock lock(engine.stats_mutex_, std::try_to_lock);
  if (!lock) return;  // a reader copies right now; the next step publishes
  const KvUsage usage = kv.usage();
  counters.num_requests_running = scheduler.num_running();
  counters.num_requests_waiting = scheduler.num_waiting();
  counters.num_blocks_total = usage.num_blocks;
  counters.num_blocks_used = usage.num_referenced;
  counters.num_states_total = usage.num_states;
  counters.num_states_used = usage.num_states_referenced;
  counters.block_size = kv.block_size();
  counters.prefix_cache_queries = usage.prefix_queries;
  counters.prefix_cache_hits = usage.prefix_hits;
  if (store) store->add_stats(counters);
  if (handoff) counters.handoff = handoff->stats();
  engine.published_ = counters;
}

}  // namespace sluice
