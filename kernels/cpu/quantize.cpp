// SPDX-License-Identifier: Apache-2.0
#include "engine/core/status.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/runtime.h"
#include "kernels/cpu/simd.h"
#include "kernels/gemm.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kAlignment = 64;

int64_t code_bytes(ActivationFormat format) {
  switch (format) {
    case ActivationFormat::kInt8: return 1;
    case ActivationFormat::kInt16: return 2;
    case ActivationFormat::kFloat: return 4;
  }
  SLUICE_UNREACHABLE("activation format without a width");
}

}  // namespace

int64_t activation_bytes(ActivationFormat format, int64_t num_rows, int64_t k) {
  const int64_t groups = ceil_div(k, kQuantGroup);
  const int64_t data = align_up(num_rows * groups * kQuantGroup * code_bytes(format), kAlignment);
  if (format == ActivationFormat::kFloat) return data;
  return data + 3 * align_up(num_rows * groups * 4, kAlignment);
}

Activations carve_activations(ActivationFormat format, int64_t num_rows, int64_t k,
                              std::byte* buffer) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(buffer) % kAlignment, 0U);
  const int64_t groups = ceil_div(k, kQuantGroup);
  Activations result{.format = format,
                     .num_rows = static_cast<int32_t>(num_rows),
                     .k = static_cast<int32_t>(k),
                     .data = buffer};
  if (format == ActivationFormat::kFloat) return result;
  const int64_t part = align_up(num_rows * groups * 4, kAlignment);
  std::byte* next =
      buffer + align_up(num_rows * groups * kQuantGroup * code_bytes(format), kAlignment);
  result.scales = reinterpret_cast<float*>(next);
  result.sums = reinterpret_cast<float*>(next + part);
  result.code_sums = reinterpret_cast<int32_t*>(next + 2 * part);
  return result;
}

ActivationFormat activation_format(WeightFormat weight, int32_t activation_bits) {
  if (!format_info(weight).is_integer) return ActivationFormat::kFloat;
  switch (activation_bits) {
    case 8: return ActivationFormat::kInt8;
    case 16: return ActivationFormat::kInt16;
    case 32: return ActivationFormat::kFloat;
  }
  SLUICE_UNREACHABLE("activation bits other than 8, 16 and 32");
}

namespace cpu {

QuantizedRow quantized_row(const Activations& activations, int64_t row) {
  const int64_t groups = ceil_div(activations.k, kQuantGroup);
  const int64_t row_data = row * groups * kQuantGroup * code_bytes(activations.format);
  QuantizedRow result{.format = activations.format,
                      .k = activations.k,
                      .codes = static_cast<std::byte*>(activations.data) + row_data,
                      .scales = nullptr,
                      .sums = nullptr,
                      .code_sums = nullptr};
  if (activations.format != ActivationFormat::kFloat) {
    result.scales = activations.scales + row * groups;
    result.sums = activations.sums + row * groups;
    result.code_sums = activations.code_sums + row * groups;
  }
  return result;
}

void quantize_activations(const ExecContext& ctx, const QuantizeArgs& args) {
  DCHECK(args.out.k >= 1 && args.x_stride >= args.out.k);
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(args.out.num_rows, [&](int64_t row, int32_t) {
    simd.quantize_row(args.x + row * args.x_stride, quantized_row(args.out, row));
  });
}

}  // namespace cpu
}  // namespace sluice::kernels
