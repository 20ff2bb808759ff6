// SPDX-License-Identifier: Apache-2.0
// kernels/rope.h by warps: each rotates one head of one token and writes it to its slot.
#pragma once

#include <cstdint>

#include "engine/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/narrow.h"
#include "kernels/cuda/norm_rows.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows.h"
#include "kernels/rope.h"

namespace sluice::kernels::cuda {

struct RopeWork {
  RopeWriteKvArgs args;
  RopeRows rows;
};

// One head's K or V of one token as the cache stores it; stride: elements from one d to the next.
struct CachedRow {
  const float* x;
  std::byte* slot;
  int64_t stride;
  int32_t width;   // elements of x
  int32_t padded;  // zeros from width on
};

template <typename Code, typename Convert>
__device__ __forceinline__ void write_values(const CachedRow& row, Convert convert) {
  auto* const slot = reinterpret_cast<Code*>(row.slot);
#pragma unroll 4
  for (int32_t d = static_cast<int32_t>(threadIdx.x % 32); d < row.padded; d += 32) {
    slot[d * row.stride] = convert(d < row.width ? row.x[d] : 0.0F);
  }
}

// Writes a row as codes and a scale by quant/kv_code.h; one warp calls it.
template <bool kInt8>
__device__ __forceinline__ void write_codes(const CachedRow& row, float* scale) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int32_t largest = 0;
  for (int32_t d = lane; d < row.width; d += 32) {
    const int32_t bits = magnitude_bits(row.x[d]);
    largest = bits > largest ? bits : largest;
  }
  largest = static_cast<int32_t>(__reduce_max_sync(kAllLanes, static_cast<uint32_t>(largest)));
  const CodeFactor factor = code_factor(largest, kInt8 ? 127.0F : 448.0F);
  if (lane == 0) *scale = factor.kept;
  write_values<uint8_t>(row, [&](float value) {
    if constexpr (kInt8) return static_cast<uint8_t>(code_of(value, factor));
    return factor.coded ? to_e4m3(__fmul_rn(value, factor.inverse)) : uint8_t{0};
  });
}

template <DType kType>
__device__ __forceinline__ void write_head(const CachedRow& row, float* scale) {
  if constexpr (kType == DType::kF32) {
    write_values<float>(row, [](float value) { return value; });
  } else if constexpr (kType == DType::kF16) {
    write_values<uint16_t>(row, [](float value) { return to_half(value); });
  } else if constexpr (kType == DType::kBF16) {
    write_values<uint16_t>(row, [](float value) { return to_bf16(value); });
  } else {
    write_codes<kType == DType::kI8>(row, scale);
  }
}

inline constexpr int kRopeHeads = 4;  // heads of a block, a warp each

// Returns the number of heads of a token: q's, then k's, then v's.
constexpr int32_t rope_heads(const RopeWriteKvArgs& args) {
  return args.num_heads + 2 * args.kv.num_kv_heads;
}

enum class HeadKind : uint8_t { kQ, kK, kV };

struct RopeHead {
  HeadKind kind;
  int32_t number;  // within its kind
};

__device__ __forceinline__ RopeHead rope_head_at(const RopeWriteKvArgs& args, int32_t index) {
  if (index < args.num_heads) return {HeadKind::kQ, index};
  index -= args.num_heads;
  const int32_t of_k = args.kv.num_kv_heads;
  return index < of_k ? RopeHead{HeadKind::kK, index} : RopeHead{HeadKind::kV, index - of_k};
}

__device__ __forceinline__ int32_t width_of(const KvLayerView& kv, const RopeHead& head) {
  return head.kind == HeadKind::kV ? kv.value_width() : kv.head_dim;
}

// Returns where a head's values are.
__device__ __forceinline__ const float* values_of(const RopeWriteKvArgs& args,
                                                  int64_t token,
                                                  const RopeHead& head) {
  const int64_t skipped = int64_t{head.number} * width_of(args.kv, head);
  if (head.kind == HeadKind::kQ) return args.q + token * args.q_stride + skipped;
  if (head.kind == HeadKind::kK) return args.k + token * args.k_stride + skipped;
  return args.v + token * args.v_stride + skipped;
}

// A lane's data about a token's position; no launch writes it.
struct Rotation {
  static constexpr int kPairs = kMaxAttentionHeadDim / 2 / 32;

  int64_t slot;
  float query_scale;
  float cos[kPairs];
  float sin[kPairs];
};

