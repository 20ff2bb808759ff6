// SPDX-License-Identifier: Apache-2.0
// GPTQ (Frantar et al., arXiv 2210.17323): columns are rounded one after the other, and what the
// rounding of one changed of the outputs is taken back by those that are still to come.
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
  // From the products of inputs, with `damp` times their mean square added to the diagonal. Columns
  // with larger squares come first. Nothing: no factor exists, which damping prevents but for
  // inputs that are not finite.
  static std::optional<Gptq> create(const InputStatistics& inputs, double damp);

  // Codes of rows whose scales are fixed, as of encode_codes().
  void encode(const Encoding& encoding,
              const FloatRows& in,
              float matrix_scale,
              const RowScales& scales,
              uint8_t* codes) const;

  // The same of rows of GGUF blocks that have their scales: [in.rows][row_bytes(format, k)], whose
  // codes are replaced. Not of Q8_0.
  void encode_blocks(WeightFormat format, const FloatRows& in, std::byte* rows) const;

 private:
  Gptq() = default;

  // choose(column, weight) gives the value that the column gets, of each column as they come, with
  // the weight that it has by then.
  template <typename Choose>
  void round_row(const float* weights, const Choose& choose) const;

  int64_t k_ = 0;
  std::vector<int64_t> order_;  // columns as they come
  std::vector<float> factor_;   // [k][k] upper, in that order: U of inverse(H) = U^T U
};

}  // namespace sluice
