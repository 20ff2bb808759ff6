// SPDX-License-Identifier: Apache-2.0
// Captures what a part of a test writes to the log.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace sluice {

// Returns the lines that `body` logs; they do not reach the test's own output.
template <typename Body>
std::string logged_by(Body body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

}  // namespace sluice
