// SPDX-License-Identifier: Apache-2.0
// Rotation, cache writes, silu and embedding rows, for simd_<isa>.cpp.
#pragma once

#include "kernels/cpu/isa/math16.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/isa/vec16.h"
#include "kernels/cpu/rows/quantize_impl.h"
#include "kernels/cpu/rows/rows_block.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// Stores bf16, to nearest, ties to even; NaN stays NaN.
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
  for (int32_t head = 0; head < row.num_kv_heads; ++head) {
    const float* const k = row.k + int64_t{head} * row.width;
    const float* const v = row.v + int64_t{head} * row.value_width;
    auto* const k_slot = reinterpret_cast<Element*>(row.k_slot + head * row.k_head_bytes);
    auto* const v_slot = reinterpret_cast<Element*>(row.v_slot + head * row.v_head_bytes);
    for (int32_t d = 0; d < row.width; d += 16) {
      Element column[16];
      store16(column, load_up_to(k, d, row.width));
      for (int32_t i = 0; i < 16; ++i) k_slot[(d + i) * int64_t{row.block_size}] = column[i];
    }
    for (int32_t d = 0; d < row.value_width; d += 16) {
      store16(v_slot + d, load_up_to(v, d, row.value_width));
    }
  }
}

struct CodesI8 {
  static constexpr float kLargest = 127.0F;

  SLUICE_INLINE static void store16(int8_t* p, V16 a) { store_narrow(p, round_to_int(a)); }
};

struct CodesE4M3 {
  static constexpr float kLargest = 448.0F;

  SLUICE_INLINE static void store16(int8_t* p, V16 a) { store_e4m3(p, a); }
};

// Returns the factor of a row of one head before rounding; 0: all codes are 0.
template <typename Codes>
SLUICE_INLINE float code_factor(const float* x, int32_t width, float* scale) {
  I16 top = broadcast(int32_t{0});
  for (int32_t d = 0; d < width; d += 16) top = max(top, bits_of(abs(load_up_to(x, d, width))));
  // Bit patterns of magnitudes order like their values, infinities and NaN above all numbers.
  const int32_t largest_bits = max_lane(top);
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof(largest));
  const float wanted = largest / Codes::kLargest;
  const float inverse = 1.0F / wanted;
  *scale = largest_bits < kInfinityBits ? 0.0F : __builtin_nanf("");
  if (largest_bits >= kInfinityBits || !(inverse <= kLargestFloat)) return 0;
  *scale = wanted;
  return inverse;
}

SLUICE_INLINE V16 times_factor(const float* x, int32_t d, int32_t width, float factor) {
  return factor == 0 ? zero() : mul(load_up_to(x, d, width), broadcast(factor));
}

// Writes K and V as codes and scales, by the definition of quant/kv_code.h.
template <typename Codes>
SLUICE_INLINE void write_kv_codes(const KvRow& row) {
  for (int32_t head = 0; head < row.num_kv_heads; ++head) {
    const float* const k = row.k + int64_t{head} * row.width;
    const float* const v = row.v + int64_t{head} * row.value_width;
    const int64_t k_at = head * row.k_head_bytes;
    const int64_t v_at = head * row.v_head_bytes;
    auto* const k_slot = reinterpret_cast<int8_t*>(row.k_slot + k_at);
    auto* const v_slot = reinterpret_cast<int8_t*>(row.v_slot + v_at);
    const float k_factor = code_factor<Codes>(k, row.width, at_offset(row.k_scale, k_at));
    const float v_factor = code_factor<Codes>(v, row.value_width, at_offset(row.v_scale, v_at));
    for (int32_t d = 0; d < row.width; d += 16) {
      int8_t column[16];
      Codes::store16(column, times_factor(k, d, row.width, k_factor));
      for (int32_t i = 0; i < 16; ++i) k_slot[(d + i) * int64_t{row.block_size}] = column[i];
    }
    for (int32_t d = 0; d < row.value_width; d += 16) {
      Codes::store16(v_slot + d, times_factor(v, d, row.value_width, v_factor));
    }
  }
}

static void kv_row(const KvRow& row) {
  switch (row.dtype) {
    case DType::kF32:
      return write_kv<float>(row, [](float* p, V16 a) { store(p, a); });
    case DType::kF16:
      return write_kv<uint16_t>(row, [](uint16_t* p, V16 a) { store_half(p, a); });
    case DType::kI8:
      return write_kv_codes<CodesI8>(row);
    case DType::kF8E4M3:
      return write_kv_codes<CodesE4M3>(row);
    default:
      return write_kv<uint16_t>(row, [](uint16_t* p, V16 a) { store_bf16(p, a); });
  }
}

