// SPDX-License-Identifier: Apache-2.0
// Activation quantization and the norm before it, for simd_<isa>.cpp.
#pragma once

#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/isa/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

constexpr int32_t kInfinityBits = 0x7F800000;
constexpr float kLargestFloat = 0x1.fffffep127F;

// Stores e4m3 codes, to nearest, ties to even; magnitudes must round to at most 448.
SLUICE_INLINE void store_e4m3(int8_t* p, V16 a) {
  const I16 bits = bits_of(a);
  const I16 magnitude = bit_and(bits, broadcast(INT32_MAX));
  // From 2^-6 on, the exponent moves to its new bias and 20 bits of mantissa are rounded off.
  // Below, adding 2^14 leaves multiples of 2^-9 in the low bits.
  const I16 odd = bit_and(shift_right_logical(magnitude, 20), broadcast(int32_t{1}));
  const I16 rebased = sub(magnitude, broadcast(int32_t{0x3C000000}));
  const I16 normal = shift_right_logical(add(rebased, add(odd, broadcast(int32_t{0x7FFFF}))), 20);
  const V16 shifted = add(abs(a), broadcast(16384.0F));
  const I16 subnormal = sub(bits_of(shifted), broadcast(int32_t{0x46800000}));
  const I16 code = select(less(abs(a), broadcast(0x1p-6F)), subnormal, normal);
  const I16 sign = bit_and(shift_right_arithmetic(bits, 31), broadcast(int32_t{-128}));
  store_narrow(p, bit_or(code, sign));
}

template <typename T>
SLUICE_INLINE T* at_offset(T* p, int64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(p) + bytes);
}

// Stores codes that fit their type, a's before b's. Returns their sum, and a's alone in `sum_of_a`.
template <typename Code>
SLUICE_INLINE int32_t store_codes(Code* codes, I16 a, I16 b, int32_t* sum_of_a) {
  store_narrow(codes, a);
  store_narrow(codes + 16, b);
  *sum_of_a = sum_lanes(a);
  return *sum_of_a + sum_lanes(b);
}

// Writes one group of 32 values in a format with a scale per group, or as floats.
SLUICE_INLINE void write_group(const QuantizedRow& out, int32_t group, V16 a, V16 b) {
  const int64_t offset = group * out.group_bytes;
  if (out.format == ActivationFormat::kFloat) {
    float* const values = reinterpret_cast<float*>(out.codes + offset);
    store(values, a);
    store(values + 16, b);
    return;
  }
  const bool int8 = out.format == ActivationFormat::kInt8;
  // Bit patterns of magnitudes order like their values, infinities and NaN above all numbers.
  const int32_t largest_bits = max_lane(max(bits_of(abs(a)), bits_of(abs(b))));
  const bool finite = largest_bits < kInfinityBits;
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof(largest));
  const float scale = largest / (int8 ? 127.0F : 32767.0F);
  const float inverse = 1.0F / scale;
  I16 code_a = broadcast(0);
  I16 code_b = broadcast(0);
  float kept = finite ? 0.0F : __builtin_nanf("");
  if (finite && inverse <= kLargestFloat) {
    code_a = round_to_int(mul(a, broadcast(inverse)));
    code_b = round_to_int(mul(b, broadcast(inverse)));
    kept = scale;
  }
  std::byte* const codes = out.codes + offset;
  int32_t half_sum;
  const int32_t sum =
      int8 ? store_codes(reinterpret_cast<int8_t*>(codes), code_a, code_b, &half_sum)
           : store_codes(reinterpret_cast<int16_t*>(codes), code_a, code_b, &half_sum);
  *at_offset(out.scale, offset) = kept;
  *at_offset(out.sum, offset) = static_cast<float>(sum) * kept;
  *at_offset(out.code_sum, offset) = sum;
  *at_offset(out.half_sum, offset) = half_sum;
}

struct Group32 {
  V16 a, b;
};

// Returns the bits of the largest magnitude of groups [begin, end), like row_magnitude().
template <typename Values>
SLUICE_INLINE int32_t largest_of(int32_t begin, int32_t end, Values values) {
  I16 top = broadcast(int32_t{0});
  for (int32_t group = begin; group < end; ++group) {
    const Group32 x = values(group);
    top = max(top, max(bits_of(abs(x.a)), bits_of(abs(x.b))));
  }
  return max_lane(top);
}

// How values become codes up to `limit`, given the bits of their largest magnitude.
struct Coding {
  float inverse;  // used only where `coded`
  float kept;     // the scale to store
  bool coded;
};

