// SPDX-License-Identifier: Apache-2.0
// What the shim reports of one launch, for tests of the shim itself.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "kernels/cuda/gpu.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/support/simt/simt.h"

namespace sluice::simt {

inline std::string report_of(void (*kernel)(),
                             int threads,
                             int64_t shared_bytes = 0,
                             uint64_t seed = 3) {
  simt::Run run(seed);
  gpu::launch(nullptr, {.threads = threads, .shared_bytes = shared_bytes}, kernel);
  return kernels::test::joined(run.take_reports());
}

inline void expect_report(const std::string& got, const std::string& words) {
  EXPECT_NE(got.find(words), std::string::npos) << "'" << got << "' lacks '" << words << "'";
}

}  // namespace sluice::simt
