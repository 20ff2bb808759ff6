// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/core/status.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/rows/row_operators.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/gemm.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kAlignment = 64;

int64_t head_bytes(ActivationFormat format) {
  return format == ActivationFormat::kInt8Token ? kTokenHeadBytes : 0;
}

// Bytes of a block of kActivationRows rows.
int64_t block_bytes(ActivationFormat format, int64_t k) {
  if (is_e4m3(format)) return e4m3_head_bytes(format, k) + kActivationRows * e4m3_row_bytes(k);
  return head_bytes(format) + ceil_div(k, kQuantGroup) * activation_record_bytes(format);
}

ActivationGroup e4m3_group(const Activations& activations, int64_t row, int64_t group) {
  const int64_t k = activations.k;
  const ActivationFormat format = activations.format;
  std::byte* const block =
      static_cast<std::byte*>(activations.data) + row / kActivationRows * block_bytes(format, k);
  const int64_t lane = row % kActivationRows;
  const int64_t column = group * kQuantGroup;
  const int64_t scale =
      format == ActivationFormat::kE4M3Group ? column / kE4M3GroupColumns * kActivationRows : 0;
  return {.codes = block + e4m3_head_bytes(format, k) + lane * e4m3_row_bytes(k) + column,
          .scale = reinterpret_cast<float*>(block) + scale + lane,
          .sum = nullptr,
          .code_sum = nullptr,
          .half_sum = nullptr};
}

// Rows have scales where their weights have them.
ActivationFormat e4m3_rows_of(const PackedLayout& layout) {
  const bool is_channel = layout.scales == ScaleLayout::kChannel;
  return is_channel ? ActivationFormat::kE4M3Token : ActivationFormat::kE4M3Group;
}

}  // namespace

int64_t activation_bytes(ActivationFormat format, int64_t num_rows, int64_t k) {
  const int64_t groups = ceil_div(k, kQuantGroup);
  if (format == ActivationFormat::kFloat) {
    return num_rows * groups * kQuantGroup * static_cast<int64_t>(sizeof(float));
  }
  if (format == ActivationFormat::kBF16 || format == ActivationFormat::kF16) {
    return num_rows * groups * kQuantGroup * static_cast<int64_t>(sizeof(uint16_t));
  }
  return ceil_div(num_rows, kActivationRows) * block_bytes(format, k);
}

Activations carve_activations(ActivationFormat format,
                              int64_t num_rows,
                              int64_t k,
                              std::byte* buffer) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(buffer) % kAlignment, 0U);
  return {.format = format,
          .num_rows = static_cast<int32_t>(num_rows),
          .k = static_cast<int32_t>(k),
          .data = buffer};
}

ActivationGroup activation_group(const Activations& activations, int64_t row, int64_t group) {
  DCHECK(activations.format != ActivationFormat::kFloat);
  if (is_e4m3(activations.format)) return e4m3_group(activations, row, group);
  const ActivationFormat format = activations.format;
  const int64_t code_bytes = format == ActivationFormat::kInt16 ? 2 : 1;
  std::byte* const block = static_cast<std::byte*>(activations.data) +
                           row / kActivationRows * block_bytes(format, activations.k);
  std::byte* const record = block + head_bytes(format) + group * activation_record_bytes(format);
  const int64_t lane = row % kActivationRows;
  if (format == ActivationFormat::kInt8Token) {
    return {.codes = record + lane * kQuantGroup,
            .scale = reinterpret_cast<float*>(block) + lane,
            .sum = nullptr,
            .code_sum = reinterpret_cast<int32_t*>(block) + kActivationRows + lane,
            .half_sum = nullptr};
  }
  std::byte* const tail = record + kActivationRows * kQuantGroup * code_bytes;
  return {.codes = record + lane * kQuantGroup * code_bytes,
          .scale = reinterpret_cast<float*>(tail) + lane,
          .sum = reinterpret_cast<float*>(tail) + kActivationRows + lane,
          .code_sum = reinterpret_cast<int32_t*>(tail) + 2 * kActivationRows + lane,
          .half_sum = reinterpret_cast<int32_t*>(tail) + 3 * kActivationRows + lane};
}

