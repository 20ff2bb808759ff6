// SPDX-License-Identifier: Apache-2.0
// vec16.h in plain C++, the definition that the others must equal. fmaf without FMA hardware flags
// calls libm; it is exactly specified, so libm defines no bit and is only slow.
#pragma once

#include <xmmintrin.h>

namespace sluice::kernels::cpu::SLUICE_ISA {

struct V16 {
  float v[16];
};

struct I16 {
  int32_t v[16];
};

struct Mask16 {
  bool m[16];
};

template <typename R, typename F>
SLUICE_INLINE R map_lanes(F f) {
  R r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}

SLUICE_INLINE float float_from_bits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}

SLUICE_INLINE uint32_t bits_from_float(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof(f));
  return bits;
}

SLUICE_INLINE V16 load(const float* p) {
  return map_lanes<V16>([p](int i) { return p[i]; });
}

SLUICE_INLINE void store(float* p, V16 a) { std::memcpy(p, a.v, sizeof(a.v)); }

// Loads the first `count` lanes, the others zero; count in [0, 16].
SLUICE_INLINE V16 load_partial(const float* p, int32_t count) {
  return map_lanes<V16>([p, count](int i) { return i < count ? p[i] : 0.0F; });
}

SLUICE_INLINE void store_partial(float* p, V16 a, int32_t count) {
  for (int i = 0; i < count; ++i) p[i] = a.v[i];
}

SLUICE_INLINE V16 broadcast(float x) {
  return map_lanes<V16>([x](int) { return x; });
}

SLUICE_INLINE V16 zero() { return broadcast(0.0F); }

SLUICE_INLINE V16 add(V16 a, V16 b) {
  return map_lanes<V16>([&](int i) { return a.v[i] + b.v[i]; });
}

SLUICE_INLINE V16 sub(V16 a, V16 b) {
  return map_lanes<V16>([&](int i) { return a.v[i] - b.v[i]; });
}

SLUICE_INLINE V16 mul(V16 a, V16 b) {
  return map_lanes<V16>([&](int i) { return a.v[i] * b.v[i]; });
}

SLUICE_INLINE V16 div(V16 a, V16 b) {
  return map_lanes<V16>([&](int i) { return a.v[i] / b.v[i]; });
}

SLUICE_INLINE V16 fma(V16 a, V16 b, V16 c) {
  return map_lanes<V16>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}

// max() and min() give b where either is NaN.
SLUICE_INLINE V16 max(V16 a, V16 b) {
  return map_lanes<V16>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}

SLUICE_INLINE V16 min(V16 a, V16 b) {
  return map_lanes<V16>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}

SLUICE_INLINE V16 abs(V16 a) {
  return map_lanes<V16>([&](int i) { return __builtin_fabsf(a.v[i]); });
}

// Rounds to nearest, ties to even; out of range gives INT32_MIN. Below 2^22 adding 1.5 * 2^23
// leaves the rounded integer in the low mantissa bits; from 2^23 every float is an integer.
SLUICE_INLINE int32_t round_lane(float x) {
  if (!(__builtin_fabsf(x) < 2147483648.0F)) return INT32_MIN;
  if (__builtin_fabsf(x) >= 8388608.0F) return static_cast<int32_t>(x);
  const float magic = 8388608.0F;
  const float magnitude = (__builtin_fabsf(x) + magic) - magic;
  return static_cast<int32_t>(x < 0 ? -magnitude : magnitude);
}

SLUICE_INLINE I16 round_to_int(V16 a) {
  return map_lanes<I16>([&](int i) { return round_lane(a.v[i]); });
}

SLUICE_INLINE V16 to_float(I16 a) {
  return map_lanes<V16>([&](int i) { return static_cast<float>(a.v[i]); });
}

// Widens exactly; a signalling NaN comes out quiet, like from the hardware's conversion.
SLUICE_INLINE float widen_half(uint16_t h) {
  const uint32_t sign = (h & 0x8000U) << 16;
  const uint32_t exponent = (h >> 10) & 0x1FU;
  const uint32_t mantissa = h & 0x3FFU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return float_from_bits(bits_from_float(magnitude) | sign);
  }
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return float_from_bits(sign | 0x7F800000U | quiet | mantissa << 13);
  }
  return float_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Narrows to nearest, ties to even.
