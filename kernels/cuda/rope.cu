// SPDX-License-Identifier: Apache-2.0
// kernels/rope.h: one block a token rotates its heads, then writes K and V to its slot, a warp a
// head.
#include "engine/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/narrow.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

struct RopeWork {
  RopeWriteKvArgs args;
  RopeRows rows;
};

__device__ __forceinline__ void rotate_heads(
    float* x, int32_t num_heads, int32_t head_dim, const RopeRows& rows, int64_t position) {
  const float* const cos = rows.cos + position * rows.num_pairs;
  const float* const sin = rows.sin + position * rows.num_pairs;
  const bool halves = rows.style == RopeStyle::kHalves;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_heads * rows.num_pairs;
       i += kRowThreads) {
    const int32_t pair = i % rows.num_pairs;
    float* const head = x + int64_t{i / rows.num_pairs} * head_dim;
    float* const first = head + (halves ? pair : 2 * pair);
    float* const second = halves ? first + rows.num_pairs : first + 1;
    const float a = *first;
    const float b = *second;
    *first = __fmaf_rn(a, cos[pair], -__fmul_rn(b, sin[pair]));
    *second = __fmaf_rn(a, sin[pair], __fmul_rn(b, cos[pair]));
  }
}

// One head's K or V of one token as the cache keeps it; stride: elements from one d to the next.
struct CachedRow {
  const float* x;
  std::byte* slot;
  int64_t stride;
  int32_t width;   // of x
  int32_t padded;  // zeros from width on
};

template <typename Code, typename Convert>
__device__ __forceinline__ void write_values(const CachedRow& row, Convert convert) {
  auto* const slot = reinterpret_cast<Code*>(row.slot);
  for (int32_t d = static_cast<int32_t>(threadIdx.x % 32); d < row.padded; d += 32) {
    slot[d * row.stride] = convert(d < row.width ? row.x[d] : 0.0F);
  }
}

// quant/kv_code.h, by one warp.
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

template <DType kType>
__global__ void __launch_bounds__(kRowThreads, 1)
    rope_write_kv_kernel(const __grid_constant__ RopeWork work) {
  const RopeWriteKvArgs& args = work.args;
  const KvLayerView& kv = args.kv;
  const int64_t token = blockIdx.x;
  const int64_t slot = args.slot_mapping.data()[token];
  if (slot < 0) return;
  float* const k = args.k + token * args.k_stride;
  if (work.rows.cos != nullptr) {
    const int64_t position = args.positions.data()[token];
    rotate_heads(args.q + token * args.q_stride, args.num_heads, kv.head_dim, work.rows, position);
    rotate_heads(k, kv.num_kv_heads, kv.head_dim, work.rows, position);
    __syncthreads();
  }
  const int64_t padded = cached_head_dim(kv.head_dim);
  const int64_t head_bytes = kv_head_bytes(kType, kv.head_dim, kv.block_size);
  const int64_t block = slot / kv.block_size * kv.num_kv_heads * head_bytes;
  const int64_t offset = slot % kv.block_size;
  constexpr auto kElement = static_cast<int64_t>(dtype_bytes(kType));
  const int64_t scale_at = padded * kv.block_size * kElement + offset * int64_t{sizeof(float)};
  for (int32_t i = static_cast<int32_t>(threadIdx.x / 32); i < 2 * kv.num_kv_heads;
       i += kRowWarps) {
    const int32_t head = i / 2;
    const bool is_k = i % 2 == 0;
    const float* const x = is_k ? k : args.v + token * args.v_stride;
    std::byte* const base = (is_k ? kv.k : kv.v) + block + head * head_bytes;
    const CachedRow row{.x = x + int64_t{head} * kv.head_dim,
                        .slot = base + offset * (is_k ? 1 : padded) * kElement,
                        .stride = is_k ? kv.block_size : 1,
                        .width = kv.head_dim,
                        .padded = static_cast<int32_t>(padded)};
    write_head<kType>(row, reinterpret_cast<float*>(base + scale_at));
  }
}

}  // namespace

void launch_rope_write_kv(Stream stream, const RopeWriteKvArgs& args, const RopeRows& rows) {
  const gpu::LaunchShape shape{.blocks_x = static_cast<int64_t>(args.slot_mapping.size()),
                               .threads = kRowThreads};
  const RopeWork work{.args = args, .rows = rows};
  switch (args.kv.dtype) {
    case DType::kF32:
      return gpu::launch(stream, shape, rope_write_kv_kernel<DType::kF32>, work);
    case DType::kF16:
      return gpu::launch(stream, shape, rope_write_kv_kernel<DType::kF16>, work);
    case DType::kBF16:
      return gpu::launch(stream, shape, rope_write_kv_kernel<DType::kBF16>, work);
    case DType::kI8:
      return gpu::launch(stream, shape, rope_write_kv_kernel<DType::kI8>, work);
    case DType::kF8E4M3:
      return gpu::launch(stream, shape, rope_write_kv_kernel<DType::kF8E4M3>, work);
    case DType::kI32:
      break;
  }
  SLUICE_UNREACHABLE("a KV cache of int32");
}

}  // namespace sluice::kernels::cuda
