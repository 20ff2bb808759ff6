// SPDX-License-Identifier: Apache-2.0
// The table of the kernels that are compiled for one instruction set. simd_<set>.cpp includes it
// after the set's name; see vec16.h for what may be included here.
#pragma once

#include "kernels/cpu/isa/vec16.h"
// vec16.h comes first: it names the namespace that the kernels live in.
#include "kernels/cpu/attention/attention_impl.h"
#include "kernels/cpu/attention/index_impl.h"
#include "kernels/cpu/isa/linear_simd.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/rows/quantize_impl.h"
#include "kernels/cpu/rows/rows_impl.h"
#include "kernels/cpu/rows/sampling_impl.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

inline constexpr SimdTable kTable = {
    .linear = SLUICE_ISA::linear_block,
    .quantize_row = SLUICE_ISA::quantize_row,
    .norm_row = SLUICE_ISA::norm_row,
    .norm_in_place = SLUICE_ISA::norm_in_place,
    .sum_of_squares = SLUICE_ISA::sum_of_squares,
    .scale_by_weights = SLUICE_ISA::scale_by_weights,
    .attention_block = SLUICE_ISA::attention_block,
    .attention_merge = SLUICE_ISA::attention_merge,
    .index_block = SLUICE_ISA::index_block,
    .rope_row = SLUICE_ISA::rope_row,
    .kv_row = SLUICE_ISA::kv_row,
    .gate_mul_row = SLUICE_ISA::gate_mul_row,
    .add_row = SLUICE_ISA::add_row,
    .scale_row = SLUICE_ISA::scale_row,
    .join_row = SLUICE_ISA::join_row,
    .row_magnitude = SLUICE_ISA::row_magnitude,
    .moe_route_row = SLUICE_ISA::moe_route_row,
    .embedding_row = SLUICE_ISA::embedding_row,
    .scan_logits = SLUICE_ISA::scan_logits,
    .sum_exp = SLUICE_ISA::sum_exp,
    .weigh_candidates = SLUICE_ISA::weigh_candidates,
    .log_of = SLUICE_ISA::log_of,
    .gumbel_argmax = SLUICE_ISA::gumbel_argmax,
    .count_bands = SLUICE_ISA::count_bands,
    .collect_bands = SLUICE_ISA::collect_bands,
    .map = SLUICE_ISA::map_function,
};

}  // namespace sluice::kernels::cpu::SLUICE_ISA