SLUICE_INLINE uint16_t narrow_half(float f) {
  const uint32_t bits = bits_from_float(f);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<uint16_t>(sign | 0x7E00U | (magnitude >> 13 & 0x1FFU));
  }
  if (magnitude >= 0x47800000U) return static_cast<uint16_t>(sign | 0x7C00U);
  if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 puts units of 2^-24 in the low bits
    const float shifted = float_from_bits(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (bits_from_float(shifted) - 0x3F000000U));
  }
  const uint32_t odd = magnitude >> 13 & 1U;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13));
}

SLUICE_INLINE V16 load_half(const uint16_t* p) {
  return map_lanes<V16>([p](int i) { return widen_half(p[i]); });
}

// Loads value / 256 of e4m3 codes, exact: the code's bits are those of the fp16 whose exponent is 8
// lower. 0x7F, its NaN, reads as 480 / 256.
SLUICE_INLINE V16 load_e4m3(const uint8_t* p) {
  return map_lanes<V16>([p](int i) {
    return widen_half(static_cast<uint16_t>((p[i] & 0x80U) << 8 | (p[i] & 0x7FU) << 7));
  });
}

SLUICE_INLINE V16 load_bf16(const uint16_t* p) {
  return map_lanes<V16>([p](int i) { return float_from_bits(uint32_t{p[i]} << 16); });
}

SLUICE_INLINE void store_half(uint16_t* p, V16 a) {
  for (int i = 0; i < 16; ++i) p[i] = narrow_half(a.v[i]);
}

SLUICE_INLINE I16 load(const int32_t* p) {
  return map_lanes<I16>([p](int i) { return p[i]; });
}

SLUICE_INLINE I16 load_narrow(const uint8_t* p) {
  return map_lanes<I16>([p](int i) { return p[i]; });
}

SLUICE_INLINE I16 load_narrow(const int8_t* p) {
  return map_lanes<I16>([p](int i) { return p[i]; });
}

SLUICE_INLINE void store(int32_t* p, I16 a) { std::memcpy(p, a.v, sizeof(a.v)); }

SLUICE_INLINE I16 broadcast(int32_t x) {
  return map_lanes<I16>([x](int) { return x; });
}

// Integer lanes wrap around, like the vector instructions.
template <typename F>
SLUICE_INLINE I16 map_unsigned(F f) {
  return map_lanes<I16>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(f(i))); });
}

SLUICE_INLINE uint32_t lane_bits(const I16& a, int i) { return static_cast<uint32_t>(a.v[i]); }

SLUICE_INLINE I16 add(I16 a, I16 b) {
  return map_unsigned([&](int i) { return lane_bits(a, i) + lane_bits(b, i); });
}

SLUICE_INLINE I16 sub(I16 a, I16 b) {
  return map_unsigned([&](int i) { return lane_bits(a, i) - lane_bits(b, i); });
}

SLUICE_INLINE I16 bit_and(I16 a, I16 b) {
  return map_lanes<I16>([&](int i) { return a.v[i] & b.v[i]; });
}

SLUICE_INLINE I16 bit_or(I16 a, I16 b) {
  return map_lanes<I16>([&](int i) { return a.v[i] | b.v[i]; });
}

SLUICE_INLINE I16 shift_left(I16 a, unsigned bits) {
  return map_unsigned([&](int i) { return lane_bits(a, i) << bits; });
}

SLUICE_INLINE I16 shift_right_logical(I16 a, unsigned bits) {
  return map_unsigned([&](int i) { return lane_bits(a, i) >> bits; });
}

SLUICE_INLINE I16 shift_right_arithmetic(I16 a, unsigned bits) {
  return map_lanes<I16>([&](int i) { return a.v[i] >> bits; });
}

SLUICE_INLINE I16 bits_of(V16 a) {
  return map_unsigned([&](int i) { return bits_from_float(a.v[i]); });
}