template <typename Gate>
SLUICE_INLINE void gate_mul_with(const float* gate,
                                 const float* up,
                                 const QuantizedRow& out,
                                 Gate function) {
  write_row(
      out, [&](int32_t group) __attribute__((always_inline)) {
        const int32_t a = group * kQuantGroup;
        const int32_t b = a + 16;
        return Group32{function(load_up_to(gate, a, out.k), load_up_to(up, a, out.k)),
                       function(load_up_to(gate, b, out.k), load_up_to(up, b, out.k))};
      });
}

SLUICE_INLINE V16 gelu_tanh(V16 g) {
  const V16 inner = fma(mul(mul(g, g), broadcast(kGeluCubic)), g, g);
  const V16 bent = add(broadcast(1.0F), tanh(mul(broadcast(kGeluFactor), inner)));
  return mul(mul(broadcast(0.5F), g), bent);
}

SLUICE_INLINE V16 xielu(V16 g, const Xielu& by) {
  const V16 p = max(zero(), g);
  const V16 n = min(zero(), g);
  V16 series = broadcast(1.0F / 5040);
  for (const float term : {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F}) {
    series = fma(series, n, broadcast(term));
  }
  const V16 far = sub(sub(exp(n), broadcast(1.0F)), n);
  const V16 bent = select(less(n, broadcast(-0.25F)), far, mul(mul(n, n), series));
  const V16 curve = fma(mul(broadcast(by.above), p), p, mul(broadcast(by.below), bent));
  return fma(broadcast(by.slope), g, curve);
}

// Zero lanes past the row's end stay zero, since every gate function is 0 at gate 0 and up 0.
static void gate_mul_row(const GateMulArgs& args,
                         const float* gate,
                         const float* up,
                         const QuantizedRow& out) {
  const float limit = args.limit;
  switch (args.function) {
    case GateFunction::kSilu:
      if (limit > 0) {
        return gate_mul_with(gate, up, out, [limit](V16 g, V16 u) {
          const V16 most = broadcast(limit);
          return mul(min(most, silu(g)), max(broadcast(-limit), min(most, u)));
        });
      }
      return gate_mul_with(gate, up, out, [](V16 g, V16 u) { return mul(silu(g), u); });
    case GateFunction::kGeluTanh:
      return gate_mul_with(gate, up, out, [](V16 g, V16 u) { return mul(gelu_tanh(g), u); });
    case GateFunction::kGeluTanhAlone:
      return gate_mul_with(gate, gate, out, [](V16 g, V16) { return gelu_tanh(g); });
    case GateFunction::kClampedSwiglu:
      return gate_mul_with(gate, up, out, [](V16 g, V16 u) {
        const V16 limit = broadcast(kSwigluLimit);
        const V16 x = min(limit, g);
        const V16 y = max(broadcast(-kSwigluLimit), min(limit, u));
        const V16 bent = div(x, add(broadcast(1.0F), exp(mul(broadcast(kSwigluSlope), x))));
        return mul(bent, add(y, broadcast(1.0F)));
      });
    case GateFunction::kSigmoid:
      return gate_mul_with(gate, up, out, [](V16 g, V16 u) {
        const V16 one = broadcast(1.0F);
        return mul(div(one, add(one, exp(sub(zero(), g)))), u);
      });
    case GateFunction::kSquaredRelu:
      return gate_mul_with(gate, gate, out, [](V16 g, V16) {
        const V16 x = max(zero(), g);
        return mul(x, x);
      });
    case GateFunction::kRelu:
      return gate_mul_with(gate, gate, out, [](V16 g, V16) { return max(zero(), g); });
    case GateFunction::kXielu:
      return gate_mul_with(gate, gate, out, [&args](V16 g, V16) { return xielu(g, args.xielu); });
    case GateFunction::kGelu:
      return gate_mul_with(gate, gate, out, [](V16 g, V16) { return gelu(g); });
    case GateFunction::kGeluErf:
      return gate_mul_with(gate, up, out, [](V16 g, V16 u) { return mul(gelu(g), u); });
  }
}

static void add_row(float* x, const float* y, float scale, int32_t n) {
  const V16 factor = broadcast(scale);
  int32_t i = 0;
  for (; i + 16 <= n; i += 16) store(x + i, fma(load(y + i), factor, load(x + i)));
  if (i < n) {
    store_partial(
        x + i, fma(load_partial(y + i, n - i), factor, load_partial(x + i, n - i)), n - i);
  }
}

