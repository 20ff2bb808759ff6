// SPDX-License-Identifier: Apache-2.0
// A tier of KV blocks in host memory, for blocks that the cache has lost: useful where the cache is
// an accelerator's, or smaller than the machine allows. Each block has a checksum, checked when it
// is read back; a block that does not match counts as absent, with one line in the log.
#pragma once

#include <functional>
#include <memory>

#include "engine/core/status.h"
#include "kvcache/store/kv_tier.h"

namespace sluice {

// Allocates options.max_bytes from the system.
Expected<std::unique_ptr<KvTier>> create_kv_host_tier(const KvTierOptions& options,
                                                      std::function<void()> wake);

}  // namespace sluice
