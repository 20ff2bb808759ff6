// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/slot_plan.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr int64_t kLeastSlotBytes = int64_t{2} << 20;
// Slots of each direction on a device: enough for some to be copied while others travel.
constexpr int32_t kMostDeviceSlots = 16;
// More than a transport that writes them itself has to post: blocks are taken from some meanwhile.
constexpr int32_t kSpareSlots = 8;

}  // namespace

KvSlotPlan plan_kv_slots(const Config& config,
                         HandoffRole role,
                         int64_t largest_block_bytes,
                         bool on_device,
                         bool is_direct) {
  KvSlotPlan plan;
  plan.slot_bytes = std::max(kLeastSlotBytes, largest_block_bytes);
  if (role != HandoffRole::kPrefill) {
    plan.num_landing =
        static_cast<int32_t>(std::max<int64_t>(1, config.kv_transfer_buffer / plan.slot_bytes));
  }
  if (!on_device) return plan;
  plan.is_staged = !is_direct;
  if (is_direct) plan.num_landing = std::min(plan.num_landing, kMostDeviceSlots);
  if (role != HandoffRole::kDecode) plan.num_device_out = kMostDeviceSlots;
  if (plan.num_landing > 0) {
    plan.num_device_in = is_direct ? plan.num_landing + kSpareSlots : kMostDeviceSlots;
  }
  return plan;
}

}  // namespace sluice
