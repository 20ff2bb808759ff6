// SPDX-License-Identifier: Apache-2.0
// The slots that KV between workers passes through: how many a worker has and in which memory. The
// memory plan counts them, and the mover (kv_mover.h) allocates what is counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/handoff/handoff_config.h"
#include "engine/handoff/kv_messages.h"

namespace sluice {

struct KvSlotPlan {
  int64_t slot_bytes = 0;
  int32_t num_landing = 0;     // slots that peers fill; 0: nothing is fetched
  int32_t num_device_out = 0;  // slots on a device that its blocks are gathered into
  int32_t num_device_in = 0;   // slots on a device that its blocks are scattered from
  // Slots for payloads without a receiver, if a transport moves the device's memory.
  int32_t num_device_unread = 0;
  bool is_staged = true;       // a transport moves the host's memory: a device's is staged there

  // Returns the slots' bytes on the device.
  [[nodiscard]] int64_t device_bytes() const {
    return (num_device_out + num_device_in + num_device_unread) * slot_bytes;
  }

  // Returns the slots' bytes on the host, pinned if the cache is a device's.
  [[nodiscard]] int64_t host_bytes() const {
    return is_staged ? (num_landing + num_device_out) * slot_bytes : 0;
  }
};

// Returns the kinds that a worker with --kv-transport offers, the preferred first. `on_device`: its
// cache is a device's.
std::vector<KvTransportKind> kv_transport_kinds_of(const std::string& transport, bool on_device);

// Plans the slots of a worker whose largest block of a KV group has so many bytes. `on_device`: its
// cache is a device's.
KvSlotPlan plan_kv_slots(const Config& config,
                         HandoffRole role,
                         int64_t largest_block_bytes,
                         bool on_device);

}  // namespace sluice
