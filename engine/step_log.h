// SPDX-License-Identifier: Apache-2.0
// The last steps, for whoever wants to know what the engine has been doing. Engine thread only.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/core/engine_state.h"

namespace sluice {

class StepLog {
 public:
  // The record of the step that begins, in place of the oldest one, numbered. Valid until the next
  // call.
  StepRecord& begin();
  // Of one of the last kKeptSteps. Valid as long.
  StepRecord& of(uint64_t number);

  // At most `count` of the last ones that have ended, oldest first.
  [[nodiscard]] std::vector<StepRecord> last(size_t count) const;

 private:
  uint64_t num_steps_ = 0;
  std::vector<StepRecord> ring_;  // grows to kKeptSteps; step n is at (n - 1) % kKeptSteps
};

}  // namespace sluice
