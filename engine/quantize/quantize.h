// SPDX-License-Identifier: Apache-2.0
// A checkpoint in other number formats, and what that did to its weights.
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
  std::string name;    // as stored
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
  std::optional<Comparison> comparison = {};

  [[nodiscard]] int64_t bytes() const;
  [[nodiscard]] double bits() const;            // per weight, of all
  [[nodiscard]] double relative_error() const;  // of the tensors that are not kept
  // A line for each kind of layer and each scheme in it, and a last one for all.
  [[nodiscard]] std::string table() const;
  [[nodiscard]] std::string json() const;  // everything, an object of one line and a newline
};

// See quantize_model().
Expected<QuantizeReport> quantize_checkpoint(QuantizeOptions options);

}  // namespace sluice
