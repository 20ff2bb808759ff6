// SPDX-License-Identifier: Apache-2.0
// An observer of the rows that matrices are multiplied with, such as a calibration.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace sluice {

// Rows of floats, rows[r][0 .. k - 1] at data + r * stride.
struct TappedRows {
  const float* data = nullptr;
  int64_t stride = 0;
  int32_t num_rows = 0;
  int32_t k = 0;
};

class InputTap {
 public:
  virtual ~InputTap() = default;
  // Called on the thread that runs the step, before the product. `stems`: the matrices with this
  // input, as their tensors' names without ".weight".
  virtual void see(std::span<const std::string> stems, const TappedRows& rows) = 0;
};

}  // namespace sluice
