// SPDX-License-Identifier: Apache-2.0
// What a piece of a test writes to the log.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace sluice {

// The lines that `body` logs, which do not reach the test's own output.
template <typename Body>
std::string logged_by(Body body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

}  // namespace sluice
