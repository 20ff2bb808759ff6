// SPDX-License-Identifier: Apache-2.0
// Private state shared by scheduler.cpp, queues.cpp, preemption.cpp, drafts.cpp and
// scheduler_check.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kvcache/id_map.h"
#include "scheduler/cost_model.h"
#include "scheduler/fair_queue.h"
#include "scheduler/kv_forecast.h"
#include "scheduler/policy.h"
#include "scheduler/scheduler.h"
#include "scheduler/speculation_budget.h"

namespace sluice {

struct Scheduler::Impl {
  struct Entry {
    Request request;
    bool in_use = false;
    bool preempt_pending = false;  // to be preempted when its step retires
    bool was_admitted = false;
    bool was_restored = false;         // since its preemption, even without success
    bool is_kv_bad = false;            // computed by a failed step: must not be cached
    int32_t num_pending_samples = 0;   // tokens that steps in flight will append at least
    int32_t num_drafts_in_flight = 0;  // rows in flight of which some may not count
    int32_t num_to_replay = 0;         // drafts accepted since a step has been scheduled
    size_t offer = 0;                  // index of this step's drafts in `offers`
    RequestAcceptance acceptance;      // how often its drafts are accepted
    int32_t row = 0;                   // index in the decision of `last_step`
    int32_t num_allocated_tokens = 0;  // KV room, a multiple of the block size
    int32_t num_found_tokens = 0;      // part of those found in the cache at admission
    int32_t forced_at_generated = -1;  // generated tokens at the last forced preemption
    uint64_t last_step = 0;            // latest step that scheduled it
    int64_t rank_ms = 0;
    int32_t tenant_slot = -1;
    // A follower's leader: the running request that computes a prefix of it; and that prefix's
    // length.
    RequestId leader{};
    int32_t num_shared_tokens = 0;

    [[nodiscard]] QueueKey key() const { return {rank_ms, request.arrival_order}; }

    [[nodiscard]] bool draining() const {
      return preempt_pending || request.abort_pending || request.status == RequestStatus::kFinished;
    }

    // Tokens that have or will have a value when the steps in flight retire.
    [[nodiscard]] int32_t num_known() const { return request.num_tokens() + num_pending_samples; }

    // Known tokens whose KV has not been handed out.
    [[nodiscard]] int32_t num_remaining() const {
      return num_known() - (request.num_scheduled_tokens - num_drafts_in_flight);
    }

    [[nodiscard]] bool schedulable() const {
      return !draining() && num_drafts_in_flight == 0 &&
             request.num_generated() + num_pending_samples < request.max_tokens;
    }

    [[nodiscard]] bool wants_restoring() const {
      return request.status == RequestStatus::kPreempted && !was_restored;
    }

    // Tokens that may come from the prefix cache: rows whose logits are wanted have to be computed.
    [[nodiscard]] std::span<const TokenId> cacheable_tokens() const {
      const std::span<const TokenId> tokens = request.tokens();
      const bool has_all = request.num_scored_tokens + 1 >= request.num_prompt_tokens;
      if (!request.needs_every_row() || has_all) return tokens;
      return tokens.first(static_cast<size_t>(request.num_scored_tokens) + 1);
    }

    // True for a running request that has KV for some of its known tokens and decodes only later.
    [[nodiscard]] bool is_partial() const {
      return request.status == RequestStatus::kRunning && num_remaining() > 0 && !decodes();
    }

    // True when the only token left is one that was (or is being) sampled.
    [[nodiscard]] bool decodes() const {
      return num_remaining() == 1 && request.num_generated() + num_pending_samples > 0;
    }
  };

  struct Offer {
    RequestId id;
    Draft draft;
  };

  // The order of requests that have deadlines.
  struct DeadlineKey {
    int64_t deadline_ms = 0;
    uint64_t arrival_order = 0;
    friend auto operator<=>(const DeadlineKey&, const DeadlineKey&) = default;
  };

