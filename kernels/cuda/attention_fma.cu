// SPDX-License-Identifier: Apache-2.0
// Attention over caches of floats with the CPU's bits (attention_fma.h). K and V are read straight
// from the cache: a warp reads neighbouring keys of K, neighbouring d of V.
#include "kernels/cuda/attention_fma.h"

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"

namespace sluice::kernels::cuda {

// Computes the scores of a partition's keys that some row sees, a thread per key.
template <int kRows>
__device__ __forceinline__ void score_keys(const AttentionWork& work,
                                           const RowBlock& block,
                                           int32_t partition_begin,
                                           const FmaShared<kRows>& shared) {
  const KvLayerView& kv = work.args.kv;
  const KeyRange keys =
      keys_within(visible_to_any(work, block), partition_begin, kAttentionPartition);
  const int64_t key_bytes = kv_head_bytes(DType::kF32, kv.head_dim, kv.block_size);
  const int64_t value_bytes = kv_head_bytes(DType::kF32, kv.value_width(), kv.block_size);
  const int64_t padded = cached_head_dim(kv.value_width());
  const int32_t* const table =
      work.args.block_table + int64_t{block.request} * work.args.block_table_stride;
  // Starts at a multiple of 32, so that a warp reads whole sectors.
  for (int32_t j = keys.begin / 32 * 32 + static_cast<int32_t>(threadIdx.x); j < keys.end;
       j += kAttentionThreads) {
    if (j < keys.begin) continue;
    const int32_t key = partition_begin + j;
    const int32_t slot = key % kv.block_size;
    const int64_t head = int64_t{table[key / kv.block_size]} * kv.num_kv_heads + block.kv_head;
    float acc[kRows] = {};
    dot_rows<kRows>(shared.q,
                    head_stride(work),
                    reinterpret_cast<const float*>(kv.k + head * key_bytes) + slot,
                    kv.block_size,
                    kv.head_dim,
                    acc);
    shared.v[j] = reinterpret_cast<const float*>(kv.v + head * value_bytes) + slot * padded;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float score = __fmul_rn(acc[r], work.args.scale);
      if (work.args.soft_cap != 0) {
        score = __fmul_rn(work.args.soft_cap, tanh_of(__fdiv_rn(score, work.args.soft_cap)));
      }
      if (work.args.slopes != nullptr) {
        const int32_t distance = visible_keys(work, block, r).end - 1 - key;
        const auto apart = __int2float_rn(distance < 0 ? 0 : distance);  // later keys are unseen
        score = __fmaf_rn(slope_of(work, block, r), apart, score);
      }
      shared.weights[r][j] = score;
    }
  }
}

namespace {

template <int kRows>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    attention_fma_kernel(const __grid_constant__ AttentionWork work) {
  gpu::ptx::start_next_launch();
  gpu::ptx::wait_for_launches();
  attend_rows<kRows>(work);
}

template <int kRows>
void start(Stream stream, const AttentionWork& work, const AttentionGrid& grid) {
  gpu::launch(stream,
              {.blocks_x = grid.blocks,
               .blocks_y = grid.partitions,
               .threads = kAttentionThreads,
               .shared_bytes = fma_shared_bytes<kRows>(work),
               .overlaps = overlaps(LaunchKind::kAttention, work.args.num_tokens)},
              attention_fma_kernel<kRows>,
              work);
}

}  // namespace

void launch_attention_fma(Stream stream, const AttentionWork& work, const AttentionGrid& grid) {
  switch (work.rows_per_block) {
    case 4:
      return start<4>(stream, work, grid);
    case 8:
      return start<8>(stream, work, grid);
    case 16:
      return start<16>(stream, work, grid);
    default:
      SLUICE_UNREACHABLE("rows of a block");
  }
}

}  // namespace sluice::kernels::cuda
