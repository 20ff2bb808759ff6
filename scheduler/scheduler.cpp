// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/scheduler_impl.h"

namespace sluice {

namespace {

// The prompt chunk that is always granted when tokens are left, whatever the milliseconds say:
// alone, as many rows as the CPU's linear layers take at once (with fewer, reading the weights
// dominates); less beside decodes that keep a share of the time.
constexpr int32_t kMinChunkTokens = 64;
constexpr int32_t kMinChunkBesideDecodes = 8;
// The length of the last chunk of a prompt whose KV streams to another worker.
constexpr int32_t kShortTailTokens = 256;
// One step in this many has decodes alone; otherwise their cost could not be separated from that
// of the prompts beside them.
constexpr uint64_t kStepsPerProbe = 16;

// Returns the rows of [begin, end) whose states a pooled request needs and has not got.
RowRange pooled_rows(const Request& request, int32_t begin, int32_t end) {
  switch (request.pooled) {
    case PooledRows::kNone:
      break;
    case PooledRows::kFirst:
      return begin == 0 ? RowRange{0, 1} : RowRange{};
    case PooledRows::kLast:
      return end == request.num_prompt_tokens ? RowRange{end - 1, end} : RowRange{};
    case PooledRows::kAll:
      return {std::min(std::max(begin, request.num_scored_tokens), end), end};
  }
  return {};
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, KvCacheManager& kv)
    : impl_(std::make_unique<Impl>(options, kv)) {}

Scheduler::~Scheduler() = default;

// --- Arrival and departure -------------------------------------------------------------------

Expected<int32_t> Scheduler::add(Request request) {
  Impl& m = *impl_;
  if (request.num_prompt_tokens < 1) {
    return make_error(ErrorCode::kInvalidArgument, "the prompt is empty", "prompt");
  }
  if (request.max_tokens < 1) {
    return make_error(ErrorCode::kInvalidArgument, "max_tokens must be at least 1", "max_tokens");
  }
  if (request.num_generated() < 0 || request.num_generated() >= request.max_tokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      std::to_string(request.num_generated()) + " of " +
                          std::to_string(request.max_tokens) + " tokens have been generated",
                      "max_tokens");
  }
  if (m.entry_of.find(request.id) != IdMap::kAbsent) {
    return make_error(ErrorCode::kInvalidArgument, "the request id is in use");
  }
  const bool is_pooled = request.pooled != PooledRows::kNone;
  const int64_t num_tokens =
      int64_t{request.num_prompt_tokens} + (is_pooled ? 0 : request.max_tokens);
  if (num_tokens > m.options.max_model_len) {
    return make_error(ErrorCode::kInvalidArgument,
                      "prompt of " + std::to_string(request.num_prompt_tokens) +
                          " tokens and max_tokens " + std::to_string(request.max_tokens) +
                          " exceed the context of " + std::to_string(m.options.max_model_len) +
                          " tokens",
                      "max_tokens",
                      "context_length_exceeded");
  }
  // The last sampled token is never fed back and needs no KV.
  if (!m.kv.fits_alone(static_cast<int32_t>(num_tokens) - (is_pooled ? 0 : 1))) {
    return make_error(ErrorCode::kInvalidArgument,
                      std::to_string(num_tokens) + " tokens need more KV cache than there is",
                      "max_tokens",
                      "context_length_exceeded");
  }
  if (m.num_unstarted >= m.options.max_num_queued_reqs || m.free_entries.empty()) {
    return make_error(ErrorCode::kResourceExhausted, "the waiting queue is full");
  }
  const int32_t index = m.free_entries.back();
  m.free_entries.pop_back();
  Impl::Entry& e = m.entry(index);
  e = Impl::Entry{};
  e.in_use = true;
  Request& r = e.request = std::move(request);
  r.arrival_order = m.num_arrivals++;
  e.rank_ms = rank_ms(r.arrival_ms, r.priority, m.options.priority_aging_ms);
  e.tenant_slot = m.waiting.enter(r.tenant);
  ++m.num_unstarted;
  m.entry_of.insert(r.id, index);
  m.queue(index);
  if (r.deadline_ms != kNoDeadline) m.deadlines.push({r.deadline_ms, r.arrival_order}, index);
  return index;
}

bool Scheduler::abort(RequestId id) {
  Impl& m = *impl_;
  const int32_t index = m.entry_of.find(id);
  if (index == IdMap::kAbsent) return false;
  Impl::Entry& e = m.entry(index);
  if (m.is_queued(index)) {
    m.unqueue(index);
    m.leave(index);
    return true;
  }
  if (std::erase(m.followers, index) > 0 || std::erase(m.restoring, index) > 0) {
    m.leave(index);
    return true;
  }
  if (e.request.num_in_flight_tokens > 0) {
    if (e.request.status == RequestStatus::kFinished) return false;
    if (!e.draining()) ++m.num_draining;
    e.request.abort_pending = true;
    return false;
  }
  m.stop_running(m.position_in_running(e));
  m.leave(index);
  return true;
}

void Scheduler::resume(RequestId id) {
  Impl& m = *impl_;
  const int32_t index = m.entry_of.find(id);
  CHECK_NE(index, IdMap::kAbsent);
  CHECK_EQ(std::erase(m.restoring, index), 1U);
  m.queue(index);
}

size_t Scheduler::Impl::position_in_running(const Entry& e) const {
  const auto it = std::ranges::lower_bound(
      running, e.key(), {}, [this](int32_t index) { return entry(index).key(); });
  return static_cast<size_t>(it - running.begin());
}

void Scheduler::Impl::start_running(int32_t index) {
  Entry& e = entry(index);
  unqueue(index);
  e.request.status = RequestStatus::kRunning;
  running.insert(running.begin() + static_cast<ptrdiff_t>(position_in_running(e)), index);
}

// Removes a request from `running` and frees its blocks.
void Scheduler::Impl::stop_running(size_t position) {
  const Entry& e = running_entry(position);
  CHECK_EQ(e.request.num_in_flight_tokens, 0);
  if (e.draining()) --num_draining;
  const Request& r = e.request;
  if (!e.is_kv_bad && !r.restarts) {
    kv.cache_tail(r.id, r.tokens(), std::min(r.num_computed_tokens, r.num_tokens()));
  }
  kv.free(r.id);
  running.erase(running.begin() + static_cast<ptrdiff_t>(position));
}

void Scheduler::Impl::leave(int32_t index) {
  const Entry& e = entry(index);
  if (deadlines.contains(index)) deadlines.remove(index);
  if (!e.was_admitted) --num_unstarted;
  waiting.leave(e.tenant_slot, e.was_admitted);
  entry_of.erase(e.request.id);
  entry(index) = Entry{};
  free_entries.push_back(index);
}

// --- One step --------------------------------------------------------------------------------

void Scheduler::Impl::record(Entry& e, int32_t num_tokens, bool decode) {
  Request& r = e.request;
  const bool is_last = num_tokens == e.num_remaining();
  const bool samples = is_last && r.pooled == PooledRows::kNone;
  const int32_t begin = r.num_scheduled_tokens;
  const int32_t end = begin + num_tokens;
  e.row = static_cast<int32_t>(output.scheduled.size());
  ScheduledRequest& row = output.scheduled.emplace_back();
  row.id = r.id;
  row.num_computed_tokens = begin;
  row.num_scheduled_tokens = num_tokens;
  row.num_unsure = e.num_drafts_in_flight;
  row.num_replayed = std::exchange(e.num_to_replay, 0);
  row.slot = static_cast<int32_t>(&e - entries.data());
  if (samples) row.chosen = {end - 1, end};
  if (r.scores_prompt) {
    const int32_t first = std::max(begin, r.num_scored_tokens);
    row.scored = {first, std::max(first, std::min(end, r.num_prompt_tokens - 1))};
  }
  row.embedded = pooled_rows(r, begin, end);
  row.ends = is_last && !samples;
  output.total_tokens += num_tokens;
  if (!decode) output.num_prefill_tokens += num_tokens;
  if (!decode && r.is_fallback) num_fallback_tokens += num_tokens;
  shape.add(decode, begin, num_tokens);
  r.num_scheduled_tokens += num_tokens;
  r.num_in_flight_tokens += num_tokens;
  num_tokens_in_flight += num_tokens;
  if (samples) {
    ++num_chosen_rows;
    ++e.num_pending_samples;
    waiting.charge(e.tenant_slot, kGeneratedCost);
  }
  e.last_step = output.step_id;
}

// Makes room for up to `num_tokens` more tokens of a running request. When blocks are short,
// preempts later requests or grants fewer tokens. Returns how many fit; 0: it has to wait.
int32_t Scheduler::Impl::take_blocks(size_t position, int32_t num_tokens) {
  Entry& e = running_entry(position);
  const int32_t start = e.request.num_scheduled_tokens;
  if (start + num_tokens <= e.num_allocated_tokens) return num_tokens;
  outlook.is_current = false;
  do {
    for (int32_t granted = num_tokens; granted > 0; granted /= 2) {
      if (!kv.allocate_slots(e.request.id, start + granted)) continue;
      e.num_allocated_tokens = static_cast<int32_t>(align_up(start + granted, kv.block_size()));
      return granted;
    }
    short_of_blocks = true;
  } while (preempt_later_than(position));
  return 0;
}

// Schedules this step's part of the decodes, so that all steps in flight get as many: those that
// have waited longest and find a block.
void Scheduler::Impl::schedule_turns() {
  decodes.clear();
  int32_t num_all = 0;  // those whose tokens or drafts are in flight included
  for (const int32_t index : running) {
    const Entry& e = entry(index);
    if (may_decode(e)) decodes.push_back(index);
    num_all += !e.draining() && e.decodes();
  }
  const auto part = static_cast<size_t>(ceil_div(num_all, options.steps_in_flight));
  std::ranges::sort(decodes, [this](int32_t a, int32_t b) {
    const Entry& x = entry(a);
    const Entry& y = entry(b);
    return x.last_step != y.last_step ? x.last_step < y.last_step : x.key() < y.key();
  });
  for (const int32_t index : decodes) {
    if (output.scheduled.size() == part) break;
    Entry& e = entry(index);
    const bool is_preempted = e.request.status != RequestStatus::kRunning;
    if (is_preempted || !may_decode(e)) continue;
    if (take_blocks(position_in_running(e), 1) == 1) record(e, 1, /*decode=*/true);
  }
}

// Schedules every request that decodes: no more requests run than a step has tokens. With disjoint
// steps some of them.
void Scheduler::Impl::schedule_decodes() {
  leaders.clear();
  if (is_disjoint()) {
    std::ranges::copy_if(running, std::back_inserter(leaders), [this](int32_t index) {
      return computes_blocks(entry(index));
    });
    schedule_turns();
  } else {
    // A preemption removes only requests after the current one.
    for (size_t i = 0; i < running.size(); ++i) {
      Entry& e = running_entry(i);
      if (computes_blocks(e)) leaders.push_back(running[i]);
      if (!may_decode(e)) continue;
      if (take_blocks(i, 1) == 1) record(e, 1, /*decode=*/true);
    }
  }
  num_decoding = static_cast<int32_t>(output.scheduled.size());
}

// Sets how long the step may become for prompts, beside the decodes that it already has.
void Scheduler::Impl::set_target() {
  target_ms = options.step_target_ms > 0 ? options.step_target_ms : kNoTarget;
  least_chunk = kMinChunkTokens;
  if (target_ms == kNoTarget || shape.num_decode_tokens == 0) return;
  if (options.max_prefill_share >= 1) return;
  least_chunk = kMinChunkBesideDecodes;
  const bool probes = output.step_id % kStepsPerProbe == 0;
  const double share_of_decodes = 1 - options.max_prefill_share;
  target_ms = probes ? 0 : std::min(target_ms, cost.predict_ms(shape) / share_of_decodes);
}

// Tokens of a prompt chunk that both budgets allow.
int32_t Scheduler::Impl::prefill_limit(const Entry& e, int32_t start, int32_t num_remaining) const {
  int32_t limit = std::min(num_remaining, num_tokens_left());
  if (options.whole_prompts) {
    const bool fits = limit == num_remaining &&
                      (output.total_tokens == 0 || target_ms == kNoTarget ||
                       cost.max_prefill_tokens(shape, start, target_ms) >= num_remaining);
    return fits ? num_remaining : 0;
  }
  if (options.long_prefill_token_threshold > 0) {
    limit = std::min(limit, options.long_prefill_token_threshold);
  }
  if (e.request.is_fallback && shape.num_decode_tokens > 0) {
    const double most = options.max_fallback_share * options.max_num_batched_tokens;
    limit = std::clamp(std::max(static_cast<int32_t>(most), 1) - num_fallback_tokens, 0, limit);
  }
  if (target_ms == kNoTarget || limit == 0) return limit;
  if (target_ms == 0) return 0;
  const int32_t affordable = cost.max_prefill_tokens(shape, start, target_ms);
  if (affordable >= limit) return limit;
  if (output.num_prefill_tokens == 0) return std::min(limit, std::max(affordable, least_chunk));
  return affordable < std::min(least_chunk, e.num_remaining()) ? 0 : affordable;
}

// Cuts a chunk that would end a prompt with streamed KV so that a short one remains: the other
// worker waits for the last chunk's blocks, while earlier ones travel during its computation. With
// only a few tokens in front, the extra step would cost more than that wait.
int32_t Scheduler::Impl::before_short_tail(const Entry& e, int32_t start, int32_t chunk) const {
  const Request& r = e.request;
  const bool is_cut = r.streams_kv && start + chunk == r.num_tokens() &&
                      chunk >= kMinChunkTokens + kShortTailTokens;
  if (!is_cut) return chunk;
  const int64_t end = align_up(r.num_tokens() - kShortTailTokens, kv.block_size());
  return std::min(chunk, static_cast<int32_t>(end) - start);
}

void Scheduler::Impl::schedule_prefill(int32_t index) {
  Entry& e = entry(index);
  // It may have been preempted for another request meanwhile.
  if (e.request.status != RequestStatus::kRunning || !e.schedulable()) return;
  if (e.last_step == output.step_id) return;
  const int32_t start = e.request.num_scheduled_tokens;
  const int32_t wanted = before_short_tail(e, start, prefill_limit(e, start, e.num_remaining()));
  if (wanted == 0) return;
  const int32_t granted = take_blocks(position_in_running(e), wanted);
  if (granted > 0) record(e, granted, /*decode=*/false);
}

// Schedules running prefills in turn, and before each the waiting requests that precede it.
void Scheduler::Impl::schedule_prefills() {
  prefills.clear();
  for (const int32_t index : running) {
    const Entry& e = entry(index);
    if (e.schedulable() && !e.decodes()) prefills.push_back(index);
  }
  std::ranges::sort(prefills, [this](int32_t a, int32_t b) {
    if (goes_before(a, b)) return true;
    return !goes_before(b, a) && entry(a).key() < entry(b).key();
  });
  for (const int32_t index : prefills) {
    admit_waiting(index);
    if (num_tokens_left() == 0) return;
    schedule_prefill(index);
  }
}

// Writes the tokens and blocks of the decision, which is final from here on.
void Scheduler::Impl::write_rows() {
  for (const ScheduledRequest& row : output.scheduled) {
    const Entry& e = entry(row.slot);
    const std::span<const TokenId> tokens = e.request.tokens();
    const int32_t num_known = e.request.num_tokens();
    const int32_t first_draft = row.end() - row.num_draft_tokens;
    const auto known = tokens.begin() + std::min(row.num_computed_tokens, num_known);
    output.token_ids.insert(
        output.token_ids.end(), known, tokens.begin() + std::min(first_draft, num_known));
    if (first_draft > num_known) output.token_ids.push_back(kInvalidToken);
    if (row.num_draft_tokens > 0) {
      const Draft& draft = offers[e.offer].draft;
      const auto count = static_cast<size_t>(row.num_draft_tokens);
      const std::span<const TokenId> guessed = draft.guessed().first(count);
      const std::span<const uint8_t> bins = draft.confidence().first(count);
      output.token_ids.insert(output.token_ids.end(), guessed.begin(), guessed.end());
      output.draft_bins.insert(output.draft_bins.end(), bins.begin(), bins.end());
    }
    if (!row.scored.empty()) {
      output.scored_tokens.insert(output.scored_tokens.end(),
                                  tokens.begin() + row.scored.begin + 1,
                                  tokens.begin() + row.scored.end + 1);
    }
    for (int32_t group = 0; group < kv.num_groups(); ++group) {
      const auto num_blocks = static_cast<size_t>(kv.num_entries(group, row.end()));
      const std::span<const BlockId> table = kv.block_table(row.id, group);
      const std::span<const BlockId> used = table.first(std::min(num_blocks, table.size()));
      output.blocks.insert(output.blocks.end(), used.begin(), used.end());
      output.blocks.resize(output.blocks.size() + num_blocks - used.size(), kNullBlock);
    }
  }
  offers.clear();
  output.draft_ms = std::exchange(offers_ms, 0);
}

const SchedulerOutput& Scheduler::schedule(int64_t now_ms) {
  Impl& m = *impl_;
  SchedulerOutput& output = m.output;
  ++output.step_id;
  output.scheduled.clear();
  output.token_ids.clear();
  output.scored_tokens.clear();
  output.blocks.clear();
  output.draft_bins.clear();
  output.drafts_off.reset();
  output.predicted_gain = 1;
  output.preempted.clear();
  output.restoring.clear();
  output.failed.clear();
  output.is_starved = false;
  output.expired.clear();
  output.copies.clear();
  output.total_tokens = 0;
  output.num_prefill_tokens = 0;
  m.shape = {};
  m.num_chosen_rows = 0;
  m.outlook.is_current = false;
  m.short_of_blocks = false;
  m.num_fallback_tokens = 0;
  m.now_ms = std::max(m.now_ms, now_ms);
  m.waiting.advance(m.now_ms);
  m.expire();
  m.preempt_drained();
  m.force_preemption();
  m.release_followers();
  m.schedule_decodes();
  m.set_target();
  m.schedule_prefills();
  m.admit_waiting(/*before=*/-1);
  m.add_drafts();
  m.write_rows();
  m.kv.take_copies(output.copies);
  if (output.scheduled.empty()) {  // the reader was preempted
    m.kv.end_copies(output.copies);
    output.copies.clear();
  }
  output.predicted_ms = m.cost.predict_ms(m.shape);
  if (output.scheduled.empty() && m.restoring.empty() && m.idle() && has_work()) m.stand_still();
  return output;
}

// --- Retirement ------------------------------------------------------------------------------

// `result` is null where no token was chosen or the request has ended.
void Scheduler::Impl::retire_row(const ScheduledRequest& row, const StepResult* result) {
  const int32_t index = entry_of.find(row.id);
  CHECK_NE(index, IdMap::kAbsent);  // in flight, so it cannot have left
  Entry& e = entry(index);
  Request& r = e.request;
  const bool dead = r.abort_pending || r.status == RequestStatus::kFinished;
  CHECK(row.chosen.empty() || result != nullptr || dead);
  const bool restarts = !dead && (r.restarts || (result != nullptr && result->restarts));
  const std::span<const TokenId> tokens =
      result == nullptr || dead || restarts ? std::span<const TokenId>() : result->tokens;
  const int32_t num_right = std::max(static_cast<int32_t>(tokens.size()) - 1, 0);
  const int32_t num_wrong = row.num_draft_tokens - num_right;
  CHECK_GE(num_wrong, 0);
  num_tokens_in_flight -= row.num_scheduled_tokens;
  r.num_in_flight_tokens -= row.num_scheduled_tokens;
  r.num_computed_tokens += row.num_scheduled_tokens - num_wrong;
  r.num_scheduled_tokens -= num_wrong;
  r.num_scored_tokens =
      std::max(r.num_scored_tokens, std::min(r.num_computed_tokens, r.num_prompt_tokens - 1));
  e.num_to_replay += num_right;
  if (!row.chosen.empty()) {
    --e.num_pending_samples;
    e.num_drafts_in_flight -= row.num_draft_tokens;
    if (row.num_draft_tokens > 0 && e.num_drafts_in_flight == 0) --num_drafting;
  }
  if (restarts) {
    if (!e.draining()) ++num_draining;
    e.preempt_pending = true;
    r.restarts = true;
    return;
  }
  CHECK_LE(r.num_generated() + static_cast<int32_t>(tokens.size()), r.max_tokens);
  r.log.append(tokens);
  if (num_right > 0) waiting.charge(e.tenant_slot, num_right * kGeneratedCost);
  if (result != nullptr && !dead && (result->finished || r.num_generated() == r.max_tokens)) {
    if (!e.draining()) ++num_draining;
    r.status = RequestStatus::kFinished;
    answer_lengths.observe(r.num_generated());
  }
  if (row.ends && !dead) {
    if (!e.draining()) ++num_draining;
    r.status = RequestStatus::kFinished;
  }
  // The KV of a failed step is not cached. An aborted request may have fed back a token that it
  // never learned.
  e.is_kv_bad = e.is_kv_bad || (result != nullptr && result->tokens.empty());
  if (e.is_kv_bad) return;
  kv.cache_blocks(r.id, r.tokens(), std::min(r.num_computed_tokens, r.num_tokens()));
}

void Scheduler::update(const SchedulerOutput& output,
                       std::span<const StepResult> results,
                       double measured_ms,
                       std::vector<RequestId>& aborted) {
  Impl& m = *impl_;
  DraftedStep retired;
  retired.ms = measured_ms;
  retired.draft_ms = output.draft_ms;
  size_t next = 0;
  int32_t num_decode_tokens = output.total_tokens - output.num_prefill_tokens;
  std::span<const uint8_t> bins = output.draft_bins;
  for (const ScheduledRequest& row : output.scheduled) {
    const bool decodes = num_decode_tokens > 0;
    const int32_t num_known = row.num_scheduled_tokens - row.num_draft_tokens;
    retired.shape.add(decodes, row.num_computed_tokens, row.num_scheduled_tokens);
    retired.plain.add(decodes, row.num_computed_tokens, num_known);
    num_decode_tokens -= row.num_scheduled_tokens;
    const bool is_next = !row.chosen.empty() && next < results.size() && results[next].id == row.id;
    const StepResult* const result = is_next ? &results[next++] : nullptr;
    if (decodes) {
      const auto count = static_cast<size_t>(row.num_draft_tokens);
      m.observe_drafts(row, bins.first(count), result, retired);
      bins = bins.subspan(count);
    }
    m.retire_row(row, result);
  }
  CHECK_EQ(next, results.size());
  m.kv.end_copies(output.copies);
  if (m.num_draining > 0) {
    for (const ScheduledRequest& row : output.scheduled) {
      const int32_t index = m.entry_of.find(row.id);
      const Request& r = m.entry(index).request;
      const bool finished = r.status == RequestStatus::kFinished;
      if (r.num_in_flight_tokens > 0 || !(r.abort_pending || finished)) continue;
      if (!finished) aborted.push_back(r.id);
      m.stop_running(m.position_in_running(m.entry(index)));
      m.leave(index);
    }
  }
  if (output.scheduled.empty()) return;
  m.cost.observe(retired.shape, measured_ms);
  m.budget.observe_step(m.cost, retired);
}

// --- Views -----------------------------------------------------------------------------------

const Request* Scheduler::find(RequestId id) const {
  const int32_t index = impl_->entry_of.find(id);
  return index == IdMap::kAbsent ? nullptr : &impl_->entry(index).request;
}

int32_t Scheduler::num_running() const { return static_cast<int32_t>(impl_->running.size()); }

int32_t Scheduler::num_waiting() const {
  const Impl& m = *impl_;
  return m.waiting.size() + m.preempted.size() + static_cast<int32_t>(m.followers.size()) +
         num_restoring();
}

int32_t Scheduler::num_slots() const { return static_cast<int32_t>(impl_->entries.size()); }

int32_t Scheduler::num_unstarted() const { return impl_->num_unstarted; }

int32_t Scheduler::num_restoring() const { return static_cast<int32_t>(impl_->restoring.size()); }

bool Scheduler::has_work() const { return num_running() + num_waiting() > num_restoring(); }

int64_t Scheduler::num_virtual_tokens(TenantId tenant) const {
  return impl_->waiting.counter_of(tenant);
}

}  // namespace sluice
