// SPDX-License-Identifier: Apache-2.0
// Linear layers: y[m, n] = sum_k x[m, k] * W[n, k], one definition for every row count.
//
// The tree of an output element (README, invariant 1). K is cut into groups of 32 along absolute
// k; G = ceil(K / 32) groups are cut into 8 segments, segment s holding the groups
// [s * G / 8, (s + 1) * G / 8) (integer division). Within a segment, groups in order:
//   int8, int16 activations:  acc = fma(float(isum), d_w * s_a, acc), isum the exact int32 dot
//                             product of codes (zero point taken off, the format's or the group's;
//                             codebook entries looked up), d_w the weight's scale, s_a the
//                             activation's, both fp32;
//                             where the format has a minimum m_w: acc = fma(m_w, t_a, acc) after
//                             it, t_a = float(sum of the activation's codes in the group) * s_a;
//                             formats with a scale per 16 (Q2_K, Q3_K, Q6_K, NVFP4) do the same
//                             for the first 16 k, then for the second 16;
//   float activations:        for k in order: acc = fma(w, x, acc), w = the fp32 weight, which is
//                             fma(code, d_w, m_w) for integer formats, for kE4M3Block value * d_w
//                             and for kE4M3Channel the code's value;
//   e4m3 activations:         see below.
// Where a format has sub-scales, d_w and m_w are the block's scale times the integer sub-scale:
// products of at most 19 bits, exact in fp32, so that nothing is rounded twice. Multiplying the
// integer sums by their sub-scales instead, for one fma a group in formats with a scale per 16,
// would need more than 32 bits with int16 activations and more than 24 with int8 ones, which the
// conversion to float would round.
// The 8 segment values fold as ((s0+s1)+(s2+s3))+((s4+s5)+(s6+s7)). Where the format has a scale
// per row s_w that is not in d_w (kNVFP4, kE4M3Channel), the folded sum is multiplied with it,
// once. Then bias is added, if any.
//
// FP8 weights times e4m3 activations on the CPU (on CUDA: launch.h); w and x are the codes' values,
// whose products are exact. For each group of 32: p = 0, then for its even k in order p = fma(w[k],
// x[k], fma(w[k+1], x[k+1], p)), the odd column first, like vdpbf16ps. All these sums are multiples
// of 2^-18, so that none is subnormal. Then
//   kE4M3Channel, kE4M3Token: acc = acc + p; the folded sum y becomes (y * s_a) * s_w;
//   kE4M3Block, kE4M3Group:   acc = fma(p, d_w * s_a, acc), both scales those of the group's 128
//                             columns along absolute k.
//
// A layer may be computed for some of the segments alone (Segments). That gives the value of their
// subtree, before scales of whole rows, and partial_sums.h joins such values to the bits of the
// whole. With kE4M3Group, the borders of their columns are multiples of 128, or k.
//
// INT8 weights with a scale per output (kInt8Channel) times int8 rows with a scale each
// (kInt8Token): isum = the exact int32 dot product over all of K, at most kMaxChannelK, and
// y = (float(isum) * s_a) * s_w. An exact sum has no order: the sum of some segments is an int32.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/types.h"
#include "kernels/device.h"
#include "quant/repack.h"

