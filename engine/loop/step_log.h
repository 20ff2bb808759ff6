// SPDX-License-Identifier: Apache-2.0
// Records of the last steps, for diagnosis. Engine thread only.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/core/engine_state.h"

namespace sluice {

class StepLog {
 public:
  // Returns a new numbered record for a step that begins, replacing the oldest. Valid until the
  // next call.
  StepRecord& begin();
  // Returns the record of one of the last kKeptSteps steps. Valid until the next begin().
  StepRecord& of(uint64_t number);

  // Returns at most `count` of the last ended steps, oldest first.
  [[nodiscard]] std::vector<StepRecord> last(size_t count) const;

 private:
  uint64_t num_steps_ = 0;
  std::vector<StepRecord> ring_;  // grows to kKeptSteps; step n is at (n - 1) % kKeptSteps
};

}  // namespace sluice