SLUICE_INLINE Coding coding_of(int32_t largest_bits, float limit, float static_scale) {
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof(largest));
  const float scale = static_scale != 0 ? static_scale : largest / limit;
  const float inverse = 1.0F / scale;
  const bool finite = largest_bits < kInfinityBits;
  const bool coded = finite && inverse <= kLargestFloat;
  return {inverse, coded ? scale : finite ? 0.0F : __builtin_nanf(""), coded};
}

// Returns the values to round, clamped: with a static scale they may be beyond the limit.
SLUICE_INLINE V16 scaled_value(V16 x, const Coding& coding, float limit) {
  return min(max(mul(x, broadcast(coding.inverse)), broadcast(-limit)), broadcast(limit));
}

// Writes a kInt8Token row. values(group) is called twice for each group: the scale comes first.
template <typename Values>
SLUICE_INLINE void write_token_row(const QuantizedRow& out, int32_t groups, Values values) {
  constexpr float kLimit = 127.0F;
  const int32_t largest = out.magnitude < 0 ? largest_of(0, groups, values) : out.magnitude;
  const Coding coding = coding_of(largest, kLimit, out.static_scale);
  I16 sum = broadcast(int32_t{0});
  for (int32_t group = 0; group < groups; ++group) {
    I16 code_a = broadcast(int32_t{0});
    I16 code_b = code_a;
    if (coding.coded) {
      const Group32 x = values(group);
      code_a = round_to_int(scaled_value(x.a, coding, kLimit));
      code_b = round_to_int(scaled_value(x.b, coding, kLimit));
    }
    auto* const codes = reinterpret_cast<int8_t*>(out.codes + group * out.group_bytes);
    store_narrow(codes, code_a);
    store_narrow(codes + 16, code_b);
    sum = add(sum, add(code_a, code_b));
  }
  *out.scale = coding.kept;
  *out.code_sum = sum_lanes(sum);
}

// Writes a row of an e4m3 format, which has a scale for every `span` groups.
template <typename Values>
SLUICE_INLINE void write_e4m3_row(const QuantizedRow& out,
                                  int32_t groups,
                                  int32_t span,
                                  Values values) {
  constexpr float kLimit = 448.0F;
  constexpr int32_t kQuad = static_cast<int32_t>(kE4M3GroupColumns / kQuantGroup);
  const int32_t padded = (groups + kQuad - 1) / kQuad * kQuad;
  for (int32_t begin = 0; begin < groups; begin += span) {
    const int32_t end = groups - begin < span ? groups : begin + span;
    const int32_t largest = out.magnitude < 0 ? largest_of(begin, end, values) : out.magnitude;
    const Coding coding = coding_of(largest, kLimit, out.static_scale);
    for (int32_t group = begin; group < end; ++group) {
      V16 a = zero();
      V16 b = zero();
      if (coding.coded) {
        const Group32 x = values(group);
        a = scaled_value(x.a, coding, kLimit);
        b = scaled_value(x.b, coding, kLimit);
      }
      auto* const codes = reinterpret_cast<int8_t*>(out.codes + group * out.group_bytes);
      store_e4m3(codes, a);
      store_e4m3(codes + 16, b);
    }
    out.scale[begin / span * kActivationRows] = coding.kept;
  }
  __builtin_memset(out.codes + groups * out.group_bytes,
                   0,
                   static_cast<size_t>((padded - groups) * out.group_bytes));
}

// Writes a row in its format. values(group) gives the group's 32 values, zeros past the row's end;
// a norm or a gate computes them there, so that they need no memory.
template <typename Values>
SLUICE_INLINE void write_row(const QuantizedRow& out, Values values) {
  const int32_t groups = (out.k + kQuantGroup - 1) / kQuantGroup;
  if (out.format == ActivationFormat::kInt8Token) return write_token_row(out, groups, values);
  if (out.format == ActivationFormat::kE4M3Token) {
    return write_e4m3_row(out, groups, groups, values);
  }
  if (out.format == ActivationFormat::kE4M3Group) return write_e4m3_row(out, groups, 4, values);
  for (int32_t group = 0; group < groups; ++group) {
    const Group32 x = values(group);
    write_group(out, group, x.a, x.b);
  }
}

// Loads lanes [begin, begin + 16) of a row of n floats, zeros past its end.
SLUICE_INLINE V16 load_up_to(const float* x, int32_t begin, int32_t n) {
  const int32_t left = n - begin;
  if (left >= 16) return load(x + begin);
  return left > 0 ? load_partial(x + begin, left) : zero();
}

// Returns the bits of the row's largest magnitude, infinities and NaN above all numbers.
static int32_t row_magnitude(const float* x, int32_t n) {
  I16 top = broadcast(int32_t{0});
  for (int32_t i = 0; i < n; i += 16) top = max(top, bits_of(abs(load_up_to(x, i, n))));
  return max_lane(top);
}

