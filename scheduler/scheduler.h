// SPDX-License-Identifier: Apache-2.0
// Decides how many tokens each request gets in a step. A pure state machine over ids and counts,
// without tensors or threads, and the caller supplies the time, so that the engine and a simulator
// run the same code. Engine thread only.
//
// Step order: schedule() -> (the step runs) -> update(). With overlap, schedule() of step n + 1 may
// come before update() of step n; the three counters of Request keep them apart. A row may then
// begin at a token that step n has not chosen yet: "the last token chosen in that slot". A request
// whose drafts are in flight is left out until they retire, because its next position is unknown.
// With follows_drafts it continues after the drafts as if all were accepted, and the component
// that runs the steps moves its rows back by the number of rejected drafts.
//
// With steps_in_flight > 1, for stages of a pipeline, steps in flight are over disjoint requests
// instead, except that chunks of one prompt may follow each other: a request decodes when its last
// token is known, and a step takes its part of the decodes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduled_request.h"
#include "scheduler/scheduler_output.h"
#include "scheduler/speculation_budget.h"

namespace sluice {

struct SchedulerOptions {
  int32_t max_num_seqs = 64;                 // running requests; at most the KV manager's
  int32_t max_num_batched_tokens = 512;      // tokens a step; also bounds the running requests
  int32_t max_chosen_rows = 0;  // per step, drafts included; at least max_num_seqs; 0: max_num_seqs
  double step_target_ms = 50;                // predicted milliseconds per step; <= 0: no budget
  double max_prefill_share = 0.75;           // prompts' share of it beside decodes; 1: no bound
  double max_fallback_share = 1;  // share of tokens beside decodes for prompts that are fallbacks
  int32_t long_prefill_token_threshold = 0;  // per prompt and step; 0: no such limit
  int32_t max_num_partial_prefills = 0;      // prompts half computed; 0: no such limit
  int32_t max_num_queued_reqs = 1024;        // requests that have not started
  int32_t max_model_len = 0;
  int64_t priority_aging_ms = 10'000;  // waiting time worth one priority level; 0: no aging
  bool whole_prompts = false;  // a prompt is computed in one step; max_model_len fits into one
  bool leave_room_for_answers = true;  // admission counts the KV of what will be generated
  bool restores_preempted = false;     // the caller handles SchedulerOutput::restoring
  SpeculationBudget::Options speculation = {};
  bool follows_drafts = false;  // rows may follow drafts in flight: ScheduledRequest::num_unsure
  int32_t steps_in_flight = 1;  // over disjoint requests; 1: rows may follow tokens in flight
  int32_t preempt_every = 0;  // test knob of the determinism matrix: a preemption every n steps
};

class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, KvCacheManager& kv);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Returns the request's slot (num_slots()). kResourceExhausted: queue full. kInvalidArgument:
  // could never run (longer than max_model_len or than the whole cache).
  [[nodiscard]] Expected<int32_t> add(Request request);

  // True when the request is removed at once; false when it is in flight (it ends at update(), its
  // blocks stay until then) or unknown.
  bool abort(RequestId id);

  // Puts a request of SchedulerOutput::restoring back into the queue, to take what is cached now.
  void resume(RequestId id);

  // Offers guesses at the next tokens of a request, in order, for the next schedule() only. If the
  // request decodes in that step, some of them become rows, from rows and blocks that nothing else
  // wants.
  void offer_drafts(RequestId id, const Draft& draft);
  // Records that making the coming step's drafts took `ms`.
  void note_proposers(double ms);
  // Returns how many tokens, from 1 to `most`, a draft model is asked for, for each of these
  // requests, which will decode. note_passes() records how long such drafts took.
  [[nodiscard]] int32_t draft_depth(std::span<const RequestId> ids, int32_t most) const;
  void note_passes(int32_t num_requests, int32_t depth, double ms);
  // False: the coming step takes no drafts.
  [[nodiscard]] bool wants_drafts() const;
  // Whether a request has drafts in flight and is therefore left out until they retire.
  [[nodiscard]] bool has_drafts_in_flight() const;
  // Whether steps in flight are over disjoint requests, so that none waits for another's tokens.
  [[nodiscard]] bool is_disjoint() const;
  // Whether rows may follow drafts in flight, so that drafts may be offered after them.
  [[nodiscard]] bool follows_drafts() const;
  // The most tokens that steps in flight will append to a request; drafts offered now follow them.
  [[nodiscard]] int32_t num_unchosen(RequestId id) const;
  // Acceptance of drafts as measured so far.
  [[nodiscard]] const DraftSurvival& draft_survival() const;
  // Measured step times by number of rows.
  [[nodiscard]] std::vector<RowTimes::Measured> row_times() const;
  // Appends the requests that will decode in the coming step, if they can continue.
  void list_decoding(std::vector<RequestId>& ids) const;

  // Decides one step and takes the blocks it needs. Decodes are first; then running prefills and
  // waiting requests, in chunks under both budgets: tenants by the service given so far, each
  // tenant's requests by priority and arrival. When blocks run out a running request is preempted
  // (blocks freed, computed = 0, waits again). If nothing could be scheduled while requests wait
  // and nothing is in flight, they are starved, or, where no others hold blocks, one fails with a
  // reason. `now_ms` orders by age and ends requests that have waited past their deadlines; a
  // clock that goes back is taken to stand still. The reference is valid until the next call.
  const SchedulerOutput& schedule(int64_t now_ms);

  // Retires a step: its tokens count as computed, except rejected drafts; blocks become cacheable,
  // chosen tokens are appended, finished and abort-pending requests leave. `measured_ms` feeds the
  // cost model; <= 0 means unknown. A request ends at max_tokens even if `finished` is not set. Ids
  // of aborted requests that left now are appended to `aborted`.
  void update(const SchedulerOutput& output,
              std::span<const StepResult> results,
              double measured_ms,
              std::vector<RequestId>& aborted);

  // The number of values of ScheduledRequest::slot, for components that keep state per request.
  [[nodiscard]] int32_t num_slots() const;
  // Valid until the request leaves; null for unknown ids.
  [[nodiscard]] const Request* find(RequestId id) const;
  [[nodiscard]] int32_t num_running() const;
  [[nodiscard]] int32_t num_waiting() const;  // preempted and restoring ones included
  [[nodiscard]] int32_t num_restoring() const;
  [[nodiscard]] int32_t num_unstarted() const;  // waiting and never preempted
  [[nodiscard]] bool has_work() const;          // restoring requests are not work
  // Virtual tokens of a tenant, by which tenants take turns; 0 when the tenant is unknown.
  [[nodiscard]] int64_t num_virtual_tokens(TenantId tenant) const;

  // Invariants of the counters, queues and blocks; empty when they hold. For tests.
  [[nodiscard]] std::string check_integrity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
