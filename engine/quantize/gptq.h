// SPDX-License-Identifier: Apache-2.0
// GPTQ (Frantar et al., arXiv 2210.17323): columns are rounded one after the other, and later
// columns compensate the change of the outputs that each rounding causes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/quantize/calibration.h"
#include "quant/encode.h"
#include "quant/format.h"

namespace sluice {

class Gptq {
 public:
  // Takes the products of inputs and adds `damp` times their mean square to the diagonal. Columns
  // with larger squares come first. Returns nothing if no factor exists, which damping prevents
  // unless inputs are not finite.
  static std::optional<Gptq> create(const InputStatistics& inputs, double damp);

  // Encodes rows whose scales are fixed; results as in encode_codes().
  void encode(const Encoding& encoding,
              const FloatRows& in,
              float matrix_scale,
              const RowScales& scales,
              uint8_t* codes) const;

  // Replaces the codes of rows of GGUF blocks that have their scales: [in.rows][row_bytes(format,
  // k)]. Not for Q8_0.
  void encode_blocks(WeightFormat format, const FloatRows& in, std::byte* rows) const;

 private:
  Gptq() = default;

  // Visits columns in order; choose(column, weight) gets the column's compensated weight and
  // returns the value that it is rounded to.
  template <typename Choose>
  void round_row(const float* weights, const Choose& choose) const;

  int64_t k_ = 0;
  std::vector<int64_t> order_;  // columns in order of processing
  std::vector<float> factor_;   // [k][k] upper, in that order: U of inverse(H) = U^T U
};

}  // namespace sluice
