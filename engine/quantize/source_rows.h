// SPDX-License-Identifier: Apache-2.0
// Rows of a checkpoint's tensor as floats, and as the fp64 values that its codes stand for,
// whatever the tensor is made of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/core/status.h"
#include "engine/weights/checkpoint.h"
#include "quant/scheme.h"

namespace sluice {

// [num_rows, width]: all dimensions but the fastest are rows.
struct TensorRows {
  int64_t rows = 0;
  int64_t width = 0;
};

TensorRows rows_of(const CheckpointTensor& tensor);

// Whether its bytes are codes with companions, which a file of another spelling cannot have.
bool is_coded(const CheckpointTensor& tensor);

// For one thread.
class SourceRows {
 public:
  // `file` is for messages. The checkpoint must outlive it.
  SourceRows(const std::string& file, const CheckpointTensor& tensor);

  // out: [num_rows][width]. kDataLoss: a weight is infinite or NaN.
  Expected<void> read(int64_t first_row, int64_t num_rows, float* out);
  // The same, unrounded.
  void read_f64(int64_t first_row, int64_t num_rows, double* out);

 private:
  const std::string& file_;
  const CheckpointTensor& tensor_;
  std::optional<PlainReader> reader_;  // of codes
};

}  // namespace sluice
