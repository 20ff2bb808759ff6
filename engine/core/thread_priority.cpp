// SPDX-License-Identifier: Apache-2.0
#include "engine/core/thread_priority.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace sluice {
namespace {

constexpr int kNiceLevels = 5;

}  // namespace

void lower_own_priority() {
  const auto tid = static_cast<id_t>(syscall(SYS_gettid));
  errno = 0;  // -1 is a nice value, too
  const int nice = getpriority(PRIO_PROCESS, tid);
  if (errno == 0) setpriority(PRIO_PROCESS, tid, std::min(nice + kNiceLevels, 19));
}

}  // namespace sluice
