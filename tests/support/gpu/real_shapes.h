// SPDX-License-Identifier: Apache-2.0
// Linear layers of real models' shapes on all blocks of a GPU, where a run has several segments, a
// run crosses tiles and a block takes several: shapes that the tests of tests/kernels/cuda, small
// and on few blocks, cannot have, and the shim has no time for.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/open_device.h"
#include "tests/kernels/cuda/rows_check.h"

namespace sluice::kernels::test {

// All blocks for as long as it lives, then again as few as main.cpp allows.
class AllBlocks {
 public:
  AllBlocks() { cuda::limit_blocks(0, 0); }

  AllBlocks(const AllBlocks&) = delete;
  AllBlocks& operator=(const AllBlocks&) = delete;

  ~AllBlocks() { cuda::limit_blocks(kFewMultiprocessors, kFewBlocks); }

  static constexpr int kFewMultiprocessors = 5;  // the shim's numbers (simt.h)
  static constexpr int kFewBlocks = 3;
};

inline constexpr int32_t kRealColumns = 4096;
inline constexpr int32_t kRealRows = 1024;

// `make(outputs)` makes a layer of kRealColumns columns and kRealRows rows; `run(layer, rows)`
// returns the first rows' outputs, one row behind the other. A row has equal bits in every batch.
template <typename Make, typename RunRows>
void expect_rows_of_real_shapes_to_be_alike(const Make& make, const RunRows& run) {
  const AllBlocks all_blocks;
  for (const int32_t outputs : {4096, 14336, 28672}) {
    const auto layer = make(outputs);
    const std::vector<float> all = run(layer, kRealRows);
    const size_t width = all.size() / kRealRows;
    for (const int32_t rows : {1, 8, 16, 33, 64, 128, 129}) {
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(outputs) + " outputs");
      const std::vector<float> want(
          all.begin(), all.begin() + static_cast<ptrdiff_t>(width * static_cast<size_t>(rows)));
      expect_same_floats(run(layer, rows), want);
    }
  }
}

}  // namespace sluice::kernels::test
