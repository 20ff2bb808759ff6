// SPDX-License-Identifier: Apache-2.0
// The CPU quota and memory that control groups leave to this process. Versions 1 and 2, with and
// without a cgroup namespace: the limits of its own group and all groups above count, as far as
// they are visible.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace sluice {

inline constexpr int64_t kNoCgroupLimit = std::numeric_limits<int64_t>::max();

// Returns the CPUs of the tightest quota, rounded up; 0: no quota. `root` is prepended to the paths
// below /proc and /sys.
int32_t cgroup_cpus(const std::string& root = "");

// Returns the bytes below the tightest limit, memory.high included, above which everything is slow;
// inactive file cache counts as free, because the
// kernel drops it before it fails an allocation. kNoCgroupLimit: no limit.
int64_t cgroup_available_memory(const std::string& root = "");

}  // namespace sluice
