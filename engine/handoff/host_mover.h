// SPDX-License-Identifier: Apache-2.0
// The mover of a cache in the host's memory: the transport reads blocks in place, and what
// has arrived in a landing slot is copied into its blocks at once.
#pragma once

#include <memory>

#include "engine/handoff/kv_mover.h"
#include "kvcache/store/kv_ranks.h"

namespace sluice {

// The storages of `cache` must outlive it. kResourceExhausted: no memory for slots.
Expected<std::unique_ptr<KvMover>> make_host_mover(const KvMover::Options& options,
                                                   const KvRanks& cache,
                                                   std::unique_ptr<KvTransports> transports);

}  // namespace sluice