SLUICE_INLINE V16 float_of_bits(I16 a) {
  return map_lanes<V16>([&](int i) { return float_from_bits(lane_bits(a, i)); });
}

SLUICE_INLINE Mask16 less(V16 a, V16 b) {
  Mask16 r;
  for (int i = 0; i < 16; ++i) r.m[i] = a.v[i] < b.v[i];
  return r;
}

SLUICE_INLINE Mask16 less(I16 a, I16 b) {
  Mask16 r;
  for (int i = 0; i < 16; ++i) r.m[i] = a.v[i] < b.v[i];
  return r;
}

SLUICE_INLINE V16 select(Mask16 m, V16 a, V16 b) {
  return map_lanes<V16>([&](int i) { return m.m[i] ? a.v[i] : b.v[i]; });
}

SLUICE_INLINE I16 select(Mask16 m, I16 a, I16 b) {
  return map_lanes<I16>([&](int i) { return m.m[i] ? a.v[i] : b.v[i]; });
}

SLUICE_INLINE I16 max(I16 a, I16 b) {
  return map_lanes<I16>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}

// max_lane() and sum_lanes() of integers are exact, so no order is defined.
SLUICE_INLINE int32_t max_lane(I16 a) {
  int32_t m = a.v[0];
  for (int i = 1; i < 16; ++i) m = m > a.v[i] ? m : a.v[i];
  return m;
}

SLUICE_INLINE float max_lane(V16 a) {
  float m = a.v[0];
  for (int i = 1; i < 16; ++i) m = m > a.v[i] ? m : a.v[i];
  return m;
}

// Lanes folded by halves: l += l + 8, then 4, 2, 1.
SLUICE_INLINE float fold_by_halves(V16 a) {
  for (int half = 8; half >= 1; half /= 2) {
    for (int lane = 0; lane < half; ++lane) a.v[lane] += a.v[lane + half];
  }
  return a.v[0];
}

// Lane r of the result is row r folded by halves with `combine`, which takes the lower half first.
template <typename Combine>
SLUICE_INLINE V16 fold_rows(const V16* rows, Combine combine) {
  return map_lanes<V16>([&](int r) {
    V16 row = rows[r];
    for (int half = 8; half >= 1; half /= 2) {
      row = combine(row, map_lanes<V16>([&](int i) { return row.v[(i + half) % 16]; }));
    }
    return row.v[0];
  });
}

// Lane j of row i becomes lane i of row j.
SLUICE_INLINE void transpose(I16 (&rows)[16]) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < i; ++j) {
      const int32_t swapped = rows[i].v[j];
      rows[i].v[j] = rows[j].v[i];
      rows[j].v[i] = swapped;
    }
  }
}

SLUICE_INLINE int32_t sum_lanes(I16 a) {
  int32_t sum = 0;
  for (const int32_t lane : a.v) sum += lane;
  return sum;
}

// Narrows lanes, which must fit int8 or int16.
SLUICE_INLINE void store_narrow(int8_t* p, I16 a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}

SLUICE_INLINE void store_narrow(int16_t* p, I16 a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int16_t>(a.v[i]);
}

SLUICE_INLINE float sqrt_float(float x) {
  return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));  // baseline SSE; no errno
}

SLUICE_INLINE I16 bit_xor(I16 a, I16 b) {
  return map_lanes<I16>([&](int i) { return a.v[i] ^ b.v[i]; });
}

// Bit i: lane i is set.
SLUICE_INLINE uint32_t mask_bits(Mask16 m) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= (m.m[i] ? 1U : 0U) << i;
  return bits;
}

// mul_low() and mul_high(): the halves of unsigned 32 x 32 bit products.
SLUICE_INLINE I16 mul_low(I16 a, I16 b) {
  return map_unsigned([&](int i) { return lane_bits(a, i) * lane_bits(b, i); });
}

SLUICE_INLINE I16 mul_high(I16 a, I16 b) {
  return map_unsigned(
      [&](int i) { return (uint64_t{lane_bits(a, i)} * uint64_t{lane_bits(b, i)}) >> 32; });
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