namespace sluice::kernels {

enum class ActivationFormat : uint8_t {
  kInt8,
  kInt16,
  kFloat,
  kInt8Token,
  kBF16,
  kF16,
  kE4M3Token,
  kE4M3Group
};

inline constexpr int kNumActivationFormats = 8;

// Rows of activations as a linear layer reads them. Quantization per (row, group of 32): s = maxabs
// / 127 (int16: 32767), code = round-to-nearest-even(x / s) computed as x * (1 / s) with one
// division per group; where 1 / s overflows, s and the codes are 0; where a value is infinite or
// NaN, s is NaN and the codes are 0, so that the row's outputs are NaN. Columns past k up to a
// multiple of 32 hold zeros. kInt8Token is int8 with the whole row as the group. kE4M3Token and
// kE4M3Group take the row or 128 columns as the group, s = maxabs / 448, and e4m3 codes to nearest
// even. kBF16, kF16: each value to nearest, ties to even, in F16 infinite from 65520 on; tensor
// cores multiply them, no CPU kernel does.
//
// Where a checkpoint gives the scale (static_scale; kInt8Token and kE4M3Token), it is s of every
// row, and codes are clamped to 127 or 448; s is NaN where a value of the row is not finite.
//
// Layout. kFloat, kBF16, kF16: plain rows, [num_rows][align_up(k, 32)]. Integer formats: blocks of
// 8 rows, each [groups] records of activation_record_bytes: codes [8 rows][32], then scales [8]
// float, sums [8] float (t_a above: float(sum of codes) * scale), code_sums [8] int32 (sum of
// codes), half_sums [8] int32 (of the first 16 codes), so that a kernel finds all of a group's rows
// at fixed distances. kInt8Token: blocks of 8 rows as well, each a head of kTokenHeadBytes (scales
// [8] float, code_sums [8] int32) and [groups] records of codes [8 rows][32]. kE4M3Token,
// kE4M3Group: blocks of 8 rows, each a head of e4m3_head_bytes (scales [8] float, for kE4M3Group
// [ceil(k / 128)][8] float; anything up to a multiple of 64) and the rows' codes
// [8][align_up(k, 128)], zeros past k. Contents of rows past num_rows never matter.
struct Activations {
  ActivationFormat format = ActivationFormat::kFloat;
  int32_t num_rows = 0;
  int32_t k = 0;
  void* data = nullptr;    // 64-byte aligned
  float static_scale = 0;  // finite; kInt8Token and kE4M3Token. 0: each row has its own
};

inline constexpr int32_t kActivationRows = 8;  // rows of a block of integer activations

constexpr int64_t activation_record_bytes(ActivationFormat format) {
  switch (format) {
    case ActivationFormat::kInt8:
      return 384;
    case ActivationFormat::kInt16:
      return 640;
    case ActivationFormat::kInt8Token:
      return 256;
    case ActivationFormat::kFloat:
    case ActivationFormat::kBF16:
    case ActivationFormat::kF16:
    case ActivationFormat::kE4M3Token:
    case ActivationFormat::kE4M3Group:
      return 0;  // no records
  }
  return 0;
}

inline constexpr int64_t kTokenHeadBytes = 64;
inline constexpr int64_t kE4M3GroupColumns = 128;

constexpr bool is_e4m3(ActivationFormat format) {
  return format == ActivationFormat::kE4M3Token || format == ActivationFormat::kE4M3Group;
}

constexpr int64_t e4m3_head_bytes(ActivationFormat format, int64_t k) {
  if (format == ActivationFormat::kE4M3Token) return kTokenHeadBytes;
  return align_up(ceil_div(k, kE4M3GroupColumns) * kActivationRows * int64_t{sizeof(float)}, 64);
}

constexpr int64_t e4m3_row_bytes(int64_t k) { return align_up(k, kE4M3GroupColumns); }

// One row's part of one record. kInt8Token: scale and code_sum are the row's; e4m3: scale is that
// of the row or of the group's 128 columns. The other pointers are null.
struct ActivationGroup {
  void* codes;  // [32] int8, int16 or e4m3
  float* scale;
  float* sum;
  int32_t* code_sum;
  int32_t* half_sum;
};

ActivationGroup activation_group(const Activations& activations, int64_t row, int64_t group);

// Bytes that Activations of this size need, and Activations over such a buffer.
int64_t activation_bytes(ActivationFormat format, int64_t num_rows, int64_t k);
Activations carve_activations(ActivationFormat format,
                              int64_t num_rows,
                              int64_t k,
                              std::byte* buffer);

// Returns `num_rows` rows from `first_row` on, which must be the first of a block.
Activations activation_rows(const Activations& activations, int64_t first_row, int32_t num_rows);

// Returns the format of a weight's activations. kInt8Channel: kInt8Token, since its checkpoints say
// so. kE4M3Channel, kE4M3Block: kE4M3Token, kE4M3Group at 8 bits, else float (CUDA: bf16). Float
// weights: float (CUDA: 16-bit ones their own). Others: by `activation_bits`; 16 is bf16 on CUDA.
ActivationFormat activation_format(WeightFormat weight,
                                   int32_t activation_bits,
                                   DeviceType device = DeviceType::kCpu);

// Returns kUnsupported, naming what the device has, unless a linear layer takes such operands.
Expected<void> check_activations(DeviceType device,
                                 WeightFormat weight,
                                 ActivationFormat activations);

// Likewise for experts' matrices and rows of floats, which more weights take than whole layers.
Expected<void> check_float_rows(DeviceType device, WeightFormat weight);

// The maxima over a model's matrices that a workspace's size depends on.
struct LargestMatrices {
  int32_t outputs = 0;
  int32_t int8_columns = 0;  // stored columns of matrices whose sums are in one piece

