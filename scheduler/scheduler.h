// SPDX-License-Identifier: Apache-2.0
// Who gets how many tokens this step. A pure state machine: ids and counts, no tensors or threads,
// and the time is what the caller says it is, so that the engine and a simulator run the same code.
// Engine thread only.
//
// Step order: schedule() -> (the step runs) -> update(). With overlap, schedule() of step n + 1 may
// come before update() of step n; the three counters of Request keep them apart. A row may then
// begin at the token that step n is to choose: "the last one chosen in that slot". A request whose
// drafts are in flight is left out until they retire, as where it goes on is not known before; or,
// where whoever runs the steps sees to that (follows_drafts), it goes on where it would be if all
// of them were accepted, and its rows move back by as many as are not.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_output.h"
#include "scheduler/speculation_budget.h"

namespace sluice {

struct SchedulerOptions {
  int32_t max_num_seqs = 64;                 // running requests; at most the KV manager's
  int32_t max_num_batched_tokens = 512;      // tokens a step; no more requests than that run
  int32_t max_chosen_rows = 0;  // a step's, drafts included; at least max_num_seqs; 0: that many
  double step_target_ms = 50;                // predicted milliseconds a step; <= 0: no such budget
  double max_prefill_share = 0.75;           // of that time, beside decodes; 1: no such bound
  double max_fallback_share = 1;  // of the tokens, beside decodes, of prompts that are fallbacks
  int32_t long_prefill_token_threshold = 0;  // tokens of one prompt a step; 0: no such limit
  int32_t max_num_partial_prefills = 0;      // prompts half computed; 0: no such limit
  int32_t max_num_queued_reqs = 1024;        // that have not started
  int32_t max_model_len = 0;
  int64_t priority_aging_ms = 10'000;  // of waiting are worth a priority level; 0: none are
  bool leave_room_for_answers = true;  // admission counts the KV of what will be generated
  bool restores_preempted = false;     // there is somebody who takes SchedulerOutput::restoring
  SpeculationBudget::Options speculation = {};
  bool follows_drafts = false;  // rows may follow drafts in flight: ScheduledRequest::num_unsure
  int32_t preempt_every = 0;  // test knob of the determinism matrix: a preemption each n steps
};

class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, KvCacheManager& kv);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // kResourceExhausted: queue full. kInvalidArgument: could never run (longer than max_model_len or
  // than the whole cache).
  [[nodiscard]] Expected<void> add(NewRequest request);

  // True when the request is gone at once; false when it is in flight (it ends at update(), its
  // blocks stay until then) or unknown.
  bool abort(RequestId id);

  // A request of SchedulerOutput::restoring waits in its place again, to take what is cached now.
  void resume(RequestId id);

  // Guesses at the next tokens of a request, in order, for the next schedule() alone; of an id that
  // decodes in that step some of them become rows. They take what nothing else wants: rows and
  // blocks that are left over.
  void offer_drafts(RequestId id, const Draft& draft);
  // Making the coming step's drafts took so long.
  void note_proposers(double ms);
  // How many tokens a model is asked to draft, from 1 to `most`, for each of these requests, which
  // will decode; and that such drafts took so long.
  [[nodiscard]] int32_t draft_depth(std::span<const RequestId> ids, int32_t most) const;
  void note_passes(int32_t num_requests, int32_t depth, double ms);
  // False: the coming step takes none.
  [[nodiscard]] bool wants_drafts() const;
  // Whether a request has drafts in flight, and so is left out of steps until they retire.
  [[nodiscard]] bool has_drafts_in_flight() const;
  // Whether rows may follow drafts in flight, so that drafts may be offered behind them.
  [[nodiscard]] bool follows_drafts() const;
  // Tokens of a request that steps in flight will append at most: drafts that are offered now come
  // behind them.
  [[nodiscard]] int32_t num_unchosen(RequestId id) const;
  // What was measured of drafts so far.
  [[nodiscard]] const DraftSurvival& draft_survival() const;
  // How long steps took, by their rows.
  [[nodiscard]] std::vector<RowTimes::Measured> row_times() const;
  // Requests that will decode in the coming step, if they can go on.
  void list_decoding(std::vector<RequestId>& ids) const;

  // Decides one step and takes the blocks it needs. Decodes come first; then running prefills and
  // waiting requests, in chunks under both budgets: tenants by what they were given so far, each
  // one's requests by priority and arrival. When blocks run out a running request is preempted
  // (blocks freed, computed = 0, waits again). If nothing could be scheduled while requests wait
  // and nothing is in flight, one fails with a reason. `now_ms` orders by age and ends requests
  // that have waited past their deadlines; a clock that goes back stands still. The reference is
  // valid until the next call.
  const SchedulerOutput& schedule(int64_t now_ms);

  // The step retired: its tokens count as computed, but for drafts that were not chosen; blocks
  // become cacheable, chosen tokens are appended, finished and abort-pending requests leave.
  // `measured_ms` feeds the cost model; not positive: unknown. A request ends at max_tokens even if
  // `finished` does not say so.
  // Ids of aborted requests that left now are appended to `aborted`.
  void update(const SchedulerOutput& output,
              std::span<const StepResult> results,
              double measured_ms,
              std::vector<RequestId>& aborted);

  // Places that requests here can have, for what others keep of each: ScheduledRequest::slot.
  [[nodiscard]] int32_t num_slots() const;
  // Valid until the request leaves; null for unknown ids.
  [[nodiscard]] const Request* find(RequestId id) const;
  [[nodiscard]] int32_t num_running() const;
  [[nodiscard]] int32_t num_waiting() const;  // preempted and restoring ones included
  [[nodiscard]] int32_t num_restoring() const;
  [[nodiscard]] int32_t num_unstarted() const;  // waiting and never preempted
  [[nodiscard]] bool has_work() const;          // who restores is not work
  // Virtual tokens of a tenant, by which tenants take turns; 0 when nothing is known of it.
  [[nodiscard]] int64_t num_virtual_tokens(TenantId tenant) const;

  // Invariants of the counters, queues and blocks; empty when right. Tests.
  [[nodiscard]] std::string check_integrity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
