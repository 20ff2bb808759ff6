// SPDX-License-Identifier: Apache-2.0
// Writes the orders of steps: adds the records of new requests to the scheduler's decisions.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/types.h"
#include "engine/loop/request_table.h"
#include "engine/run/step_order.h"
#include "scheduler/scheduler_output.h"

namespace sluice {

// Converts decisions to orders. Engine thread.
class StepOrders {
 public:
  explicit StepOrders(int32_t num_slots) : begun_(static_cast<size_t>(num_slots)) {}

  // Called once per decision, in order. The table knows the decision's requests.
  void write(const SchedulerOutput& decision, const RequestTable& requests, StepOrder& order);

  // Makes the next rows of a request begin it again, since both sides have dropped its tokens.
  void begin_again(RequestId id);

  // Writes the slots of requests that have ended since the last call to `slots`, which must be
  // empty; no later order names them as ended.
  void take_ended(const RequestTable& requests, std::vector<int32_t>& slots);

 private:
  std::vector<RequestId> begun_;      // by slot; RequestId{}: none
  std::vector<RequestId> restarted_;  // subset of begun_
  uint64_t num_ended_ = 0;            // RequestTable::num_ended() at the last check
};

}  // namespace sluice
