// SPDX-License-Identifier: Apache-2.0
// The order of waiting requests, and which of them may start.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "scheduler/scheduler_impl.h"

namespace sluice {

namespace {

// A waiting head that did not fit is tried again when blocks are freed, or after this many steps (a
// running request may have computed a prefix that it shares).
constexpr uint64_t kRetrySteps = 8;
// A leader that got nothing for more steps than this is not waited for: its priority or tenant may
// give way for as long as other requests arrive. One step in 16 has no prompts at all.
constexpr uint64_t kPatientSteps = 4;

}  // namespace

void Scheduler::Impl::queue(int32_t index) {
  const Entry& e = entry(index);
  if (e.was_admitted) {
    preempted.push(e.key(), index);
  } else {
    waiting.push(e.tenant_slot, e.key(), index);
  }
}

void Scheduler::Impl::unqueue(int32_t index) {
  if (entry(index).was_admitted) {
    preempted.remove(index);
  } else {
    waiting.remove(entry(index).tenant_slot, index);
  }
}

bool Scheduler::Impl::is_queued(int32_t index) const {
  return waiting.contains(index) || preempted.contains(index);
}

// The first waiting request; there must be one. A request whose turn came when there was no room
// keeps its turn: otherwise smaller ones could take all freed blocks for ever.
int32_t Scheduler::Impl::head() {
  if (!preempted.empty()) return preempted.first();
  const int32_t blocked = entry_of.find(blocked_head);
  if (blocked != IdMap::kAbsent && waiting.contains(blocked)) {
    if (waiting.is_due(entry(blocked).key()) || !waiting.has_due()) return blocked;
  }
  return waiting.first();
}

// Ends requests that can no longer start before their deadlines.
void Scheduler::Impl::expire() {
  while (!deadlines.empty() && deadlines.first_key().deadline_ms <= now_ms) {
    const int32_t index = deadlines.first();
    output.expired.push_back(entry(index).request.id);
    if (is_queued(index)) {
      unqueue(index);
    } else {
      std::erase(followers, index);
    }
    leave(index);
  }
}

// Whether `a` gets prompt tokens before `b`: higher priority (unless `b` has waited that off), then
// the tenant that was given less.
bool Scheduler::Impl::goes_before(int32_t a, int32_t b) const {
  const Entry& x = entry(a);
  const Entry& y = entry(b);
  const int32_t level_x = waiting.is_due(x.key()) ? 0 : x.request.priority;
  const int32_t level_y = waiting.is_due(y.key()) ? 0 : y.request.priority;
  if (level_x != level_y) return level_x < level_y;
  return waiting.counter(x.tenant_slot) < waiting.counter(y.tenant_slot);
}

// The tokens with KV expected beyond the known ones. The last token is never fed back.
int32_t Scheduler::Impl::expected_more(const Entry& e) const {
  const int32_t generated = e.request.num_generated() + e.num_pending_samples;
  const int32_t left = std::max(e.request.max_tokens - generated - 1, 0);
  return std::min(answer_lengths.expected_more(generated), left);
}

// A prefix found in the cache is not counted: other requests may share it.
void Scheduler::Impl::add_to_outlook(const Entry& e) {
  const int32_t missing = e.num_known() - e.num_allocated_tokens;
  outlook.num_held += (e.num_allocated_tokens - e.num_found_tokens) / kv.block_size();
  outlook.num_wanted += std::max<int64_t>(1, ceil_div(std::max(missing, 0), kv.block_size()));
  if (options.leave_room_for_answers) {
    outlook.forecast.add(e.num_known() - e.num_found_tokens, expected_more(e));
  }
}

void Scheduler::Impl::look_ahead() {
  if (std::exchange(outlook.is_current, true)) return;
  outlook.num_held = 0;
  outlook.num_wanted = 0;
  outlook.forecast.clear();
  for (const int32_t index : running) add_to_outlook(entry(index));
  for (const int32_t index : restoring) add_to_outlook(entry(index));
}

// Whether the newcomer's known tokens fit beside what running requests want now and, by the
// forecast, at any later moment.
bool Scheduler::Impl::has_room(const Entry& newcomer, int32_t num_shared) {
  look_ahead();
  const Request& r = newcomer.request;
  const auto fits = [&](int64_t num_growing) {
    return kv.has_room(r.id,
                       r.num_tokens(),
                       static_cast<int32_t>(std::min<int64_t>(outlook.num_wanted, INT32_MAX)),
                       static_cast<int32_t>(std::clamp<int64_t>(num_growing, 0, INT32_MAX)));
  };
  if (!options.leave_room_for_answers) return fits(0);
  const int32_t block_size = kv.block_size();
  const int32_t own = r.num_tokens() - num_shared;
  const int32_t more = expected_more(newcomer);
  const int64_t counted = outlook.num_held + ceil_div(own, block_size);
  return fits(outlook.forecast.sum_with(own, more, block_size) - counted) ||
         fits(outlook.forecast.peak_with(own, more, block_size) - counted);
}

int64_t Scheduler::Impl::total_available() const {
  const KvUsage usage = kv.usage();
  return usage.num_free + usage.num_cached;
}

bool Scheduler::Impl::head_still_blocked(const Entry& e) const {
  return blocked_head == e.request.id && output.step_id < blocked_until_step &&
         running.size() + restoring.size() >= blocked_num_running &&
         total_available() <= blocked_available;
}

// Whether one more prompt may be left half computed by this step.
bool Scheduler::Impl::may_be_partial() const {
  if (options.max_num_partial_prefills <= 0) return true;
  const auto num_partial =
      std::ranges::count_if(running, [this](int32_t index) { return entry(index).is_partial(); });
  return num_partial < options.max_num_partial_prefills;
}

bool Scheduler::Impl::admit(int32_t index) {
  Entry& e = entry(index);
  Request& r = e.request;
  const bool alone = running.empty() && restoring.empty();
  if (!alone && head_still_blocked(e)) return false;
  if (prefill_limit(e, 0, r.num_tokens()) == 0) return false;
  const PrefixUse use = e.was_admitted ? PrefixUse::kReadmission : PrefixUse::kAdmission;
  const int32_t num_found = kv.acquire_prefix(r.id, e.cacheable_tokens(), r.extras, use);
  if (!e.was_admitted && num_found < r.num_landed_tokens) r.is_fallback = true;
  const int32_t rest = r.num_tokens() - num_found;
  int32_t chunk = prefill_limit(e, num_found, rest);
  const int32_t least = may_be_partial() && !options.whole_prompts ? 1 : rest;
  if (least == 1) chunk = before_short_tail(e, num_found, chunk);
  if (chunk < least) chunk = 0;
  const int32_t num_shared = num_found - num_found % kv.block_size();  // the rest is copied
  if (chunk > 0 && !alone && !has_room(e, num_shared)) chunk = -1;
  if (chunk > 0 && e.wants_restoring() && options.restores_preempted) {
    kv.free(r.id);
    restore(index);
    return true;
  }
  const bool affordable = chunk != 0;
  while (chunk >= least && !kv.allocate_slots(r.id, num_found + chunk)) chunk /= 2;
  if (chunk < least) {
    kv.free(r.id);
    if (affordable) {
      blocked_head = r.id;
      blocked_available = total_available();
      blocked_num_running = running.size() + restoring.size();
      blocked_until_step = output.step_id + kRetrySteps;
    }
    return false;
  }
  if (r.keeps_prompt) kv.keep_prefix(r.id, r.num_prompt_tokens);
  start_running(index);
  e.num_found_tokens = num_shared;
  r.num_computed_tokens = num_found;
  if (computes_blocks(e)) leaders.push_back(index);
  r.num_scheduled_tokens = num_found;
  if (!e.was_admitted) {
    r.num_cached_tokens = std::min(num_found, r.num_prompt_tokens);
    waiting.start(e.tenant_slot, e.key(), r.num_tokens() - num_found);
    --num_unstarted;
    if (deadlines.contains(index)) deadlines.remove(index);
  }
  e.was_admitted = true;
  e.num_allocated_tokens = static_cast<int32_t>(align_up(num_found + chunk, kv.block_size()));
  if (outlook.is_current) add_to_outlook(e);
  record(e, chunk, /*decode=*/false);
  return true;
}

// Whether a request has an uncomputed whole block beyond the token sampled last. schedule_decodes()
// asks this for every running request.
bool Scheduler::Impl::computes_blocks(const Entry& e) const {
  const int32_t num_tokens = e.request.num_tokens();
  if (num_tokens - e.request.num_computed_tokens <= 1) return false;
  return num_tokens - num_tokens % kv.block_size() > e.request.num_computed_tokens;
}

bool Scheduler::Impl::stalls(const Entry& leader) const {
  return output.step_id - leader.last_step > kPatientSteps;
}

// Tokens of the whole blocks that `a` and `b` share, as far as `b` could take them from the cache.
int32_t Scheduler::Impl::shared_tokens(const Request& a, std::span<const TokenId> b) const {
  const auto end = std::ranges::mismatch(b.first(b.size() - 1), a.tokens());
  const auto shared = static_cast<int32_t>(end.in1 - b.begin());
  return shared - shared % kv.block_size();
}

// True when a running request computes a prefix of this one, which then waits outside the queue to
// find it in the cache instead of computing it twice. Requests after it do not wait.
bool Scheduler::Impl::follow(int32_t index) {
  if (!kv.caches_prefixes()) return false;
  Entry& e = entry(index);
  const std::span<const TokenId> wanted = e.cacheable_tokens();
  e.num_shared_tokens = 0;
  for (const int32_t other : leaders) {
    const Entry& leader = entry(other);
    const Request& r = leader.request;
    if (r.status != RequestStatus::kRunning || leader.draining() || stalls(leader)) continue;
    if (r.extras != e.request.extras) continue;
    const int32_t longest = std::min(r.num_tokens(), static_cast<int32_t>(wanted.size()) - 1);
    if (longest - longest % kv.block_size() <= r.num_computed_tokens) continue;
    const int32_t shared = shared_tokens(r, wanted);
    if (shared <= std::max(r.num_computed_tokens, e.num_shared_tokens)) continue;
    e.leader = r.id;
    e.num_shared_tokens = shared;
  }
  if (e.num_shared_tokens == 0) return false;
  unqueue(index);
  followers.push_back(index);
  return true;
}

// Requeues followers whose prefix is computed or whose leader has stopped or gets nothing.
void Scheduler::Impl::release_followers() {
  std::erase_if(followers, [this](int32_t index) {
    const Entry& e = entry(index);
    const int32_t leader = entry_of.find(e.leader);
    if (leader != IdMap::kAbsent) {
      const Entry& other = entry(leader);
      const bool runs = other.request.status == RequestStatus::kRunning && !other.draining();
      const bool goes_on = runs && !stalls(other);
      if (goes_on && other.request.num_computed_tokens < e.num_shared_tokens) return false;
    }
    queue(index);
    return true;
  });
}

// Starts to bring its KV back: meanwhile it counts as running without tokens.
void Scheduler::Impl::restore(int32_t index) {
  Entry& e = entry(index);
  e.was_restored = true;
  unqueue(index);
  restoring.push_back(index);
  if (outlook.is_current) add_to_outlook(e);
  output.restoring.push_back(e.request.id);
}

// Admits the waiting requests that go before the running request `before`; -1: all of them.
void Scheduler::Impl::admit_waiting(int32_t before) {
  while (anybody_queued() && num_tokens_left() > 0 &&
         running.size() + restoring.size() < static_cast<size_t>(max_num_running)) {
    // Blocks that a running request is short of are not given to new requests, which would take
    // them in turn for ever: all running requests are asked first, and no one of them can continue.
    const bool nothing_else = before < 0 && output.scheduled.empty() && idle();
    if (short_of_blocks && !nothing_else) return;
    const int32_t index = head();
    if (before >= 0 && !goes_before(index, before)) return;
    if (follow(index)) continue;
    if (!admit(index)) return;
  }
}

// Nothing runs and nothing can: of running requests only the oldest is left, and it finds no block.
// If no other holds any, it would wait for ever, and fails.
void Scheduler::Impl::stand_still() {
  const int32_t index = running.empty() ? head() : running.front();
  const RequestId id = entry(index).request.id;
  output.is_starved = kv.others_hold_blocks(id);
  if (output.is_starved) return;
  if (running.empty()) {
    unqueue(index);
  } else {
    stop_running(0);
  }
  leave(index);
  output.failed.push_back({id, "no KV cache block can be had and nothing is running"});
}

}  // namespace sluice
