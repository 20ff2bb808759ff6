// SPDX-License-Identifier: Apache-2.0
// Traversal of rows by blocks of threads. A thread that writes Activations (kernels/gemm.h) takes
// four neighbouring values, so that 8 lanes have a group of 32. Norm, gate and quantization share
// this, so that rows between them need no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "engine/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/narrow.h"
#include "kernels/cuda/overlap.h"
#include "kernels/gemm.h"

namespace sluice::kernels::cuda {

inline constexpr int kRowThreads = 128;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFFU;
inline constexpr uint32_t kHalfWarp = 0x0000FFFFU;
inline constexpr int32_t kInfinityBits = 0x7F800000;
inline constexpr int32_t kQuietNanBits = 0x7FC00000;
inline constexpr float kLargestFloat = 0x1.fffffep127F;

// Gives each of sixteen neighbouring lanes the sum of theirs, by halves. `lanes`: all lanes of the
// warp that call it.
__device__ __forceinline__ float sum_of_sixteen(float sum, uint32_t lanes = kAllLanes) {
#pragma unroll
  for (int half = 8; half >= 1; half /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(lanes, sum, half));
  return sum;
}

// The place of a row's group 0; other groups follow at group_bytes.
struct DeviceRow {
  std::byte* codes;
  std::byte* tail;  // the row's scale; each further field is 32 bytes on
  int64_t group_bytes;
};

__device__ __forceinline__ DeviceRow row_of(const Activations& out, int64_t row) {
  auto* const data = static_cast<std::byte*>(out.data);
  const int64_t groups = ceil_div(out.k, kQuantGroup);
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
    case ActivationFormat::kE4M3Token:
    case ActivationFormat::kE4M3Group: {
      const int64_t head = e4m3_head_bytes(out.format, out.k);
      const int64_t row_bytes = e4m3_row_bytes(out.k);
      std::byte* const first = data + block * (head + kActivationRows * row_bytes);
      return {first + head + lane * row_bytes, first + lane * 4, kQuantGroup};
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

// The factor of values before they are rounded, and the scale that is stored. They derive from the
// bits of the largest magnitude, which order like the values, infinities and NaN above all.
struct CodeFactor {
  float inverse;  // used only where `coded`
  float kept;
  bool coded;
};

// `given`: a fixed scale, or 0.
__device__ __forceinline__ CodeFactor code_factor(int32_t largest_bits,
                                                  float limit,
                                                  float given = 0) {
  const float scale = given != 0 ? given : __fdiv_rn(__int_as_float(largest_bits), limit);
  const float inverse = __fdiv_rn(1.0F, scale);
  const bool finite = largest_bits < kInfinityBits;
  const bool coded = finite && inverse <= kLargestFloat;
  return {inverse, coded ? scale : finite ? 0.0F : __int_as_float(kQuietNanBits), coded};
}

__device__ __forceinline__ int32_t code_of(float value, const CodeFactor& factor) {
  return factor.coded ? __float2int_rn(__fmul_rn(value, factor.inverse)) : 0;
}

// Limits scaled values where each row has a scale: a given scale may be too small for them, and
// their codes are then the limit.
__device__ __forceinline__ float limited(float value, float limit) {
  return value > limit ? limit : value < -limit ? -limit : value;
}

struct Int8Codes {
  static constexpr float kLimit = 127.0F;

  __device__ __forceinline__ static int32_t of(float value, const CodeFactor& factor) {
    if (!factor.coded) return 0;
    return __float2int_rn(limited(__fmul_rn(value, factor.inverse), kLimit));
  }
};

struct E4M3Codes {
  static constexpr float kLimit = 448.0F;

  __device__ __forceinline__ static int32_t of(float value, const CodeFactor& factor) {
    return factor.coded ? to_e4m3(limited(__fmul_rn(value, factor.inverse), kLimit)) : 0;
  }
};

__device__ __forceinline__ int32_t magnitude_bits(float value) {
  return __float_as_int(value) & INT32_MAX;
}

// Four neighbouring values of a row, from a multiple of 4 on.
struct Four {
  float v[4];
};

// Whether a row can be read and written 16 bytes at a time.
__device__ __forceinline__ bool is_wide(const float* row) {
  return reinterpret_cast<uintptr_t>(row) % sizeof(float4) == 0;
}

// Loads x[i .. i + 4), in one load where `wide`; zeros from n on.
__device__ __forceinline__ Four load_four(const float* x, int32_t i, int32_t n, bool wide) {
  if (wide && i + 4 <= n) {
    const float4 four = *reinterpret_cast<const float4*>(x + i);
    return {{four.x, four.y, four.z, four.w}};
  }
  Four four;
#pragma unroll
  for (int j = 0; j < 4; ++j) four.v[j] = i + j < n ? x[i + j] : 0.0F;
  return four;
}

// Stores to x[i .. i + 4), in one store where `wide`; nothing from n on.
__device__ __forceinline__ void store_four(
    float* x, int32_t i, int32_t n, bool wide, const Four& four) {
  if (wide && i + 4 <= n) {
    *reinterpret_cast<float4*>(x + i) = float4{four.v[0], four.v[1], four.v[2], four.v[3]};
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (i + j < n) x[i + j] = four.v[j];
  }
}

// Sets the values from column k on to zero, whatever they are.
__device__ __forceinline__ void clear_from(Four& four, int32_t i, int32_t k) {
  if (i + 4 <= k) return;
#pragma unroll
  for (int j = 0; j < 4; ++j) four.v[j] = i + j < k ? four.v[j] : 0.0F;
}

__device__ __forceinline__ int32_t largest_of(const Four& four) {
  int32_t largest = magnitude_bits(four.v[0]);
#pragma unroll
  for (int j = 1; j < 4; ++j) {
    const int32_t bits = magnitude_bits(four.v[j]);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

__device__ __forceinline__ uint64_t in_one(const uint16_t (&code)[4]) {
  return uint64_t{code[0]} | uint64_t{code[1]} << 16 | uint64_t{code[2]} << 32 |
         uint64_t{code[3]} << 48;
}

__device__ __forceinline__ uint32_t in_one(const int32_t (&code)[4]) {
  const auto byte = [&](int i) { return static_cast<uint32_t>(code[i]) & 0xFFU; };
  return byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
}

inline constexpr int kGroupLanes = kQuantGroup / 4;  // lanes of a group, four values each

// Gives each of four neighbouring lanes, which have half of a group, their sum.
__device__ __forceinline__ int32_t sum_of_half(int32_t value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

// Gives each of a group's lanes the largest of their values.
__device__ __forceinline__ int32_t largest_of_group(int32_t bits) {
#pragma unroll
  for (int lanes = kGroupLanes / 2; lanes >= 1; lanes /= 2) {
    const int32_t other = __shfl_xor_sync(kAllLanes, bits, lanes);
    bits = other > bits ? other : bits;
  }
  return bits;
}

// write_four() for kE4M3Group: a warp's lanes have 128 neighbouring columns.
__device__ __forceinline__ void write_four_e4m3(const DeviceRow& row,
                                                int32_t vector,
                                                const Four& four,
                                                bool inside) {
  const auto largest = __reduce_max_sync(kAllLanes, static_cast<uint32_t>(largest_of(four)));
  const CodeFactor factor = code_factor(static_cast<int32_t>(largest), E4M3Codes::kLimit);
  if (!inside) return;
  int32_t code[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) code[j] = E4M3Codes::of(four.v[j], factor);
  reinterpret_cast<uint32_t*>(row.codes)[vector] = in_one(code);
  constexpr int32_t kLanes = kE4M3GroupColumns / 4;
  static_assert(kLanes == 32);
  if (vector % kLanes != 0) return;
  constexpr int64_t kScales = kActivationRows * sizeof(float);
  *reinterpret_cast<float*>(row.tail + vector / kLanes * kScales) = factor.kept;
}

// Writes four values of a row from 4 * `vector` on, in any format whose rows have no scale of their
// own. Whole warps call it: each 8 lanes have a group, and lane 0 starts at a multiple of 128.
// Nothing is written for groups that are not `inside`.
__device__ __forceinline__ void write_four(
    ActivationFormat format, const DeviceRow& row, int32_t vector, const Four& four, bool inside) {
  const int32_t part = vector % kGroupLanes;
  std::byte* const group = row.codes + vector / kGroupLanes * row.group_bytes;
  if (format == ActivationFormat::kFloat) {
    if (!inside) return;
    reinterpret_cast<float4*>(group)[part] = float4{four.v[0], four.v[1], four.v[2], four.v[3]};
    return;
  }
  if (format == ActivationFormat::kBF16) {
    const uint16_t code[4] = {
        to_bf16(four.v[0]), to_bf16(four.v[1]), to_bf16(four.v[2]), to_bf16(four.v[3])};
    if (inside) reinterpret_cast<uint64_t*>(group)[part] = in_one(code);
    return;
  }
  if (format == ActivationFormat::kF16) {
    const uint16_t code[4] = {
        to_half(four.v[0]), to_half(four.v[1]), to_half(four.v[2]), to_half(four.v[3])};
    if (inside) reinterpret_cast<uint64_t*>(group)[part] = in_one(code);
    return;
  }
  if (format == ActivationFormat::kE4M3Group) return write_four_e4m3(row, vector, four, inside);
  const bool int8 = format == ActivationFormat::kInt8;
  const CodeFactor factor =
      code_factor(largest_of_group(largest_of(four)), int8 ? 127.0F : 32767.0F);
  int32_t code[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) code[j] = code_of(four.v[j], factor);
  const int32_t half_sum = sum_of_half(code[0] + code[1] + code[2] + code[3]);
  const int32_t sum = half_sum + __shfl_xor_sync(kAllLanes, half_sum, kGroupLanes / 2);
  if (!inside) return;
  if (int8) {
    reinterpret_cast<uint32_t*>(group)[part] = in_one(code);
  } else {
    const uint16_t word[4] = {static_cast<uint16_t>(code[0]),
                              static_cast<uint16_t>(code[1]),
                              static_cast<uint16_t>(code[2]),
                              static_cast<uint16_t>(code[3])};
    reinterpret_cast<uint64_t*>(group)[part] = in_one(word);
  }
  if (part != 0) return;
  std::byte* const tail = row.tail + vector / kGroupLanes * row.group_bytes;
  *reinterpret_cast<float*>(tail) = factor.kept;
  *reinterpret_cast<float*>(tail + 32) = __fmul_rn(__int2float_rn(sum), factor.kept);
  *reinterpret_cast<int32_t*>(tail + 64) = sum;
  *reinterpret_cast<int32_t*>(tail + 96) = half_sum;
}

inline constexpr int kMostWarps = 32;  // the limit of a block

__device__ __forceinline__ int32_t warps_of_block() {
  return static_cast<int32_t>(blockDim.x) / 32;
}

// Returns the largest of the values of a block's threads to each of them; no value may be negative.
// A kernel calls it once.
__device__ __forceinline__ int32_t largest_of_block(int32_t value) {
  GPU_SHARED(int32_t, largest_by_warp, kMostWarps);
  const auto mine =
      static_cast<int32_t>(__reduce_max_sync(kAllLanes, static_cast<uint32_t>(value)));
  if (threadIdx.x % 32 == 0) largest_by_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  int32_t largest = mine;
  for (int i = 0; i < warps_of_block(); ++i) {
    largest = largest_by_warp[i] > largest ? largest_by_warp[i] : largest;
  }
  return largest;
}

inline constexpr int32_t kOwnLargest = -1;

// Returns the fours of a row, with those that its format fills with zeros.
constexpr int32_t vectors_of(const Activations& out) {
  const int64_t columns =
      is_e4m3(out.format) ? e4m3_row_bytes(out.k) : align_up(out.k, kQuantGroup);
  return static_cast<int32_t>(columns / 4);
}

// Whether a row has one scale, so that one block must write all of it.
constexpr bool has_row_scales(ActivationFormat format) {
  return format == ActivationFormat::kInt8Token || format == ActivationFormat::kE4M3Token;
}

// Writes a row of kInt8Token or kE4M3Token, with codes of type Codes, by all threads of the block.
// four(i): its values from i on, a multiple of 4; those past k do not matter. first(s, i): likewise
// for a thread's fours s below kHeld, which are asked for once; other fours are asked for twice
// unless the bits of the row's `largest` magnitude are known.
template <typename Codes, int kHeld, typename First, typename Values>
__device__ __forceinline__ void write_token_row(const Activations& out,
                                                int64_t row_index,
                                                First first,
                                                Values four,
                                                int32_t largest = kOwnLargest) {
  GPU_SHARED(int32_t, sum_by_warp, kMostWarps);
  const int32_t vectors = vectors_of(out);
  const DeviceRow row = row_of(out, row_index);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto threads = static_cast<int32_t>(blockDim.x);
  const auto values = [&](int32_t vector) {
    Four some = four(4 * vector);
    clear_from(some, 4 * vector, out.k);
    return some;
  };
  Four held[kHeld];
#pragma unroll
  for (int s = 0; s < kHeld; ++s) {
    const int32_t vector = thread + s * threads;
    if (vector >= vectors) continue;
    held[s] = first(s, 4 * vector);
    clear_from(held[s], 4 * vector, out.k);
  }
  if (largest == kOwnLargest) {
    int32_t mine = 0;
    const auto take = [&](const Four& some) {
      const int32_t bits = largest_of(some);
      mine = bits > mine ? bits : mine;
    };
#pragma unroll
    for (int s = 0; s < kHeld; ++s) {
      if (thread + s * threads < vectors) take(held[s]);
    }
    for (int32_t vector = thread + kHeld * threads; vector < vectors; vector += threads) {
      take(values(vector));
    }
    largest = largest_of_block(mine);
  }
  const CodeFactor factor = code_factor(largest, Codes::kLimit, out.static_scale);
  int32_t sum = 0;
  const auto write = [&](int32_t vector, const Four& some) {
    int32_t code[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) code[j] = Codes::of(some.v[j], factor);
    std::byte* const group = row.codes + vector / kGroupLanes * row.group_bytes;
    reinterpret_cast<uint32_t*>(group)[vector % kGroupLanes] = in_one(code);
    sum += code[0] + code[1] + code[2] + code[3];
  };
#pragma unroll
  for (int s = 0; s < kHeld; ++s) {
    const int32_t vector = thread + s * threads;
    if (vector < vectors) write(vector, held[s]);
  }
  for (int32_t vector = thread + kHeld * threads; vector < vectors; vector += threads) {
    write(vector, values(vector));
  }
  if constexpr (std::is_same_v<Codes, E4M3Codes>) {
    if (thread == 0) *reinterpret_cast<float*>(row.tail) = factor.kept;
    return;
  }
  sum = __reduce_add_sync(kAllLanes, sum);
  if (thread % 32 == 0) sum_by_warp[thread / 32] = sum;
  __syncthreads();
  if (thread != 0) return;
  for (int i = 1; i < warps_of_block(); ++i) sum += sum_by_warp[i];
  *reinterpret_cast<float*>(row.tail) = factor.kept;
  *reinterpret_cast<int32_t*>(row.tail + 32) = sum;
}

// Writes the fours [begin, end) of a row in any other format, by all threads of the block: whole
// groups, or all up to the row's end. four(i) is as in write_token_row.
template <typename Values>
__device__ __forceinline__ void write_vectors(
    const Activations& out, int64_t row_index, int32_t begin, int32_t end, Values four) {
  const DeviceRow row = row_of(out, row_index);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto threads = static_cast<int32_t>(blockDim.x);
#pragma unroll 2
  for (int32_t first = begin + static_cast<int32_t>(threadIdx.x) - lane; first < end;
       first += threads) {
    const int32_t vector = first + lane;
    const bool inside = vector < end;
    Four some = {};
    if (inside) {
      some = four(4 * vector);
      clear_from(some, 4 * vector, out.k);
    }
    write_four(out.format, row, vector, some, inside);
  }
}

inline constexpr int kTokenThreads = 1024;  // most threads for a row with one scale

// The cut of rows into blocks: rows along x, pieces of `piece` fours along y.
struct RowBlocks {
  int32_t threads;
  int32_t piece;
};

// Cuts few rows into pieces for the whole device, and keeps many rows whole; a row with one scale
// is always whole, and has a scale even without values.
inline RowBlocks blocks_of(const Activations& out, int64_t rows) {
  const int32_t vectors = vectors_of(out);
  if (has_row_scales(out.format)) {
    return {vectors > 2048 ? kTokenThreads : vectors > 512 ? 512 : kRowThreads, vectors};
  }
  constexpr int64_t kBlocks = 1320;  // 10 on each SM of an H200, as registers allow
  int32_t piece = kRowThreads;
  while (piece < vectors && rows * ceil_div(vectors, piece) > kBlocks) piece *= 2;
  return {kRowThreads, piece};
}

inline gpu::LaunchShape shape_of(const Activations& out, int64_t rows, const RowBlocks& blocks) {
  const bool token = has_row_scales(out.format);
  return {.blocks_x = rows,
          .blocks_y = token ? 1 : ceil_div(vectors_of(out), blocks.piece),
          .threads = blocks.threads,
          .overlaps = overlaps(LaunchKind::kRows, rows)};
}

// Writes what blocks_of gave this block: all of a row with one scale and codes of type Codes or,
// where Codes is void, a piece of another row.
template <typename Codes, typename Values>
__device__ __forceinline__ void write_part(const Activations& out,
                                           int64_t row_index,
                                           int32_t piece,
                                           Values four,
                                           int32_t largest = kOwnLargest) {
  if constexpr (!std::is_void_v<Codes>) {
    const auto first = [&](int, int32_t i) { return four(i); };
    return write_token_row<Codes, 4>(out, row_index, first, four, largest);
  }
  const int32_t begin = static_cast<int32_t>(blockIdx.y) * piece;
  const int32_t vectors = vectors_of(out);
  const int32_t end = begin + piece < vectors ? begin + piece : vectors;
  write_vectors(out, row_index, begin, end, four);
}

// Elements of a plain row in a block.
inline constexpr int32_t kPiece = 4 * kRowThreads;

// Calls f(i) for this thread's elements of a row of n, in a launch of `piecewise` shape.
template <typename F>
__device__ __forceinline__ void for_elements(int32_t n, F f) {
  const int32_t begin = static_cast<int32_t>(blockIdx.y) * kPiece;
  const int32_t end = begin + kPiece < n ? begin + kPiece : n;
#pragma unroll 4
  for (int32_t i = begin + static_cast<int32_t>(threadIdx.x); i < end; i += kRowThreads) f(i);
}

// A launch with rows along x and pieces of a row along y.
inline gpu::LaunchShape piecewise(int64_t rows, int32_t n) {
  return {.blocks_x = rows,
          .blocks_y = ceil_div(n, kPiece),
          .threads = kRowThreads,
          .overlaps = overlaps(LaunchKind::kRows, rows)};
}

// Calls f.template operator()<kType>() with the type of a plane of floats.
template <typename F>
void with_float_type(DType type, F f) {
  CHECK(type == DType::kF32 || type == DType::kF16 || type == DType::kBF16);
  if (type == DType::kF32) return f.template operator()<DType::kF32>();
  if (type == DType::kF16) return f.template operator()<DType::kF16>();
  f.template operator()<DType::kBF16>();
}

}  // namespace sluice::kernels::cuda
