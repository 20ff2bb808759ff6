// SPDX-License-Identifier: Apache-2.0
// How blocks go through rows. To write one of an Activations (kernels/gemm.h), a warp takes a group
// of 32, lane j its value j. Norm, gate and quantization share it, so that their rows need no
// memory between.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/narrow.h"
#include "kernels/gemm.h"

namespace sluice::kernels::cuda {

inline constexpr int kRowThreads = 128;
inline constexpr int kRowWarps = kRowThreads / 32;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFFU;
inline constexpr int32_t kInfinityBits = 0x7F800000;
inline constexpr int32_t kQuietNanBits = 0x7FC00000;
inline constexpr float kLargestFloat = 0x1.fffffep127F;

// Whether a launch for so many rows overlaps with the one in front of it (LaunchShape). With more
// rows linear layers are few blocks, of which none may start early (gemm_block.h), and a step in
// which only the other launches do takes longer than one without (H200: 4% at 16 and at 64 rows).
constexpr bool overlaps(int64_t rows) { return rows <= 8; }

// Where group 0 of a row is; the other groups follow at group_bytes.
struct DeviceRow {
  std::byte* codes;
  std::byte* tail;  // the row's scale; what follows it is 32 bytes on
  int64_t group_bytes;
};

__device__ __forceinline__ DeviceRow row_of(const Activations& out, int64_t row, int32_t groups) {
  auto* const data = static_cast<std::byte*>(out.data);
  const int64_t record = activation_record_bytes(out.format);
  const int64_t lane = row % kActivationRows;
  const int64_t block = row / kActivationRows;
  switch (out.format) {
    case ActivationFormat::kFloat:
      return {data + row * groups * kQuantGroup * 4, nullptr, kQuantGroup * 4};
    case ActivationFormat::kBF16:
    case ActivationFormat::kF16:
      return {data + row * groups * kQuantGroup * 2, nullptr, kQuantGroup * 2};
    case ActivationFormat::kInt8Token: {
      std::byte* const head = data + block * (kTokenHeadBytes + groups * record);
      return {head + kTokenHeadBytes + lane * kQuantGroup, head + lane * 4, record};
    }
    case ActivationFormat::kInt8:
    case ActivationFormat::kInt16:
      break;
  }
  const int64_t code_bytes = out.format == ActivationFormat::kInt16 ? 2 : 1;
  std::byte* const first = data + block * groups * record;
  return {first + lane * kQuantGroup * code_bytes,
          first + kActivationRows * kQuantGroup * code_bytes + lane * 4,
          record};
}

// What values are multiplied with before they are rounded, and the scale that is kept; from the
// bits of the largest magnitude, which order like the values, infinities and NaN above all.
struct CodeFactor {
  float inverse;  // of use where `coded`
  float kept;
  bool coded;
};

__device__ __forceinline__ CodeFactor code_factor(int32_t largest_bits, float limit) {
  const float scale = __fdiv_rn(__int_as_float(largest_bits), limit);
  const float inverse = __fdiv_rn(1.0F, scale);
  const bool finite = largest_bits < kInfinityBits;
  const bool coded = finite && inverse <= kLargestFloat;
  return {inverse, coded ? scale : finite ? 0.0F : __int_as_float(kQuietNanBits), coded};
}

__device__ __forceinline__ int32_t code_of(float value, const CodeFactor& factor) {
  return factor.coded ? __float2int_rn(__fmul_rn(value, factor.inverse)) : 0;
}

__device__ __forceinline__ int32_t magnitude_bits(float value) {
  return __float_as_int(value) & INT32_MAX;
}

__device__ __forceinline__ int32_t largest_of_warp(float value) {
  const auto bits = static_cast<uint32_t>(magnitude_bits(value));
  return static_cast<int32_t>(__reduce_max_sync(kAllLanes, bits));
}

// One group, by one warp.
__device__ __forceinline__ void write_group(ActivationFormat format,
                                            const DeviceRow& row,
                                            int32_t group,
                                            float value) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  std::byte* const codes = row.codes + group * row.group_bytes;
  if (format == ActivationFormat::kFloat) {
    reinterpret_cast<float*>(codes)[lane] = value;
    return;
  }
  if (format == ActivationFormat::kBF16) {
    reinterpret_cast<uint16_t*>(codes)[lane] = to_bf16(value);
    return;
  }
  if (format == ActivationFormat::kF16) {
    reinterpret_cast<uint16_t*>(codes)[lane] = to_half(value);
    return;
  }
  const bool int8 = format == ActivationFormat::kInt8;
  const CodeFactor factor = code_factor(largest_of_warp(value), int8 ? 127.0F : 32767.0F);
  const int32_t code = code_of(value, factor);
  if (int8) {
    reinterpret_cast<int8_t*>(codes)[lane] = static_cast<int8_t>(code);
  } else {
    reinterpret_cast<int16_t*>(codes)[lane] = static_cast<int16_t>(code);
  }
  const int32_t half_sum = __reduce_add_sync(kAllLanes, lane < 16 ? code : 0);
  const int32_t sum = __reduce_add_sync(kAllLanes, code);
  if (lane != 0) return;
  std::byte* const tail = row.tail + group * row.group_bytes;
  *reinterpret_cast<float*>(tail) = factor.kept;
  *reinterpret_cast<float*>(tail + 32) = __fmul_rn(__int2float_rn(sum), factor.kept);
  *reinterpret_cast<int32_t*>(tail + 64) = sum;
  *reinterpret_cast<int32_t*>(tail + 96) = half_sum;
}