  void add(const PackedWeight& weight) {
    outputs = std::max(outputs, weight.n);
    if (!layout_of(weight.format).has_int32_sums()) return;
    int8_columns = std::max(int8_columns, static_cast<int32_t>(weight.stored_columns()));
  }

  void add(const LargestMatrices& others) {
    outputs = std::max(outputs, others.outputs);
    int8_columns = std::max(int8_columns, others.int8_columns);
  }
};

// Bytes of ExecContext::workspace that linear layers use with at most `num_rows` rows and matrices
// no larger than `largest`. The memory is theirs alone, and zeros at first, like new device memory.
int64_t workspace_bytes(DeviceType device, int32_t num_rows, const LargestMatrices& largest);

// x: [num_rows, k >= 0], x_stride in elements. With `rows`, row i / repeat of x goes to row rows[i]
// of out, and other rows of out do not change. With `magnitudes`, out is kInt8Token or kE4M3Token
// and x some columns of wider rows, which are split into as many parts as there are entries: the
// largest of magnitudes[..][i] (row_magnitudes(), partial_sums.h) replaces row i's own, also where
// the scale is static, since values that are not finite must be found.
struct QuantizeArgs {
  const float* x;
  int64_t x_stride;
  Activations out;
  std::span<const int32_t> rows = {};
  int32_t repeat = 1;
  std::span<const int32_t* const> magnitudes = {};
};

void quantize_activations(const ExecContext& ctx, const QuantizeArgs& args);

// One weight matrix of a layer that shares its input with others (q, k, v; gate, up).
struct RowGroup {
  const PackedWeight* weight;
  float* out;          // [num_rows, n]
  int64_t out_stride;  // elements
  const float* bias;   // [n] or null
};

enum class Epilogue : uint8_t {
  kStore,  // out = y
  kAdd,    // out = out + y: the residual
};

inline constexpr int32_t kSegments = 8;  // segments of K

// A subtree of the fold: `count` segments, a power of two, from a multiple of `count` on.
struct Segments {
  int32_t first = 0;
  int32_t count = kSegments;

  [[nodiscard]] constexpr bool are_all() const { return count == kSegments; }

  // The groups of `k` in these segments; all segments together hold [0, ceil(k / 32)).
  [[nodiscard]] constexpr int64_t first_group(int64_t k) const {
    return first * ceil_div(k, kQuantGroup) / kSegments;
  }

  [[nodiscard]] constexpr int64_t end_group(int64_t k) const {
    return (first + count) * ceil_div(k, kQuantGroup) / kSegments;
  }

  [[nodiscard]] constexpr int64_t first_column(int64_t k) const {
    return first_group(k) * kQuantGroup;
  }

  [[nodiscard]] constexpr int64_t end_column(int64_t k) const {
    return std::min(k, end_group(k) * kQuantGroup);
  }

  [[nodiscard]] constexpr int64_t num_columns(int64_t k) const {
    return end_column(k) - first_column(k);
  }
};

class RowSteps;  // row_steps.h

struct LinearArgs {
  Activations x;
  std::span<const RowGroup> groups;  // all with the same k
  Epilogue epilogue = Epilogue::kStore;
  const RowSteps* then = nullptr;  // run for each row once all groups have it; null: nothing
  // With fewer than all segments, x holds only their columns, the weights hold all of K or at least
  // those columns (PackedWeight), and out gets the subtree's value, for kInt8Channel the int32 sum
  // in the bytes of a float. Then there is no bias, and only kStore.
  Segments segments = {};
};

void linear(const ExecContext& ctx, const LinearArgs& args);

}  // namespace sluice::kernels
