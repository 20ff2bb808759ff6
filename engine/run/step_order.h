// SPDX-License-Identifier: Apache-2.0
// A self-contained order for one step: the scheduler's decision and, once per request, the
// parameters by which its rows are chosen and scored. The side that runs steps learns nothing else
// about requests.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/core/types.h"
#include "engine/sampling/request_record.h"
#include "scheduler/scheduler_output.h"

namespace sluice {

// A request whose rows begin with this step; later decisions name it by its slot.
struct BegunRequest {
  int32_t slot = 0;
  // The tokens before the first chosen row are committed when the step runs.
  std::shared_ptr<const RequestRecord> record;
};

struct StepOrder {
  SchedulerOutput decision;
  std::vector<BegunRequest> begun;   // applied before the step
  std::vector<int32_t> ended_slots;  // requests without more rows; applied before `begun`
};

}  // namespace sluice
