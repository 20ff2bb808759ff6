// SPDX-License-Identifier: Apache-2.0
// Converts a checkpoint to other number formats and reports the effect on its weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize.h"
#include "engine/quantize/evaluate.h"
#include "engine/quantize/plan.h"
#include "engine/quantize/tensor_encoder.h"

namespace sluice {

struct TensorReport {
  std::string name;    // stored name
  std::string scheme;  // "nvfp4", "Q6_K", "kept"
  int64_t num_weights = 0;
  int64_t bytes = 0;  // in the output, scales included
  TensorError error;
  bool is_matrix = false;

  [[nodiscard]] double bits() const;  // per weight
};

struct QuantizeReport {
  std::vector<TensorReport> tensors;
  bool is_verified = false;
  std::string calibration = "none";  // the text that errors are weighted by, or why there is none
  std::optional<Comparison> comparison = {};

  [[nodiscard]] int64_t bytes() const;
  [[nodiscard]] double bits() const;            // per weight, over all tensors
  [[nodiscard]] double relative_error() const;  // over tensors that are not kept
  // A line per kind of layer and scheme, and a total line.
  [[nodiscard]] std::string table() const;
  [[nodiscard]] std::string json() const;  // everything: one-line object and newline
};

// See quantize_model().
Expected<QuantizeReport> quantize_checkpoint(QuantizeOptions options);

}  // namespace sluice
