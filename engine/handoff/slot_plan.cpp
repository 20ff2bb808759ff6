// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/slot_plan.h"

#include <algorithm>

#include "kvcache/transport/kv_transport.h"

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
                         bool on_device) {
  KvSlotPlan plan;
  plan.slot_bytes = std::max(kLeastSlotBytes, largest_block_bytes);
  if (role != HandoffRole::kPrefill) {
    plan.num_landing =
        static_cast<int32_t>(std::max<int64_t>(1, config.kv_transfer_buffer / plan.slot_bytes));
  }
  if (!on_device) return plan;
  const std::vector<KvTransportKind> kinds = kv_transport_kinds_of(config.kv_transport, on_device);
  const auto is_direct = [](KvTransportKind kind) {
    return is_kv_device_transport(to_string(kind));
  };
  plan.is_staged = !std::ranges::all_of(kinds, is_direct);
  if (role != HandoffRole::kDecode) plan.num_device_out = kMostDeviceSlots;
  if (std::ranges::any_of(kinds, is_direct)) {
    plan.num_device_unread = 1;
    plan.num_landing = std::min(plan.num_landing, kMostDeviceSlots);
    if (plan.num_landing > 0) plan.num_device_in = plan.num_landing + kSpareSlots;
  } else if (plan.num_landing > 0) {
    plan.num_device_in = kMostDeviceSlots;
  }
  return plan;
}

// auto never lends memory: the owner's death may be the borrower's (transport_ipc.h).
std::vector<KvTransportKind> kv_transport_kinds_of(const std::string& transport, bool on_device) {
  for (const KvTransportKind kind :
       {KvTransportKind::kSharedMemory, KvTransportKind::kCudaIpc, KvTransportKind::kNccl}) {
    if (transport == to_string(kind)) return {kind};
  }
  if (transport == "auto" && on_device) {
    return {KvTransportKind::kSharedMemory, KvTransportKind::kTcp};
  }
  return {KvTransportKind::kTcp};
}

}  // namespace sluice
