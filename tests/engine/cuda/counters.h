// SPDX-License-Identifier: Apache-2.0
// The shim's counters; on a GPU a growth can be neither required nor refused.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#ifndef SLUICE_TESTS_ON_GPU
#include "tests/support/simt/memory.h"
#endif

namespace sluice::testing {

// Counts since its construction.
class DeviceCounters {
 public:
  void expect_launches_above([[maybe_unused]] int64_t count) const {
#ifndef SLUICE_TESTS_ON_GPU
    EXPECT_GT(simt::num_device_launches(), launches_ + count);
#endif
  }

  void expect_replays([[maybe_unused]] bool some) const {
#ifndef SLUICE_TESTS_ON_GPU
    EXPECT_EQ(simt::num_device_replays() > replays_, some);
#endif
  }

  void expect_nothing_allocated() const {
#ifndef SLUICE_TESTS_ON_GPU
    EXPECT_EQ(simt::num_device_bytes(), bytes_);
#endif
  }

  void expect_drains_at_most([[maybe_unused]] int64_t count) const {
#ifndef SLUICE_TESTS_ON_GPU
    EXPECT_LE(simt::num_device_drains(), drains_ + count);
#endif
  }

#ifndef SLUICE_TESTS_ON_GPU
 private:
  int64_t launches_ = simt::num_device_launches();
  int64_t replays_ = simt::num_device_replays();
  int64_t bytes_ = simt::num_device_bytes();
  int64_t drains_ = simt::num_device_drains();
#endif
};

}  // namespace sluice::testing
