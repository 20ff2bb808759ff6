// SPDX-License-Identifier: Apache-2.0
// One tensor of a checkpoint to what is written of it, on several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize/calibration.h"
#include "engine/quantize/gptq.h"
#include "engine/quantize/safetensors_writer.h"
#include "engine/quantize/source_rows.h"
#include "engine/quantize/target.h"

namespace sluice {

// What became of a tensor's weights. Sums are over rows in order, whatever the threads.
struct TensorError {
  double squared_error = 0;
  double squared_weights = 0;
  double weighed_error = 0;  // each column times the mean square of its inputs, where it is known
  double weighed_weights = 0;
  int64_t num_clipped = 0;  // weights beyond what their scale reaches; codes only
  uint64_t value_hash = 0;  // of the fp64 values that the codes stand for

  [[nodiscard]] double relative() const;  // root of the quotient; 0 of no weights
};

// A tensor of the output.
struct TensorPart {
  StoredTensor tensor;
  std::vector<std::byte> bytes;
};

struct EncodedTensor {
  std::vector<TensorPart> parts;  // codes first
  TensorError error;
};

// Of rows as they are given: [rows][k] floats.
struct TensorJob {
  const SourceTensor* source = nullptr;
  Target target;
  float largest_magnitude = 0;              // of all that shares its matrix scale
  const InputStatistics* inputs = nullptr;  // null: every column counts as much
  const Gptq* gptq = nullptr;               // of these inputs; null: the nearest code is taken
};

// Names, types and shapes of what encode_tensor() gives, without reading a weight.
std::vector<StoredTensor> parts_of(const TensorJob& job);

// kDataLoss: a weight of the source, or what it becomes, is infinite or NaN. `file` is the source's
// name.
Expected<EncodedTensor> encode_tensor(const std::string& file,
                                      const TensorJob& job,
                                      int32_t threads);

// Largest magnitude of a tensor's weights.
Expected<float> largest_magnitude(const std::string& file,
                                  const SourceTensor& tensor,
                                  int32_t threads);

// The hash of TensorError, of a tensor that is read back.
uint64_t hash_values(const std::string& file, const SourceTensor& tensor, int32_t threads);

// work(chunk) for 0 to num_chunks - 1, on `threads` threads. The error of the lowest chunk.
Expected<void> for_chunks(int64_t num_chunks,
                          int32_t threads,
                          const std::function<Expected<void>(int64_t)>& work);

}  // namespace sluice
