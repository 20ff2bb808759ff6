// SPDX-License-Identifier: Apache-2.0
// What a decision of the scheduler must be: who may start, in which order, with which rows.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "tests/scheduler/fake_engine.h"

namespace sluice {

void FakeEngine::see_preempted(const SchedulerOutput& output, EpisodeStats& stats) {
  for (const RequestId id : output.preempted) {
    Shadow& shadow = shadows_[shadow_of(id)];
    ++stats.num_preempted;
    if (shadow.next_position < 0 || shadow.num_rows_in_flight > 0 || shadow.ended) {
      wrong("a request was preempted that did not run idle");
    }
    // An older request needed its blocks, and cannot have left since.
    const bool for_blocks = options_.preempt_every == 0 && depth_ == 1 && abort_rate_ == 0;
    const bool has_older = std::ranges::any_of(live_, [&](size_t i) {
      return shadows_[i].next_position >= 0 && is_before(shadows_[i], shadow);
    });
    if (for_blocks && !has_older) wrong("the oldest request was preempted");
    shadow.next_position = -1;
    shadow.preempted_step = output.step_id;
  }
}

void FakeEngine::see_starved(const SchedulerOutput& output, EpisodeStats& stats) {
  if (!output.failed.empty()) wrong("a request failed that could run");
  stats.num_starved += output.is_starved ? 1 : 0;
  if (output.is_starved && transfers_.empty()) wrong("requests starve while nobody holds blocks");
}

void FakeEngine::see_expired(const SchedulerOutput& output, EpisodeStats& stats) {
  for (const RequestId id : output.expired) {
    Shadow& shadow = shadows_[shadow_of(id)];
    ++stats.num_expired;
    if (shadow.started || shadow.ended || shadow.deadline_ms > now_ms_) {
      wrong("a request expired that had started, or before its deadline");
    }
    if (scheduler_->find(id) != nullptr) wrong("an expired request can still be found");
    forget(shadow);
  }
  for (const size_t i : live_) {
    if (!shadows_[i].started && shadows_[i].deadline_ms <= now_ms_) {
      wrong("a request waits past its deadline");
    }
  }
}

// Counts running requests with more to compute than the token that was sampled last.
int64_t FakeEngine::num_partial() const {
  return std::ranges::count_if(live_, [this](size_t i) {
    const Request* r = scheduler_->find(shadows_[i].id);
    return r != nullptr && r->status == RequestStatus::kRunning &&
           r->num_scheduled_tokens < r->num_tokens() - (r->num_generated() > 0 ? 1 : 0);
  });
}

void FakeEngine::check_budgets(const SchedulerOutput& output) {
  int32_t total = 0;
  int32_t num_chosen = 0;
  int32_t num_decode_tokens = output.total_tokens - output.num_prefill_tokens;
  for (const ScheduledRequest& row : output.scheduled) {
    total += row.num_scheduled_tokens;
    num_chosen += row.chosen.size();
    if (num_decode_tokens > 0 && row.num_scheduled_tokens != 1 + row.num_draft_tokens) {
      wrong("decodes do not come first");
    }
    num_decode_tokens -= row.num_scheduled_tokens;
  }
  if (static_cast<size_t>(total) != output.token_ids.size()) wrong("token_ids are not the rows'");
  if (num_chosen > std::max(options_.max_chosen_rows, options_.max_num_seqs)) {
    wrong("too many rows choose a token");
  }
  if (total != output.total_tokens) wrong("total_tokens is not the sum of the rows");
  if (total > options_.max_num_batched_tokens) wrong("over the token budget");
  if (scheduler_->num_running() >
      std::min(options_.max_num_seqs, options_.max_num_batched_tokens)) {
    wrong("too many requests run");
  }
  if (options_.max_num_partial_prefills > 0 && num_partial() > options_.max_num_partial_prefills) {
    wrong("too many prompts are half computed");
  }
  if (options_.step_target_ms > 0 && output.num_prefill_tokens > 64 &&
      output.predicted_ms > options_.step_target_ms * (1 + 1e-9)) {
    wrong("over the millisecond budget");
  }
}

// Whether the request may wait for a prefix that a running request computes.
bool FakeEngine::may_follow(const Shadow& waiting) const {
  const auto block = static_cast<size_t>(kv_options_.block_size);
  if (!kv_options_.enable_prefix_caching || waiting.prefix_hash.size() <= block) return false;
  return std::ranges::any_of(live_, [&](size_t i) {
    const Shadow& other = shadows_[i];
    return other.next_position >= 0 && other.prefix_hash.size() > block &&
           other.prefix_hash[block] == waiting.prefix_hash[block];
  });
}

bool FakeEngine::waits(const Shadow& shadow) const {
  return shadow.next_position < 0 && !shadow.ended;
}

// Orders two unstarted requests; false both ways if their tenants were given the same.
bool FakeEngine::comes_before(const Shadow& a, const Shadow& b) const {
  const bool a_due = a.rank_ms <= now_ms_;
  const bool b_due = b.rank_ms <= now_ms_;
  if (a_due != b_due) return a_due;
  if (!a_due || a.tenant == b.tenant) return is_before(a, b);
  return shares_.at(a.tenant).counter < shares_.at(b.tenant).counter;
}

// Whether a waiting request should have come before; ignores those preempted in step `step_id`,
// perhaps after the admission.
bool FakeEngine::is_passed_over(const Shadow& admitted, uint64_t step_id) const {
  return std::ranges::any_of(live_, [&](size_t i) {
    const Shadow& other = shadows_[i];
    if (!waits(other) || other.id == admitted.id || may_follow(other)) return false;
    if (other.could_follow) return false;  // it waited elsewhere, whatever its leader did
    if (is_restoring(other)) return false;
    if (step_id > 0 && other.preempted_step == step_id) return false;
    if (other.started != admitted.started) return other.started;
    return admitted.started ? is_before(other, admitted) : comes_before(other, admitted);
  });
}

// A request whose turn has come keeps it until there is room.
void FakeEngine::note_turns() {
  for (const size_t i : live_) {
    Shadow& shadow = shadows_[i];
    if (waits(shadow) && !shadow.was_first) shadow.was_first = !is_passed_over(shadow);
  }
}

void FakeEngine::check_admission_order(const Shadow& admitted, uint64_t step_id) {
  if (is_passed_over(admitted, step_id) && (admitted.started || !admitted.was_first)) {
    wrong("a request overtook one that came first");
  }
}

void FakeEngine::charge_start(Shadow& shadow, int32_t num_found) {
  Share& share = shares_[shadow.tenant];
  if (shadow.rank_ms <= now_ms_) served_ = std::max(served_, share.counter);
  share.counter += shadow.num_given_tokens - num_found;
  --share.num_unstarted;
  shadow.started = true;
}

// With room for the longest requests everywhere, no request waits that could start.
void FakeEngine::check_no_room_is_idle(const SchedulerOutput& output) {
  const int32_t num_running = scheduler_->num_running() + scheduler_->num_restoring();
  const bool full = num_running >= std::min(options_.max_num_seqs, options_.max_num_batched_tokens);
  const bool spent = output.total_tokens >= options_.max_num_batched_tokens ||
                     (options_.step_target_ms > 0 && output.total_tokens > 0);
  if (full || spent || options_.preempt_every > 0) return;
  if (!output.preempted.empty()) return;  // blocks were short, and came back since
  if (options_.max_num_partial_prefills > 0 && num_partial() >= options_.max_num_partial_prefills) {
    return;
  }
  // A chunk touches more than a window keeps, and while a request gets a shorter one for lack of
  // blocks, nothing is admitted.
  const auto longest =
      static_cast<int32_t>(ceil_div(options_.max_model_len, kv_options_.block_size));
  if (kv_->num_available_blocks() < (num_running + 1) * longest) return;
  for (const size_t i : live_) {
    if (!waits(shadows_[i]) || may_follow(shadows_[i]) || is_restoring(shadows_[i])) continue;
    wrong("room is idle while somebody waits");
  }
}

// Checks that no other row in flight reads or writes what this row writes.
void FakeEngine::check_exclusive_writes(const Row& row) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const bool state = groups_[g].kind == KvGroupKind::kState;
    const int32_t per_entry = state ? groups_[g].interval : kv_options_.block_size;
    const int32_t replayed = state ? row.scheduled.num_replayed : 0;
    const int32_t first =
        (row.scheduled.num_computed_tokens - row.scheduled.num_unsure - replayed) / per_entry;
    const int32_t last =
        (row.scheduled.num_computed_tokens + row.scheduled.num_scheduled_tokens - 1) / per_entry;
    for (int32_t entry = first; entry <= last; ++entry) {
      if (static_cast<size_t>(entry) >= row.tables[g].size()) return wrong("no block to write to");
      const BlockId block = row.tables[g][static_cast<size_t>(entry)];
      if (block == kNullBlock) return wrong("a null block would be written");
      int32_t own = 0;
      for (const Step& step : in_flight_) {
        for (const Row& other : step.rows) {
          if (other.shadow != row.shadow) continue;
          own += static_cast<int32_t>(std::ranges::count(other.tables[g], block));
        }
      }
      if (readers_[g][static_cast<size_t>(block.value)] != own) {
        wrong("a row writes a block that another request in flight uses");
      }
      for (const Transfer& transfer : transfers_) {
        if (transfer.group == static_cast<int32_t>(g) && transfer.block == block) {
          wrong("a row writes a block in transfer");
        }
      }
    }
  }
}

