// SPDX-License-Identifier: Apache-2.0
// Blocks of KV in memory of the host, for what the cache has lost: where the cache is an
// accelerator's, or less than the machine has. Each with its checksum, which is looked at when the
// block comes back; one that does not match counts as absent, with one line in the log.
#pragma once

#include <functional>
#include <memory>

#include "engine/core/status.h"
#include "kvcache/kv_tier.h"

namespace sluice {

// Takes options.max_bytes from the system.
Expected<std::unique_ptr<KvTier>> create_kv_host_tier(const KvTierOptions& options,
                                                      std::function<void()> wake);

}  // namespace sluice