static void quantize_row(const float* x, const QuantizedRow& out) {
  write_row(
      out, [&](int32_t group) __attribute__((always_inline)) {
        const int32_t begin = group * kQuantGroup;
        return Group32{load_up_to(x, begin, out.k), load_up_to(x, begin + 16, out.k)};
      });
}

SLUICE_INLINE float squares_of(const float* x, int32_t n) {
  V16 squares = zero();
  int32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const V16 v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (i < n) {  // zero lanes add +0 to a sum of squares: no bit changes
    const V16 v = load_partial(x + i, n - i);
    squares = fma(v, v, squares);
  }
  return fold_by_halves(squares);
}

static float sum_of_squares(const float* x, int32_t n) { return squares_of(x, n); }

// Returns 1 / sqrt(mean(x^2) + eps).
SLUICE_INLINE float inverse_rms(const float* x, int32_t n, float eps) {
  const float mean = squares_of(x, n) / static_cast<float>(n);
  return 1.0F / sqrt_float(mean + eps);
}

SLUICE_INLINE void scale_row_by_weights(float* x, const float* weight, float factor, int32_t n) {
  const V16 r = broadcast(factor);
  int32_t i = 0;
  for (; i + 16 <= n; i += 16) store(x + i, mul(mul(load(x + i), r), load(weight + i)));
  if (i < n) {
    store_partial(
        x + i, mul(mul(load_partial(x + i, n - i), r), load_partial(weight + i, n - i)), n - i);
  }
}

static void scale_by_weights(float* x, const float* weight, float r, int32_t n) {
  scale_row_by_weights(x, weight, r, n);
}

SLUICE_INLINE float mean_of(const float* x, int32_t n) {
  V16 sum = zero();
  int32_t i = 0;
  for (; i + 16 <= n; i += 16) sum = add(sum, load(x + i));
  if (i < n) sum = add(sum, load_partial(x + i, n - i));
  return fold_by_halves(sum) / static_cast<float>(n);
}

// A row's norm that subtracts its mean.
struct CenteredNorm {
  V16 mean;
  V16 r;
  const float* weight;
  const float* bias;
  int32_t n;

  // Values [begin, begin + 16), zeros past the row's end.
  SLUICE_INLINE V16 operator()(const float* x, int32_t begin) const {
    const V16 centered = sub(load_up_to(x, begin, n), mean);
    const V16 scaled = mul(mul(centered, r), load_up_to(weight, begin, n));
    return add(scaled, bias == nullptr ? zero() : load_up_to(bias, begin, n));
  }
};

SLUICE_INLINE CenteredNorm centered_norm(const float* x, const RowNorm& norm, int32_t n) {
  const float mean = mean_of(x, n);
  V16 squares = zero();
  for (int32_t i = 0; i < n; i += 16) {
    V16 v = sub(load_up_to(x, i, n), broadcast(mean));
    if (n - i < 16) {  // lanes past the end are no values
      alignas(64) float lanes[16];
      store(lanes, v);
      v = load_partial(lanes, n - i);
    }
    squares = fma(v, v, squares);
  }
  const float r = 1.0F / sqrt_float(fold_by_halves(squares) / static_cast<float>(n) + norm.eps);
  return {broadcast(mean), broadcast(r), norm.weight, norm.bias, n};
}

static void norm_in_place(float* x, const RowNorm& norm, int32_t n) {
  if (!norm.subtracts_mean) {
    return scale_row_by_weights(x, norm.weight, inverse_rms(x, n, norm.eps), n);
  }
  const CenteredNorm centered = centered_norm(x, norm, n);
  int32_t i = 0;
  for (; i + 16 <= n; i += 16) store(x + i, centered(x, i));
  if (i < n) store_partial(x + i, centered(x, i), n - i);
}

static void norm_row(const float* x, const RowNorm& norm, const QuantizedRow& out) {
  const int32_t n = out.k;
  if (norm.subtracts_mean) {
    const CenteredNorm centered = centered_norm(x, norm, n);
    return write_row(
        out, [&](int32_t group) __attribute__((always_inline)) {
          return Group32{centered(x, group * kQuantGroup), centered(x, group * kQuantGroup + 16)};
        });
  }
  const float* const weight = norm.weight;
  const V16 r = broadcast(inverse_rms(x, n, norm.eps));
  write_row(
      out, [&](int32_t group) __attribute__((always_inline)) {
        const int32_t a = group * kQuantGroup;
        const int32_t b = a + 16;
        return Group32{mul(mul(load_up_to(x, a, n), r), load_up_to(weight, a, n)),
                       mul(mul(load_up_to(x, b, n), r), load_up_to(weight, b, n))};
      });
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
