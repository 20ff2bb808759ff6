// SPDX-License-Identifier: Apache-2.0
// Bounds the time that work takes of its thread, so that a busy machine changes nothing: for work
// that takes a small part of a second, and minutes where it is the product of two of a request's
// counts.
#pragma once

#include <gtest/gtest.h>

#include <ctime>

namespace sluice::testing {

inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Returns what `work` does, which has to end soon, also with a sanitizer.
template <typename Work>
auto in_time(const Work& work) {
#ifdef SLUICE_SANITIZED
  constexpr double kMostSeconds = 60;
#else
  constexpr double kMostSeconds = 5;
#endif
  const double begin = thread_seconds();
  auto result = work();
  EXPECT_LT(thread_seconds() - begin, kMostSeconds);
  return result;
}

}  // namespace sluice::testing