  SchedulerOptions options;
  KvCacheManager& kv;
  std::vector<Entry> entries;
  std::vector<int32_t> free_entries;
  IdMap entry_of;
  // A waiting request is in one of four places: not started, preempted, or outside the queues while
  // a prefix of it is being computed (`followers`) or brought back (`restoring`).
  FairQueue waiting;
  std::vector<int32_t> preempted_positions;
  IndexedHeap<QueueKey> preempted;
  std::vector<int32_t> followers;
  std::vector<int32_t> restoring;
  std::vector<int32_t> deadline_positions;
  IndexedHeap<DeadlineKey> deadlines;  // only requests not started
  std::vector<int32_t> running;        // hold blocks; sorted by key
  std::vector<int32_t> prefills;       // the part of `running` that prefills in this step
  std::vector<int32_t> decodes;        // scratch: the part that may decode in this step
  std::vector<int32_t> leaders;        // running requests that compute whole blocks in this step
  CostModel cost;
  AnswerLengths answer_lengths;

  // The room that running requests hold and want, for admission; valid while `is_current`.
  struct Outlook {
    KvForecast forecast;
    int64_t num_held = 0;    // blocks, found prefixes left out
    int64_t num_wanted = 0;  // blocks for the rest of known tokens, at least one each
    bool is_current = false;
  };

  Outlook outlook;
  SchedulerOutput output;
  StepShape shape;              // shape of `output`
  int32_t num_drafting = 0;     // requests with drafts in flight
  int32_t num_decoding = 0;     // requests, at the front of `output`
  int32_t num_chosen_rows = 0;  // total of `output`
  SpeculationBudget budget;
  std::vector<Offer> offers;  // for the next step
  double offers_ms = 0;       // time spent making them
  // Scratch space of add_drafts(): what the budget is asked, by index in `offers`, and its answer.
  std::vector<DraftOffer> considered;
  std::vector<size_t> taken_offers;
  std::vector<int32_t> granted_drafts;
  // The time target of this step, once its decodes are known; 0: only decodes run.
  static constexpr double kNoTarget = std::numeric_limits<double>::infinity();
  double target_ms = kNoTarget;
  int32_t least_chunk = 0;  // granted whatever target_ms is
  int64_t now_ms = INT64_MIN;
  uint64_t num_arrivals = 0;
  int64_t num_tokens_in_flight = 0;
  int32_t num_unstarted = 0;
  int32_t max_num_running = 0;
  int32_t num_draining = 0;         // in `running`
  int32_t num_fallback_tokens = 0;  // prompt tokens in this step
  bool short_of_blocks = false;     // this step: a request stalled or was preempted for blocks
  // The waiting head that did not fit, and when to look again.
  RequestId blocked_head{};
  int64_t blocked_available = 0;
  size_t blocked_num_running = 0;  // running or being restored
  uint64_t blocked_until_step = 0;

  Impl(const SchedulerOptions& o, KvCacheManager& manager)
      : options(o),
        kv(manager),
        entry_of(max_entries(o)),
        waiting(max_entries(o), o.max_num_batched_tokens),
        preempted_positions(static_cast<size_t>(max_entries(o)), -1),
        preempted(preempted_positions),
        deadline_positions(preempted_positions),
        deadlines(deadline_positions),
        outlook{.forecast = KvForecast(std::min(o.max_num_seqs, o.max_num_batched_tokens))},
        budget(o.speculation) {
    CHECK_GT(o.max_num_seqs, 0);
    CHECK_GT(o.max_num_batched_tokens, 0);
    CHECK_GE(o.max_num_queued_reqs, 0);
    CHECK_GT(o.max_model_len, 0);
    CHECK(!o.whole_prompts || o.max_model_len <= o.max_num_batched_tokens);
    CHECK(o.steps_in_flight == 1 || (o.steps_in_flight > 1 && !o.follows_drafts));
    entries.resize(preempted_positions.size());
    for (int32_t i = max_entries(o) - 1; i >= 0; --i) free_entries.push_back(i);
    // Every running request may decode in one step.
    max_num_running = std::min(o.max_num_seqs, o.max_num_batched_tokens);
    const auto num_seqs = static_cast<size_t>(max_num_running);
    running.reserve(num_seqs);
    prefills.reserve(num_seqs);
    decodes.reserve(num_seqs);
    leaders.reserve(2 * num_seqs);  // some may be preempted and others start instead
    followers.reserve(entries.size());
    restoring.reserve(num_seqs);
    preempted.reserve(entries.size());
    deadlines.reserve(entries.size());
    offers.reserve(num_seqs);
    output.scheduled.reserve(num_seqs);
    output.token_ids.reserve(static_cast<size_t>(o.max_num_batched_tokens));
    output.scored_tokens.reserve(output.token_ids.capacity());
    output.blocks.reserve(num_seqs * static_cast<size_t>(manager.num_groups()) *
                          static_cast<size_t>(ceil_div(o.max_model_len, manager.block_size())));
    considered.reserve(num_seqs);
    taken_offers.reserve(num_seqs);
    granted_drafts.reserve(num_seqs);
    output.draft_bins.reserve(static_cast<size_t>(o.max_chosen_rows));
    output.preempted.reserve(num_seqs);
    output.restoring.reserve(num_seqs);
    output.failed.reserve(1);
    output.expired.reserve(entries.size());
    output.copies.reserve(num_seqs * static_cast<size_t>(manager.num_groups()));
  }

