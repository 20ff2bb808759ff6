// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "scheduler/scheduler_impl.h"

namespace sluice {

void Scheduler::Impl::preempt(size_t position) {
  const int32_t index = running[position];
  stop_running(position);
  Entry& e = entry(index);
  e.preempt_pending = false;
  e.request.restarts = false;
  e.was_restored = false;
  e.num_allocated_tokens = 0;
  e.num_to_replay = 0;
  e.num_found_tokens = 0;
  outlook.is_current = false;
  e.request.status = RequestStatus::kPreempted;
  e.request.num_computed_tokens = 0;
  e.request.num_scheduled_tokens = 0;
  ++e.request.num_preemptions;
  queue(index);
  output.preempted.push_back(e.request.id);
}

// Returns the victim among the requests after `position`: highest priority number, then the tenant
// with the most service, then the latest arrival. Returns `position` itself if no request follows
// it: no request takes blocks from an earlier one, so the first always progresses.
size_t Scheduler::Impl::victim_behind(size_t position) const {
  size_t victim = position;
  for (size_t i = position + 1; i < running.size(); ++i) {
    if (victim == position || !goes_before(running[i], running[victim])) victim = i;
  }
  return victim;
}

// Preempts a request after `position`. Returns false when there is none, or when blocks are only
// freed as a step in flight retires.
bool Scheduler::Impl::preempt_later_than(size_t position) {
  if (num_draining > 0) return false;
  const size_t victim = victim_behind(position);
  if (victim == position) return false;
  Entry& e = running_entry(victim);
  if (e.request.num_in_flight_tokens > 0) {
    e.preempt_pending = true;
    ++num_draining;
    return false;
  }
  preempt(victim);
  return true;
}

// Preempts the victims whose steps have retired since they were chosen.
void Scheduler::Impl::preempt_drained() {
  if (num_draining == 0) return;
  for (size_t i = running.size(); i-- > 0;) {
    const Entry& e = running_entry(i);
    if (e.preempt_pending && e.request.num_in_flight_tokens == 0) {
      short_of_blocks = short_of_blocks || !e.request.restarts;
      preempt(i);
    }
  }
}

// The test knob: preempts at most once per number of generated tokens, so that a request preempted
// in every step still ends.
void Scheduler::Impl::force_preemption() {
  if (options.preempt_every <= 0) return;
  if (output.step_id % static_cast<uint64_t>(options.preempt_every) != 0) return;
  for (size_t i = running.size(); i-- > 0;) {
    Entry& e = running_entry(i);
    if (e.draining() || e.request.num_generated() <= e.forced_at_generated) continue;
    e.forced_at_generated = e.request.num_generated();
    if (e.request.num_in_flight_tokens > 0) {
      e.preempt_pending = true;
      ++num_draining;
    } else {
      preempt(i);
    }
    return;
  }
}

}  // namespace sluice
