// SPDX-License-Identifier: Apache-2.0
// Encodes one tensor of a checkpoint on several threads.
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

// Encoding's effect on a tensor's weights. Sums are over rows in order, for any thread count.
struct TensorError {
  double squared_error = 0;
  double squared_weights = 0;
  double weighed_error = 0;  // columns times their inputs' mean squares, if known
  double weighed_weights = 0;
  int64_t num_clipped = 0;  // weights beyond their scale's range; codes only
  uint64_t value_hash = 0;  // over the fp64 values of the codes

  [[nodiscard]] double relative() const;  // root of the quotient; 0 without weights
};

// A tensor of the output, with its bytes.
struct TensorPart {
  StoredTensor tensor;
  std::vector<std::byte> bytes;
};

struct EncodedTensor {
  std::vector<TensorPart> parts;  // codes first
  TensorError error;
};

// A job on rows of floats, [rows][k].
struct TensorJob {
  const SourceTensor* source = nullptr;
  Target target;
  float largest_magnitude = 0;              // over all tensors that share its matrix scale
  const InputStatistics* inputs = nullptr;  // null: all columns count equally
  const Gptq* gptq = nullptr;               // for these inputs; null: nearest codes
};

// Returns names, types and shapes of encode_tensor()'s result, without reading a weight.
std::vector<StoredTensor> parts_of(const TensorJob& job);

// kDataLoss: a weight of the source or its encoding is infinite or NaN. `file` names the source.
Expected<EncodedTensor> encode_tensor(const std::string& file,
                                      const TensorJob& job,
                                      int32_t threads);

// Returns the largest magnitude of a tensor's weights.
Expected<float> largest_magnitude(const std::string& file,
                                  const SourceTensor& tensor,
                                  int32_t threads);

// Returns TensorError::value_hash of a tensor that is read back.
uint64_t hash_values(const std::string& file, const SourceTensor& tensor, int32_t threads);

// Runs work(chunk) for [0, num_chunks) on `threads` threads. Returns the error of the lowest chunk.
Expected<void> for_chunks(int64_t num_chunks,
                          int32_t threads,
                          const std::function<Expected<void>(int64_t)>& work);

}  // namespace sluice
