// SPDX-License-Identifier: Apache-2.0
// A tier of KV blocks in files of a folder, which outlive a restart. File names are
// `<key>-<parent's key>.kv` (kv_file.h).
//
// A file is written under another name and renamed, so that no reader sees half of it. It is not
// synced: a crash of the machine may leave a part, which the checksum detects. A file that is
// truncated, corrupt or another block's counts as absent, with one line in the log. Several
// processes may share a folder: equal names have equal contents.
//
// A tier holds a shared lock (flock) of a file in its folder, so that a folder that no process uses
// is known as such. A folder without a lock, of an earlier build or on a file system without locks
// or hard links, is unused where neither it nor a file in it was used for 30 days.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "engine/core/status.h"
#include "kvcache/store/kv_tier.h"

namespace sluice {

// Scans the folder before it returns, and makes it if it is not there. kInvalidArgument: the folder
// cannot be used.
Expected<std::unique_ptr<KvTier>> create_kv_disk_tier(const KvTierOptions& options,
                                                      const std::string& folder,
                                                      std::function<void()> wake);

// Removes the folders of disk tiers directly below `path`, other models' and builds', that no
// process uses, with a line in the log for each. What no tier made stays. Any thread; many files
// on a slow disk take minutes, and `stop` ends it between two.
void remove_unused_kv_folders(const std::string& path, const std::stop_token& stop = {});

}  // namespace sluice
