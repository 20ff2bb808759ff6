// SPDX-License-Identifier: Apache-2.0
#include "engine/core/thread_priority.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace sluice {
namespace {

TEST(ThreadPriority, IsLoweredFromWhatItWas) {
  const int own = getpriority(PRIO_PROCESS, 0);
  std::thread([own] {
    const auto tid = static_cast<id_t>(syscall(SYS_gettid));
    for (int nice = own; nice < 19;) {
      lower_own_priority();
      nice = std::min(nice + 5, 19);
      ASSERT_EQ(getpriority(PRIO_PROCESS, tid), nice);
    }
    lower_own_priority();
    EXPECT_EQ(getpriority(PRIO_PROCESS, tid), 19);
  }).join();
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), own);
}

}  // namespace
}  // namespace sluice