__device__ __forceinline__ Rotation rotation_of(const RopeWork& work, int64_t token) {
  Rotation rotation;
  rotation.slot = work.args.slot_mapping.data()[token];
  rotation.query_scale = 1;
  if (work.rows.cos == nullptr) return rotation;
  if (work.rows.query_scales != nullptr && rotation.slot >= 0) {
    rotation.query_scale = work.rows.query_scales[work.args.positions.data()[token]];
  }
  const int64_t row = int64_t{work.args.positions.data()[token]} * work.rows.num_pairs;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < Rotation::kPairs; ++j) {
    const int32_t pair = lane + 32 * j;
    if (rotation.slot < 0 || pair >= work.rows.num_pairs) continue;
    rotation.cos[j] = work.rows.cos[row + pair];
    rotation.sin[j] = work.rows.sin[row + pair];
  }
  return rotation;
}

// Rotates a head that the warp's lanes have written to `staged`. The caller has synchronized the
// warp since; it is synchronized again at the end.
__device__ __forceinline__ void rotate(float* staged, const RopeRows& rows, const Rotation& by) {
  const bool halves = rows.style == RopeStyle::kHalves;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < Rotation::kPairs; ++j) {
    const int32_t pair = lane + 32 * j;
    if (pair >= rows.num_pairs) continue;
    float* const first = staged + (halves ? pair : 2 * pair);
    float* const second = halves ? first + rows.num_pairs : first + 1;
    const float a = *first;
    const float b = *second;
    *first = __fmaf_rn(a, by.cos[j], -__fmul_rn(b, by.sin[j]));
    *second = __fmaf_rn(a, by.sin[j], __fmul_rn(b, by.cos[j]));
  }
  __syncwarp();
}

// Norms a rotated head by its warp, which is synchronized at the end. `factor`: the warp's, shared.
__device__ __forceinline__ void norm_head(
    float* staged, int32_t n, const float* weight, float eps, float* factor) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (lane < kNormLanes) {
    const float r = inverse_rms(staged, n, eps, lane);
    if (lane == 0) *factor = r;
  }
  __syncwarp();
  const float r = *factor;
#pragma unroll 4
  for (int32_t d = lane; d < n; d += 32) {
    staged[d] = __fmul_rn(__fmul_rn(staged[d], r), weight[d]);
  }
  __syncwarp();
}

// Writes K or V to its slot of the cache.
template <DType kType>
__device__ __forceinline__ void write_cached(const KvLayerView& kv,
                                             const RopeHead& head,
                                             int64_t slot,
                                             const float* staged) {
  const int32_t width = width_of(kv, head);
  const int64_t padded = cached_head_dim(width);
  const int64_t head_bytes = kv_head_bytes(kType, width, kv.block_size);
  const int64_t block = slot / kv.block_size * kv.num_kv_heads * head_bytes;
  const int64_t offset = slot % kv.block_size;
  constexpr auto kElement = static_cast<int64_t>(dtype_bytes(kType));
  const int64_t scale_at = padded * kv.block_size * kElement + offset * int64_t{sizeof(float)};
  const bool is_k = head.kind == HeadKind::kK;
  std::byte* const base = (is_k ? kv.k : kv.v) + block + head.number * head_bytes;
  const CachedRow row{.x = staged,
                      .slot = base + offset * (is_k ? 1 : padded) * kElement,
                      .stride = is_k ? kv.block_size : 1,
                      .width = width,
                      .padded = static_cast<int32_t>(padded)};
  write_head<kType>(row, reinterpret_cast<float*>(base + scale_at));
}

// Calls f.template operator()<kType>() with the cache's type.
template <typename F>
void with_cache_type(DType type, F f) {
  switch (type) {
    case DType::kF32:
      return f.template operator()<DType::kF32>();
    case DType::kF16:
      return f.template operator()<DType::kF16>();
    case DType::kBF16:
      return f.template operator()<DType::kBF16>();
    case DType::kI8:
      return f.template operator()<DType::kI8>();
    case DType::kF8E4M3:
      return f.template operator()<DType::kF8E4M3>();
    case DType::kI32:
      break;
  }
  SLUICE_UNREACHABLE("a KV cache of int32");
}

inline gpu::LaunchShape rope_shape(const RopeWriteKvArgs& args) {
  CHECK_LE(args.kv.head_dim, kMaxAttentionHeadDim);
  return {.blocks_x = static_cast<int64_t>(args.slot_mapping.size()),
          .blocks_y = ceil_div(rope_heads(args), kRopeHeads),
          .threads = 32 * kRopeHeads,
          .shared_bytes = int64_t{kRopeHeads} * args.kv.head_dim * int64_t{sizeof(float)},
          .overlaps = overlaps(LaunchKind::kRows, static_cast<int64_t>(args.slot_mapping.size()))};
}

}  // namespace sluice::kernels::cuda
