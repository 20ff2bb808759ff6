// SPDX-License-Identifier: Apache-2.0
// Rotation, cache writes, silu and embedding rows, for simd_<isa>.cpp.
#pragma once

#include "kernels/cpu/math16.h"
#include "kernels/cpu/quantize_impl.h"
#include "kernels/cpu/rows_block.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// To nearest, ties to even; NaN stays NaN.
SLUICE_INLINE void store_bf16(uint16_t* p, V16 a) {
  const I16 bits = bits_of(a);
  const I16 odd = bit_and(shift_right_logical(bits, 16), broadcast(int32_t{1}));
  const I16 rounded = add(bits, add(odd, broadcast(int32_t{0x7FFF})));
  const I16 quiet = bit_or(bits, broadcast(int32_t{0x00400000}));
  const I16 magnitude = bit_and(bits, broadcast(INT32_MAX));
  const Mask16 nan = less(broadcast(int32_t{0x7F800000}), magnitude);
  const I16 high = shift_right_arithmetic(select(nan, quiet, rounded), 16);
  alignas(32) int16_t narrow[16];
  store_narrow(narrow, high);
  std::memcpy(p, narrow, sizeof(narrow));
}

SLUICE_INLINE void rotate_pair(float* x, float* y, float cos, float sin) {
  const float a = *x;
  const float b = *y;
  *x = __builtin_fmaf(a, cos, -(b * sin));
  *y = __builtin_fmaf(a, sin, b * cos);
}

static void rope_row(const RopeRow& row) {
  for (int32_t head = 0; head < row.num_heads; ++head) {
    float* const x = row.x + int64_t{head} * row.head_dim;
    int32_t i = 0;
    if (!row.halves) {
      for (; i < row.num_pairs; ++i) {
        rotate_pair(x + 2 * i, x + 2 * i + 1, row.cos[i], row.sin[i]);
      }
      continue;
    }
    for (; i + 16 <= row.num_pairs; i += 16) {
      const V16 a = load(x + i);
      const V16 b = load(x + row.num_pairs + i);
      const V16 cos = load(row.cos + i);
      const V16 sin = load(row.sin + i);
      const V16 turned = mul(b, sin);
      const V16 minus = float_of_bits(bit_xor(bits_of(turned), broadcast(INT32_MIN)));
      store(x + i, fma(a, cos, minus));
      store(x + row.num_pairs + i, fma(a, sin, mul(b, cos)));
    }
    for (; i < row.num_pairs; ++i) {
      rotate_pair(x + i, x + row.num_pairs + i, row.cos[i], row.sin[i]);
    }
  }
}

template <typename Element, typename Store>
SLUICE_INLINE void write_kv(const KvRow& row, Store store16) {
  auto* k_slot = reinterpret_cast<Element*>(row.k_slot);
  auto* v_slot = reinterpret_cast<Element*>(row.v_slot);
  const int64_t head_elements = int64_t{row.head_dim} * row.block_size;
  for (int32_t head = 0; head < row.num_kv_heads; ++head) {
    const float* const k = row.k + int64_t{head} * row.head_dim;
    const float* const v = row.v + int64_t{head} * row.head_dim;
    for (int32_t d = 0; d < row.head_dim; d += 16) {
      Element column[16];
      store16(column, load(k + d));
      for (int32_t i = 0; i < 16; ++i) {
        k_slot[head * head_elements + (d + i) * int64_t{row.block_size}] = column[i];
      }
      store16(v_slot + head * head_elements + d, load(v + d));
    }
  }
}

static void kv_row(const KvRow& row) {
  switch (row.dtype) {
    case DType::kF32:
      return write_kv<float>(row, [](float* p, V16 a) { store(p, a); });
    case DType::kF16:
      return write_kv<uint16_t>(row, [](uint16_t* p, V16 a) { store_half(p, a); });
    default:
      return write_kv<uint16_t>(row, [](uint16_t* p, V16 a) { store_bf16(p, a); });
  }
}

static void silu_mul_row(const float* gate, const float* up, const QuantizedRow& out) {
  const int32_t groups = (out.k + kQuantGroup - 1) / kQuantGroup;
  for (int32_t group = 0; group < groups; ++group) {
    const int32_t a = group * kQuantGroup;
    const int32_t b = a + 16;
    const V16 first = mul(silu(load_up_to(gate, a, out.k)), load_up_to(up, a, out.k));
    const V16 second = mul(silu(load_up_to(gate, b, out.k)), load_up_to(up, b, out.k));
    write_group(out, group, first, second);
  }
}

static void map_function(MathFunction function, const float* x, int32_t n, float* out) {
  for (int32_t i = 0; i < n; i += 16) {
    const V16 v = load(x + i);
    switch (function) {
      case MathFunction::kExp:
        store(out + i, exp(v));
        break;
      case MathFunction::kLog:
        store(out + i, log(v));
        break;
      case MathFunction::kTanh:
        store(out + i, tanh(v));
        break;
      case MathFunction::kSilu:
        store(out + i, silu(v));
        break;
    }
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
