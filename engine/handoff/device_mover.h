// SPDX-License-Identifier: Apache-2.0
// The mover of a cache in a device's memory. Blocks go through slots there, of which each direction
// has a few: gathered into one after the steps that were launched so far, scattered from one into
// blocks that later steps read. Where the transport moves memory of the host, a slot is copied to
// pinned memory before it is sent, and a landing slot, which is pinned, to the device before it is
// reported as arrived. All of that runs on queues of its own beside the steps; the engine asks
// between steps whether an event is there.
//
// The end of an aborted attempt or a closed session is reported when the transport has released it
// and none of its copies is running.
#pragma once

#include <memory>

#include "engine/handoff/kv_mover.h"

namespace sluice {

// `storage` must outlive it. kResourceExhausted: no memory for slots, of the device or pinned.
Expected<std::unique_ptr<KvMover>> make_device_mover(const KvMover::Options& options,
                                                     KvStorage& storage,
                                                     std::unique_ptr<KvTransports> transports);

}  // namespace sluice