Activations activation_rows(const Activations& activations, int64_t first_row, int32_t num_rows) {
  DCHECK(first_row % kActivationRows == 0);
  Activations part = activations;
  part.num_rows = num_rows;
  part.data = static_cast<std::byte*>(part.data) +
              activation_bytes(activations.format, first_row, activations.k);
  return part;
}

ActivationFormat activation_format(WeightFormat weight,
                                   int32_t activation_bits,
                                   DeviceType device) {
  const PackedLayout& layout = layout_of(weight);
  const bool on_cpu = device == DeviceType::kCpu;
  if (layout.has_int32_sums()) return ActivationFormat::kInt8Token;
  if (layout.is_e4m3()) {
    if (activation_bits != 8) return on_cpu ? ActivationFormat::kFloat : ActivationFormat::kBF16;
    return e4m3_rows_of(layout);
  }
  if (layout.is_float()) {
    if (on_cpu || layout.element == ElementFormat::kF32) return ActivationFormat::kFloat;
    return layout.element == ElementFormat::kF16 ? ActivationFormat::kF16 : ActivationFormat::kBF16;
  }
  switch (activation_bits) {
    case 8:
      return ActivationFormat::kInt8;
    case 16:
      return on_cpu ? ActivationFormat::kInt16 : ActivationFormat::kBF16;
    case 32:
      return ActivationFormat::kFloat;
  }
  SLUICE_UNREACHABLE("activation bits other than 8, 16 and 32");
}

namespace cpu {

bool has_activations(WeightFormat weight, ActivationFormat activations) {
  const PackedLayout& layout = layout_of(weight);
  if (layout.has_int32_sums()) return activations == ActivationFormat::kInt8Token;
  if (activations == ActivationFormat::kFloat) return true;
  if (layout.is_e4m3()) return activations == e4m3_rows_of(layout);
  return layout.is_integer() &&
         (activations == ActivationFormat::kInt8 || activations == ActivationFormat::kInt16);
}

QuantizedRow quantized_row(const Activations& activations, int64_t row) {
  if (activations.format == ActivationFormat::kFloat) {
    const int64_t row_bytes = activation_bytes(ActivationFormat::kFloat, 1, activations.k);
    return {.format = activations.format,
            .k = activations.k,
            .codes = static_cast<std::byte*>(activations.data) + row * row_bytes,
            .scale = nullptr,
            .sum = nullptr,
            .code_sum = nullptr,
            .half_sum = nullptr,
            .group_bytes = kQuantGroup * static_cast<int64_t>(sizeof(float))};
  }
  const ActivationGroup first = activation_group(activations, row, 0);
  return {.format = activations.format,
          .k = activations.k,
          .codes = static_cast<std::byte*>(first.codes),
          .scale = first.scale,
          .sum = first.sum,
          .code_sum = first.code_sum,
          .half_sum = first.half_sum,
          .group_bytes = is_e4m3(activations.format) ? int64_t{kQuantGroup}
                                                     : activation_record_bytes(activations.format),
          .static_scale = activations.static_scale};
}

int64_t rows_per_claim(int64_t num_rows) {
  return num_rows > kActivationRows ? kActivationRows : kActivationRows / 2;
}

void run_rows(const SimdTable& simd, const QuantizeArgs& args, int64_t begin, int64_t end) {
  DCHECK(args.out.k >= 0 && args.x_stride >= args.out.k);
  const bool all = args.rows.data() == nullptr;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t from = all ? i : i / args.repeat;
    const int64_t to = all ? i : args.rows[static_cast<size_t>(i)];
    QuantizedRow row = quantized_row(args.out, to);
    for (const int32_t* part : args.magnitudes) row.magnitude = std::max(row.magnitude, part[i]);
    simd.quantize_row(args.x + from * args.x_stride, row);
  }
}

void quantize_activations(const ExecContext& ctx, const QuantizeArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  const bool all = args.rows.data() == nullptr;
  const int64_t count = all ? args.out.num_rows : static_cast<int64_t>(args.rows.size());
  const auto rows = [&](int64_t begin, int64_t end, int32_t) { run_rows(simd, args, begin, end); };
  ctx.pool->parallel_for_chunked(count, {.chunk = rows_per_claim(count)}, rows);
}

}  // namespace cpu
}  // namespace sluice::kernels
