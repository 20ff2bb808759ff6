// SPDX-License-Identifier: Apache-2.0
// The row-wise operators over rows [begin, end), on the calling worker.
#pragma once

#include <cstdint>
#include <variant>

#include "kernels/cpu/isa/simd.h"
#include "kernels/row_steps.h"

namespace sluice::kernels::cpu {

void run_rows(const SimdTable& simd, const HeadNormArgs& args, int64_t begin, int64_t end);
void run_rows(const SimdTable& simd, const HeadSquaresArgs& args, int64_t begin, int64_t end);
void run_rows(const SimdTable& simd, const JoinedNormArgs& args, int64_t begin, int64_t end);
void run_rows(const SimdTable& simd, const GatedSquaresArgs& args, int64_t begin, int64_t end);
void run_rows(const SimdTable& simd, const GroupNormArgs& args, int64_t begin, int64_t end);
void run_rows(const SimdTable& simd, const AddRowsArgs& args, int64_t begin, int64_t end);
void run_rows(const SimdTable& simd, const ScaleRowsArgs& args, int64_t begin, int64_t end);
void run_rows(const SimdTable& simd, const RmsNormArgs& args, int64_t begin, int64_t end);
void run_rows(const SimdTable& simd, const QuantizeArgs& args, int64_t begin, int64_t end);
void run_rows(const SimdTable& simd, const GateMulArgs& args, int64_t begin, int64_t end);
void run_rows(const SimdTable& simd, const RopeWriteKvArgs& args, int64_t begin, int64_t end);

inline void run_rows(const SimdTable& simd, const RowSteps& steps, int64_t begin, int64_t end) {
  for (const RowStep& step : steps.all()) {
    std::visit([&](const auto& args) { run_rows(simd, args, begin, end); }, step);
  }
}

}  // namespace sluice::kernels::cpu
