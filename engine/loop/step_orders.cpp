// SPDX-License-Identifier: Apache-2.0
#include "engine/loop/step_orders.h"

namespace sluice {
namespace {

BegunRequest begun_request(int32_t slot, const Request& request, const RequestState& state) {
  BegunRequest begun = {.id = request.id,
                        .slot = slot,
                        .num_prompt_tokens = request.num_prompt_tokens,
                        .params = state.sampling,
                        .grammar = state.grammar,
                        .begins_behind = state.begins_behind,
                        .checks_first_row = state.has_handoff};
  if (reads_history(begun)) begun.tokens = request.tokens;
  return begun;
}

}  // namespace

void StepOrders::write(const SchedulerOutput& decision,
                       const Scheduler& scheduler,
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
    order.begun.push_back(
        begun_request(item.slot, *scheduler.find(item.id), *requests.find(item.id)));
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
