// SPDX-License-Identifier: Apache-2.0
// Blocks of KV in files of a folder, behind the cache and across restarts: `<key>-<parent's
// key>.kv` (kv_file.h).
//
// A file is written under another name and renamed, so that nobody reads half of one; it is not
// synced, so a crash of the machine may leave less, which its checksum tells. A file that is
// truncated, corrupt or another block's counts as absent, with one line in the log. Several
// processes may share a folder: equal names have equal contents.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/core/status.h"
#include "kvcache/kv_tier.h"

namespace sluice {

// Looks through the folder, which is made if it is not there, before it returns. kInvalidArgument:
// it cannot be used.
Expected<std::unique_ptr<KvTier>> create_kv_disk_tier(const KvTierOptions& options,
                                                      const std::string& folder,
                                                      std::function<void()> wake);

}  // namespace sluice