// With disjoint steps a step takes its part of the decodes, first those that have waited longest.
void FakeEngine::check_turns(const SchedulerOutput& output) {
  if (options_.steps_in_flight == 1) return;
  const int32_t num_decode_tokens = output.total_tokens - output.num_prefill_tokens;
  int32_t num_tokens = 0;
  int32_t num_decodes = 0;
  uint64_t latest = 0;
  for (const ScheduledRequest& row : output.scheduled) {
    if ((num_tokens += row.num_scheduled_tokens) > num_decode_tokens) break;
    ++num_decodes;
    latest = std::max(latest, shadows_[shadow_of(row.id)].step_before);
  }
  const auto num_running =
      scheduler_->num_running() + static_cast<int32_t>(output.preempted.size());
  if (num_decodes > ceil_div(num_running, options_.steps_in_flight)) {
    wrong("a step takes more than its part of the decodes");
  }
  // Some may have found no block, also before another was preempted.
  if (!output.preempted.empty() || kv_->num_available_blocks() <= num_running) return;
  for (const size_t i : live_) {
    const Shadow& shadow = shadows_[i];
    const bool decodes = shadow.next_position == shadow.num_tokens() - 1 &&
                         shadow.num_tokens() > shadow.num_prompt_tokens;
    const bool is_idle = decodes && shadow.num_rows_in_flight == 0 && !shadow.ended;
    if (is_idle && shadow.last_step < latest) wrong("a decode waits longer than another");
  }
}