  // A preempted request that waits for a prefix lets another one start, so more requests than can
  // run at a time may have started.
  static int32_t max_entries(const SchedulerOptions& o) {
    return 2 * o.max_num_seqs + o.max_num_queued_reqs;
  }

  Entry& entry(int32_t i) { return entries[static_cast<size_t>(i)]; }

  [[nodiscard]] const Entry& entry(int32_t i) const { return entries[static_cast<size_t>(i)]; }

  Entry& running_entry(size_t position) { return entry(running[position]); }

  [[nodiscard]] int32_t num_tokens_left() const {
    return options.max_num_batched_tokens - output.total_tokens;
  }

  [[nodiscard]] bool idle() const { return num_tokens_in_flight == 0; }

  [[nodiscard]] size_t position_in_running(const Entry& e) const;
  void queue(int32_t index);
  void unqueue(int32_t index);
  [[nodiscard]] bool is_queued(int32_t index) const;

  [[nodiscard]] bool anybody_queued() const { return !waiting.empty() || !preempted.empty(); }

  int32_t head();
  void expire();
  void start_running(int32_t index);
  void stop_running(size_t position);
  void leave(int32_t index);
  void record(Entry& e, int32_t num_tokens, bool decode);

  [[nodiscard]] bool goes_before(int32_t a, int32_t b) const;
  [[nodiscard]] size_t victim_behind(size_t position) const;
  bool preempt_later_than(size_t position);
  void preempt(size_t position);
  void preempt_drained();
  void force_preemption();
  int32_t take_blocks(size_t position, int32_t num_tokens);
  int32_t prefill_limit(const Entry& e, int32_t start, int32_t num_remaining) const;
  [[nodiscard]] int32_t before_short_tail(const Entry& e, int32_t start, int32_t chunk) const;
  void schedule_turns();
  void schedule_decodes();
  void set_target();
  void schedule_prefill(int32_t index);
  void schedule_prefills();
  [[nodiscard]] bool may_follow(const Entry& e) const;

  [[nodiscard]] bool is_disjoint() const { return options.steps_in_flight > 1; }

  [[nodiscard]] bool may_decode(const Entry& e) const {
    if (is_disjoint() && e.num_pending_samples > 0) return false;
    return (e.schedulable() || may_follow(e)) && e.decodes();
  }

  [[nodiscard]] int32_t drafts_allowed(const Entry& e, const ScheduledRequest& row) const;
  [[nodiscard]] int32_t num_rows_left() const;
  ScheduledRequest* row_of_offer(const Offer& offer);
  void add_drafts();
  void take_drafts(size_t offer, int32_t count);
  void observe_drafts(const ScheduledRequest& row,
                      std::span<const uint8_t> bins,
                      const StepResult* result,
                      DraftedStep& step);
  void write_rows();
  [[nodiscard]] int32_t expected_more(const Entry& e) const;
  void add_to_outlook(const Entry& e);
  void look_ahead();
  [[nodiscard]] bool has_room(const Entry& newcomer, int32_t num_shared);
  [[nodiscard]] int64_t total_available() const;
  [[nodiscard]] bool head_still_blocked(const Entry& e) const;
  [[nodiscard]] bool may_be_partial() const;
  bool admit(int32_t index);
  [[nodiscard]] bool computes_blocks(const Entry& e) const;
  [[nodiscard]] bool stalls(const Entry& leader) const;
  [[nodiscard]] int32_t shared_tokens(const Request& a, std::span<const TokenId> b) const;
  bool follow(int32_t index);
  void restore(int32_t index);
  void release_followers();
  void admit_waiting(int32_t before);
  void stand_still();
  void retire_row(const ScheduledRequest& row, const StepResult* result);
  [[nodiscard]] std::string check_entry(int32_t index) const;
};

}  // namespace sluice
