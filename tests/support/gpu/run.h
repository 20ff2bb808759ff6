// SPDX-License-Identifier: Apache-2.0
// Tests of CUDA kernels on a GPU: the names of tests/support/simt/simt.h that they use, so that the
// same files are compiled for both (-DSLUICE_TESTS_ON_GPU). Differences: launches are real and have
// the GPU's schedule, a Run's reports are the runtime's, and only the present device can be had.
//
// Kernels get pointers into the tests' own vectors: heap.h makes the heap memory that both sides
// can access, and main.cpp makes every launch wait (CUDA_LAUNCH_BLOCKING).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::simt {

enum class Mode : uint8_t { kPlain };

class Run {
 public:
  explicit Run(uint64_t seed, Mode mode = Mode::kPlain);

  // Returns the runtime's error since the last call, if any.
  std::vector<std::string> take_reports();
};

class GivenDevice {
 public:
  explicit GivenDevice(int compute_capability);

  // Whether the GPU has that compute capability; tests of others are skipped.
  [[nodiscard]] bool is_here() const { return is_here_; }

 private:
  bool is_here_;
};

}  // namespace sluice::simt
