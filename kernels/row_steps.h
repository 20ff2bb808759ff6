// SPDX-License-Identifier: Apache-2.0
// Row-wise operators that follow a linear layer or attention. A backend may run them on each row as
// soon as that row is whole, and leave unwritten what a gate_mul() reads there. No row depends on
// another, so the bits are those of the operators run one after the other over all rows.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <variant>

#include "engine/core/status.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/norm.h"
#include "kernels/recurrent.h"
#include "kernels/rope.h"

namespace sluice::kernels {

using RowStep = std::variant<HeadNormArgs,
                             HeadSquaresArgs,
                             JoinedNormArgs,
                             GatedSquaresArgs,
                             GroupNormArgs,
                             AddRowsArgs,
                             ScaleRowsArgs,
                             RmsNormArgs,
                             QuantizeArgs,
                             GateMulArgs,
                             RopeWriteKvArgs>;

// The steps in order: a step of a row runs after the earlier steps of that row. Row i of every step
// belongs to row i of the operator that they follow; no step has `rows` of its own.
class RowSteps {
 public:
  void add(const RowStep& step) {
    CHECK_LT(count_, steps_.size());
    steps_[count_++] = step;
  }

  [[nodiscard]] std::span<const RowStep> all() const { return std::span(steps_).first(count_); }

 private:
  std::array<RowStep, 10> steps_;
  size_t count_ = 0;
};

// Runs the steps as separate operators.
void run_row_steps(const ExecContext& ctx, const RowSteps& steps);

}  // namespace sluice::kernels
