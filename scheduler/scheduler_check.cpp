// SPDX-License-Identifier: Apache-2.0
// Checks the scheduler's invariants, for tests.
#include <algorithm>
#include <cstddef>
#include <string>

#include "scheduler/scheduler_impl.h"

namespace sluice {

std::string Scheduler::Impl::check_entry(int32_t index) const {
  const Entry& e = entry(index);
  const Request& r = e.request;
  const std::string name = "request " + std::to_string(r.id.value);
  if (entry_of.find(r.id) != index) return name + " is not findable";
  if (r.num_scheduled_tokens != r.num_computed_tokens + r.num_in_flight_tokens) {
    return name + ": scheduled is not computed + in flight";
  }
  if (r.num_generated() + e.num_pending_samples + e.num_drafts_in_flight > r.max_tokens) {
    return name + " generates too much";
  }
  if (is_disjoint() && e.num_pending_samples > 1) return name + " decodes in two steps at once";
  if (e.num_drafts_in_flight >= std::max(r.num_in_flight_tokens, 1)) {
    return name + " has drafts in flight that are not";
  }
  const auto num_outside =
      std::ranges::count(followers, index) + std::ranges::count(restoring, index);
  const bool has_deadline = e.request.deadline_ms != kNoDeadline && !e.was_admitted;
  if (deadlines.contains(index) != has_deadline) return name + " has another deadline";
  if (is_queued(index) || num_outside > 0) {
    if (is_queued(index) + num_outside > 1) return name + " waits twice";
    const bool empty = r.num_scheduled_tokens == 0 && e.num_allocated_tokens == 0 &&
                       e.num_pending_samples == 0 && kv.block_table(r.id, 0).empty();
    if (!empty || e.draining()) return name + " waits and holds something";
    const bool known = r.status == RequestStatus::kPreempted || !e.was_admitted;
    return known ? std::string() : name + " waits in a wrong state";
  }
  if (running[std::min(position_in_running(e), running.size() - 1)] != index) {
    return name + " is neither waiting nor running";
  }
  if (r.num_scheduled_tokens > e.num_allocated_tokens) return name + " runs without room";
  const bool ends = r.pooled != PooledRows::kNone && r.num_in_flight_tokens > 0;
  if (e.num_remaining() < 1 && !e.draining() && !ends) return name + " has nothing left to schedule";
  return {};
}

std::string Scheduler::check_integrity() const {
  const Impl& m = *impl_;
  if (std::string wrong = m.waiting.check_integrity(); !wrong.empty()) return wrong;
  if (std::string wrong = m.preempted.check_integrity(); !wrong.empty()) return wrong;
  if (std::string wrong = m.deadlines.check_integrity(); !wrong.empty()) return wrong;
  size_t num_in_use = 0;
  int32_t num_unstarted = 0;
  int64_t num_tokens_in_flight = 0;
  int32_t num_draining = 0;
  int32_t num_drafting = 0;
  for (size_t i = 0; i < m.entries.size(); ++i) {
    const Impl::Entry& e = m.entries[i];
    if (!e.in_use) continue;
    ++num_in_use;
    num_tokens_in_flight += e.request.num_in_flight_tokens;
    num_draining += e.draining();
    num_drafting += e.num_drafts_in_flight > 0;
    num_unstarted += !e.was_admitted;
    if (std::string wrong = m.check_entry(static_cast<int32_t>(i)); !wrong.empty()) return wrong;
  }
  if (num_in_use != m.running.size() + static_cast<size_t>(num_waiting()) ||
      num_in_use + m.free_entries.size() != m.entries.size() || num_in_use != m.entry_of.size()) {
    return "requests are miscounted";
  }
  if (num_tokens_in_flight != m.num_tokens_in_flight) return "tokens in flight are miscounted";
  if (num_unstarted != m.num_unstarted) return "requests that have not started are miscounted";
  if (num_drafting != m.num_drafting) return "requests with drafts in flight are miscounted";
  if (num_draining != m.num_draining) return "draining requests are miscounted";
  if (m.running.size() > static_cast<size_t>(m.max_num_running)) return "too many run";
  for (size_t i = 1; i < m.running.size(); ++i) {
    if (!(m.entry(m.running[i - 1]).key() < m.entry(m.running[i]).key())) {
      return "running requests are out of order";
    }
  }
  return {};
}

}  // namespace sluice
