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

struct StepOrder {
  SchedulerOutput decision;
  // Requests whose rows begin with this step, applied before it; later decisions name them by their
  // slots. The tokens before the first chosen row are committed when the step runs.
  std::vector<std::shared_ptr<const RequestRecord>> begun;
  std::vector<int32_t> ended_slots;  // requests without more rows; applied before `begun`
};

}  // namespace sluice
