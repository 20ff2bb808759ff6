// SPDX-License-Identifier: Apache-2.0
#include "engine/loop/step_orders.h"

namespace sluice {

void StepOrders::write(const SchedulerOutput& decision,
                       const RequestTable& requests,
                       StepOrder& order) {
  order.decision = decision;
  order.begun.clear();
  order.ended_slots.clear();
  take_ended(requests, order.ended_slots);
  for (const ScheduledRequest& item : decision.scheduled) {
    RequestId& begun = begun_[static_cast<size_t>(item.slot)];
    if (begun == item.id && std::erase(restarted_, item.id) == 0) continue;
    begun = item.id;
    order.begun.push_back(requests.find(item.id)->record);
  }
}

void StepOrders::begin_again(RequestId id) { restarted_.push_back(id); }

void StepOrders::take_ended(const RequestTable& requests, std::vector<int32_t>& slots) {
  if (requests.num_ended() == num_ended_) return;
  num_ended_ = requests.num_ended();
  for (size_t slot = 0; slot < begun_.size(); ++slot) {
    if (begun_[slot] == RequestId{} || requests.find(begun_[slot]) != nullptr) continue;
    std::erase(restarted_, begun_[slot]);
    begun_[slot] = {};
    slots.push_back(static_cast<int32_t>(slot));
  }
}

}  // namespace sluice
