// SPDX-License-Identifier: Apache-2.0
#include "engine/loop/step_log.h"

#include <algorithm>
#include <utility>

namespace sluice {

StepRecord& StepLog::begin() {
  const size_t place = num_steps_++ % kKeptSteps;
  if (place == ring_.size()) ring_.emplace_back();
  StepRecord& record = ring_[place];
  std::vector<StepItem> items = std::move(record.items);  // keeps the capacity
  items.clear();
  record = StepRecord();
  record.items = std::move(items);
  record.number = num_steps_;
  return record;
}

StepRecord& StepLog::of(uint64_t number) { return ring_[(number - 1) % kKeptSteps]; }

std::vector<StepRecord> StepLog::last(size_t count) const {
  uint64_t end = num_steps_;
  size_t num_kept = ring_.size();
  for (; num_kept > 0 && ring_[(end - 1) % kKeptSteps].end_ns == 0; --end) --num_kept;
  count = std::min(count, num_kept);
  std::vector<StepRecord> steps;
  steps.reserve(count);
  for (uint64_t step = end - count; step < end; ++step) steps.push_back(ring_[step % kKeptSteps]);
  return steps;
}

}  // namespace sluice