void FakeEngine::check_oldest_progresses(const SchedulerOutput& output) {
  const Shadow* oldest = nullptr;
  for (const size_t i : live_) {
    const Shadow& shadow = shadows_[i];
    if (shadow.next_position < 0 || shadow.ended || shadow.aborting) continue;
    if (oldest == nullptr || is_before(shadow, *oldest)) oldest = &shadow;
  }
  if (oldest == nullptr) return;
  // Prompts of other tenants or priorities may come before its own.
  const bool progressed = std::ranges::any_of(output.scheduled, [&](const ScheduledRequest& row) {
    const Shadow& other = shadows_[shadow_of(row.id)];
    return row.id == oldest->id || other.tenant != oldest->tenant ||
           other.priority != oldest->priority;
  });
  if (progressed || oldest->id != oldest_ || !transfers_.empty()) oldest_waited_ = 0;
  oldest_ = oldest->id;
  if (++oldest_waited_ > 2 * options_.max_num_seqs + 8) wrong("the oldest request is starved");
}

void FakeEngine::see_row(const ScheduledRequest& scheduled,
                         std::span<const TokenId> token_ids,
                         Step& step,
                         EpisodeStats& stats) {
  Shadow& shadow = shadows_[shadow_of(scheduled.id)];
  const int32_t start = scheduled.num_computed_tokens;
  const int32_t end = start + scheduled.num_scheduled_tokens - scheduled.num_draft_tokens;
  if (shadow.ended || shadow.aborting) return wrong("a request was scheduled after its end");
  if (scheduled.num_unsure != shadow.num_drafts_in_flight) wrong("other drafts are in flight");
  if (scheduled.num_unsure > 0 && !options_.follows_drafts) {
    return wrong("a request goes on behind drafts in flight");
  }
  // Placing the row requires the previous step's choice and where that step began.
  if (scheduled.num_unsure > 0 && shadow.num_pending != 1) {
    return wrong("a row follows drafts whose own place is not known");
  }
  if (shadow.next_position < 0) {
    note_turns();
    check_admission_order(shadow, step.output.step_id);
    stats.num_taken_turns += scheduler_->num_waiting() > 0;
    if (!shadow.started) charge_start(shadow, start);
    const bool has_copy = std::ranges::any_of(step.output.copies, [&](const KvBlockCopy& copy) {
      const auto table = kv_->block_table(scheduled.id, copy.group);
      const auto entry = static_cast<size_t>(start / kv_options_.block_size);
      return entry < table.size() && table[entry] == copy.to;
    });
    stats.num_copied_tokens +=
        has_copy ? static_cast<uint64_t>(start % kv_options_.block_size) : uint64_t{0};
    if (start > 0 && !kv_options_.enable_prefix_caching) wrong("a hit without a cache");
    stats.num_hit_tokens += static_cast<uint64_t>(start);
  } else if (start != shadow.next_position + scheduled.num_unsure) {
    return wrong("a row does not go on where the last one ended");
  }
  const int32_t known = shadow.num_tokens() + shadow.num_pending;
  const int32_t least = end - scheduled.num_unsure;
  if (end <= start || least > known) return wrong("a row of unknown tokens");
  if (options_.steps_in_flight > 1) {
    if (shadow.num_pending > 0) return wrong("a request is in two steps at once");
    stats.num_following_chunks += shadow.num_rows_in_flight > 0;
  }
  shadow.step_before = std::exchange(shadow.last_step, step.output.step_id);
  const RowRange expected = least == known ? RowRange{end - 1, scheduled.end()} : RowRange{};
  if (scheduled.chosen != expected) wrong("a row samples wrongly");
  if (!scheduled.chosen.empty()) {
    // Before each running prompt the scheduler determines who comes first, and then charges it.
    if (known - (start - scheduled.num_unsure) > 1 || known == shadow.num_given_tokens)
      note_turns();
    ++shadow.num_pending;
    shares_[shadow.tenant].counter += 2;
  }
  if (known - shadow.num_prompt_tokens >= shadow.max_tokens) wrong("a row after the last token");
  shadow.next_position = least;
  ++shadow.num_rows_in_flight;
  Row row{.scheduled = scheduled,
          .shadow = shadow_of(scheduled.id),
          .tables = {},
          .drafts = {},
          .draft_hash = {}};
  see_drafts(row, token_ids, stats);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto table = kv_->block_table(scheduled.id, static_cast<int32_t>(g));
    row.tables.emplace_back(table.begin(), table.end());
    // In a window group a step may only touch what its first query sees: the rest can be freed
    // while the step is in flight.
    if (groups_[g].kind == KvGroupKind::kWindow) {
      const int32_t least_start = start - scheduled.num_unsure;
      const int32_t first =
          std::max(0, least_start - groups_[g].window + 1) / kv_options_.block_size;
      std::fill_n(row.tables[g].begin(), first, kNullBlock);
    }
    // In a state group it reads what its first token follows, or the first one that it replays.
    if (groups_[g].kind == KvGroupKind::kState) {
      const int32_t first = std::max(0, start - scheduled.num_replayed - 1) / groups_[g].interval;
      std::fill_n(row.tables[g].begin(), first, kNullBlock);
    }
    for (const BlockId block : row.tables[g]) {
      if (block != kNullBlock) ++readers_[g][static_cast<size_t>(block.value)];
    }
  }
  step.rows.push_back(std::move(row));
}