// The largest magnitude of value(i), i in [0, n), in bits, by all kRowThreads of the block.
template <typename Value>
__device__ __forceinline__ int32_t largest_of_row(int32_t n, Value value) {
  GPU_SHARED(int32_t, largest_by_warp, kRowWarps);
  int32_t largest = 0;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < n; i += kRowThreads) {
    const int32_t bits = magnitude_bits(value(i));
    largest = bits > largest ? bits : largest;
  }
  largest = static_cast<int32_t>(__reduce_max_sync(kAllLanes, static_cast<uint32_t>(largest)));
  if (threadIdx.x % 32 == 0) largest_by_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int i = 0; i < kRowWarps; ++i) {
    largest = largest_by_warp[i] > largest ? largest_by_warp[i] : largest;
  }
  return largest;
}

inline constexpr int32_t kOwnLargest = -1;

// The row by all kRowThreads of the block. value(i) is the row's value i in [0, k), and is asked
// for twice where the scale of the whole row comes first, unless the bits of its `largest`
// magnitude are known. No thread may have left.
template <typename Value>
__device__ __forceinline__ void write_row(const Activations& out,
                                          int64_t row_index,
                                          Value value,
                                          int32_t largest = kOwnLargest) {
  const int32_t groups = (out.k + kQuantGroup - 1) / kQuantGroup;
  const DeviceRow row = row_of(out, row_index, groups);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto value_at = [&](int32_t group) {
    const int32_t i = group * kQuantGroup + lane;
    return i < out.k ? value(i) : 0.0F;
  };
  if (out.format != ActivationFormat::kInt8Token) {
    for (int32_t group = warp; group < groups; group += kRowWarps) {
      write_group(out.format, row, group, value_at(group));
    }
    return;
  }
  GPU_SHARED(int32_t, sum_by_warp, kRowWarps);
  if (largest == kOwnLargest) largest = largest_of_row(out.k, value);
  const CodeFactor factor = code_factor(largest, 127.0F);
  int32_t sum = 0;
  for (int32_t group = warp; group < groups; group += kRowWarps) {
    const int32_t code = code_of(value_at(group), factor);
    reinterpret_cast<int8_t*>(row.codes + group * row.group_bytes)[lane] =
        static_cast<int8_t>(code);
    sum += code;
  }
  sum = __reduce_add_sync(kAllLanes, sum);
  if (lane == 0) sum_by_warp[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kRowWarps; ++i) sum += sum_by_warp[i];
  *reinterpret_cast<float*>(row.tail) = factor.kept;
  *reinterpret_cast<int32_t*>(row.tail + 32) = sum;
}

// Of plain rows: rows along x, pieces of a row along y.
inline constexpr int32_t kPiece = 4 * kRowThreads;

// f(i) for this thread's elements of a row of n.
template <typename F>
__device__ __forceinline__ void for_elements(int32_t n, F f) {
  const int32_t begin = static_cast<int32_t>(blockIdx.y) * kPiece;
  const int32_t end = begin + kPiece < n ? begin + kPiece : n;
  for (int32_t i = begin + static_cast<int32_t>(threadIdx.x); i < end; i += kRowThreads) f(i);
}

inline gpu::LaunchShape piecewise(int64_t rows, int32_t n) {
  return {.blocks_x = rows, .blocks_y = ceil_div(n, kPiece), .threads = kRowThreads};
}

}  // namespace sluice::kernels::cuda