SLUICE_INLINE V16 scaled_and_capped(V16 x, const ScaleRowsArgs& by) {
  x = mul(x, broadcast(by.scale));
  if (by.soft_cap != 0) {
    x = mul(broadcast(by.soft_cap), tanh(mul(x, broadcast(1.0F / by.soft_cap))));
  }
  return by.limit == 0 ? x : max(broadcast(-by.limit), min(broadcast(by.limit), x));
}

static void scale_row(const ScaleRowsArgs& args, float* x) {
  const int32_t n = args.n;
  int32_t i = 0;
  for (; i + 16 <= n; i += 16) store(x + i, scaled_and_capped(load(x + i), args));
  if (i < n) {
    store_partial(x + i, scaled_and_capped(load_partial(x + i, n - i), args), n - i);
  }
}

// Folds one column of all parts: the upper levels of the fold whose subtrees they are.
SLUICE_INLINE V16 fold_parts(const PartsRow& row, int32_t i, int32_t count) {
  V16 pending[4];
  for (int32_t part = 0; part < row.num_parts; ++part) {
    V16 value = load_partial(row.parts[part] + i, count);
    int level = 0;
    for (; (part >> level & 1) != 0; ++level) value = add(pending[level], value);
    pending[level] = value;
  }
  return pending[__builtin_ctz(static_cast<unsigned>(row.num_parts))];
}

// Sums integer parts, whose order does not matter.
SLUICE_INLINE V16 sum_of_integers(const PartsRow& row, int32_t i, int32_t count) {
  I16 sum = broadcast(int32_t{0});
  for (int32_t part = 0; part < row.num_parts; ++part) {
    sum = add(sum, bits_of(load_partial(row.parts[part] + i, count)));
  }
  return to_float(sum);
}

static void join_row(const PartsRow& row) {
  for (int32_t i = 0; i < row.n; i += 16) {
    const int32_t count = row.n - i < 16 ? row.n - i : 16;
    V16 y = row.integers ? sum_of_integers(row, i, count) : fold_parts(row, i, count);
    if (row.row_scale != nullptr) y = mul(y, broadcast(*row.row_scale));
    if (row.scales != nullptr) {
      y = mul(y, load(reinterpret_cast<const float*>(row.scales + i / 16 * row.tile_bytes)));
    }
    if (row.bias != nullptr) y = add(y, load_partial(row.bias + i, count));
    if (row.add) y = add(load_partial(row.out + i, count), y);
    store_partial(row.out + i, y, count);
  }
}

static void moe_route_row(const MoeRow& row) {
  // Experts are chosen by repeated scans. The strict comparison keeps the lower id, and a NaN that
  // is met first is taken, so that there are always top_k different ids.
  for (int32_t j = 0; j < row.top_k; ++j) {
    int32_t best = -1;
    for (int32_t id = 0; id < row.num_experts; ++id) {
      bool taken = false;
      for (int32_t i = 0; i < j; ++i) taken = taken || row.ids[i] == id;
      if (!taken && (best < 0 || row.logits[id] > row.logits[best])) best = id;
    }
    row.ids[j] = best;
  }
  const V16 top = broadcast(row.logits[row.ids[0]]);
  for (int32_t j = 1; j < row.top_k; ++j) {  // insertion sort, by id
    const int32_t id = row.ids[j];
    int32_t at = j;
    for (; at > 0 && row.ids[at - 1] > id; --at) row.ids[at] = row.ids[at - 1];
    row.ids[at] = id;
  }
  float chosen_sum = 0;
  for (int32_t j = 0; j < row.top_k; ++j) {
    alignas(64) float lanes[16];
    store(lanes, exp(sub(broadcast(row.logits[row.ids[j]]), top)));
    row.weights[j] = lanes[0];
    chosen_sum += lanes[0];
  }
  float sum = chosen_sum;
  if (!row.normalize) {
    V16 all = zero();
    int32_t i = 0;
    for (; i + 16 <= row.num_experts; i += 16) all = add(all, exp(sub(load(row.logits + i), top)));
    if (i < row.num_experts) {
      const int32_t left = row.num_experts - i;
      alignas(64) float lanes[16];
      store(lanes, exp(sub(load_partial(row.logits + i, left), top)));
      all = add(all, load_partial(lanes, left));
    }
    sum = fold_by_halves(all);
  }
  for (int32_t j = 0; j < row.top_k; ++j) row.weights[j] /= sum;
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
