// SPDX-License-Identifier: Apache-2.0
#include "engine/step_log.h"

#include <algorithm>
#include <utility>

namespace sluice {

StepRecord& StepLog::begin() {
  const size_t place = num_steps_++ % kKeptSteps;
  if (place == ring_.size()) ring_.emplace_back();
  StepRecord& record = ring_[place];
  std::vector<StepItem> items = std::move(record.items);  // keeps its capacity
  items.clear();
  record = StepRecord();
  record.items = std::move(items);
  record.number = num_steps_;
  return record;
}

std::vector<StepRecord> StepLog::last(size_t count) const {
  count = std::min(count, ring_.size());
  std::vector<StepRecord> steps;
  steps.reserve(count);
  for (uint64_t step = num_steps_ - count; step < num_steps_; ++step) {
    steps.push_back(ring_[step % kKeptSteps]);
  }
  return steps;
}

}  // namespace sluice
