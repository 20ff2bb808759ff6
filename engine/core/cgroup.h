// SPDX-License-Identifier: Apache-2.0
// What the control groups of this process leave it: CPU quota and memory. Versions 1 and 2, with
// and without a cgroup namespace: limits of the own group and of all groups above it count, as far
// as they can be seen.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace sluice {

inline constexpr int64_t kNoCgroupLimit = std::numeric_limits<int64_t>::max();

// CPUs that the tightest quota amounts to, rounded up; 0: no quota. `root` stands before /proc and
// /sys in the paths that are read.
int32_t cgroup_cpus(const std::string& root = "");

// Bytes until the tightest limit; inactive file cache counts as free, for the kernel drops it
// before it fails an allocation. kNoCgroupLimit: no limit.
int64_t cgroup_available_memory(const std::string& root = "");

}  // namespace sluice