void FakeEngine::submit(EpisodeStats& stats) {
  Step step;
  clock_ms_ += chance(0.02) ? between(-3000, 3000) : between(0, 20);
  now_ms_ = std::max(now_ms_, clock_ms_);
  for (const size_t i : live_) shadows_[i].could_follow = may_follow(shadows_[i]);
  offer_drafts();
  step.output = scheduler_->schedule(clock_ms_);
  ++stats.num_steps;
  see_expired(step.output, stats);
  see_preempted(step.output, stats);
  see_starved(step.output, stats);
  see_restoring(step.output, stats);
  check_budgets(step.output);
  std::span<const TokenId> token_ids = step.output.token_ids;
  for (const ScheduledRequest& row : step.output.scheduled) {
    if (!error_.empty()) break;
    const auto num_rows = static_cast<size_t>(row.num_scheduled_tokens);
    see_row(row, token_ids.first(num_rows), step, stats);
    token_ids = token_ids.subspan(num_rows);
  }
  note_turns();
  check_no_room_is_idle(step.output);
  check_turns(step.output);
  check_oldest_progresses(step.output);
  if (!error_.empty() || step.output.scheduled.empty()) return;
  in_flight_.push_back(std::move(step));
  for (const Row& row : in_flight_.back().rows) check_exclusive_writes(row);
}

}  // namespace sluice
