// SPDX-License-Identifier: Apache-2.0
// Copies of K and V to the shared memory of attention_list.cu's blocks: one warp copies tiles of 64
// keys into two rings, across partitions and row blocks. A block of the cache is one box of K, in
// lines of 128 bytes whatever a d's keys take, and one box of V per 64 d, or 128 d of codes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_list_memory.h"
#include "kernels/cuda/attention_list_work.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/ring.h"

namespace sluice::kernels::cuda {

struct ListMaps {
  ListWork list;
  gpu::TensorMap k;
  gpu::TensorMap v;
  gpu::TensorMap k_scales;
  gpu::TensorMap v_scales;
};

// A warp's copies. Its lanes look up the partition's blocks, lane 0 issues the copies.
template <typename Cache, int kDim, int kHalves>
class ListCopies {
  using Memory = ListMemory<Cache, kDim, kHalves>;
  static constexpr int kColumns = std::min(kDim, kLineBytes / Cache::kBytes);  // d of a row of V

 public:
  __device__ __forceinline__ ListCopies(Memory& memory, const ListMaps& maps)
      : memory_(memory), maps_(maps) {}

  __device__ __forceinline__ void take(const WorkList& list) {
    const AttentionWork& work = maps_.list.attention;
    const int32_t size = work.args.kv.block_size;
    Visits visits(list, static_cast<int32_t>(blockIdx.x));
    Visit visit;
    while (visits.next(work, visit)) {
      const KeyRange keys = visible_to_any(work, visit.block);
      const int32_t* const table =
          work.args.block_table + int64_t{visit.block.request} * work.args.block_table_stride;
      for (int32_t partition = visit.begin; partition < visit.end; ++partition) {
        const KeyRange tiles = tiles_within(keys, partition);
        if (tiles.begin >= tiles.end) continue;
        // The table may hold anything for a block without a key that some row sees. That block's
        // index is set past the last one, for which zeros come.
        const int32_t key = partition * kAttentionPartition + list_lane() * size;
        const bool some =
            list_lane() * size < kAttentionPartition && key < keys.end && key + size > keys.begin;
        memory_.blocks[list_lane()] =
            some ? table[key >> work.block_shift] : work.args.kv.num_blocks;
        __syncwarp();
        if (list_lane() == 0) copy(visit.block.kv_head, tiles);
        __syncwarp();
      }
    }
  }

 private:
  // Copies K of the partition's tiles, then V.
  __device__ __forceinline__ void copy(int32_t kv_head, KeyRange tiles) {
    for (int32_t tile = tiles.begin; tile < tiles.end; ++tile, keys_at_.advance()) {
      copy_keys(kv_head, tile % kPartitionTiles);
    }
    for (int32_t tile = tiles.begin; tile < tiles.end; ++tile, values_at_.advance()) {
      copy_values(kv_head, tile % kPartitionTiles);
    }
  }

  __device__ __forceinline__ void copy_keys(int32_t kv_head, int32_t tile) {
    constexpr uint32_t kScales = Memory::kCodes ? 2 * kAttentionTile * sizeof(float) : 0;
    const AttentionWork& work = maps_.list.attention;
    const int32_t size = work.args.kv.block_size;
    const int32_t blocks = kAttentionTile >> work.block_shift;
    const int stage = keys_at_.stage;
    gpu::ptx::Mbarrier* const full = &memory_.keys_full[stage];
    gpu::ptx::mbar_wait(&memory_.keys_empty[stage], keys_at_.parity ^ 1);
    gpu::ptx::mbar_arrive_expect_tx(full, Memory::kTileBytes + kScales);
    for (int32_t i = 0; i < blocks; ++i) {
      const int32_t at = memory_.blocks[tile * blocks + i];
      gpu::ptx::tma_load_4d(
          memory_.keys[stage] + i * size * kDim * Cache::kBytes, &maps_.k, 0, 0, kv_head, at, full);
      if constexpr (Memory::kCodes) {
        const int32_t to = i * scale_stride(size);
        gpu::ptx::tma_load_4d(
            memory_.scales[stage][0] + to, &maps_.k_scales, 0, 0, kv_head, at, full);
        gpu::ptx::tma_load_4d(
            memory_.scales[stage][1] + to, &maps_.v_scales, 0, 0, kv_head, at, full);
      }
    }
  }

  __device__ __forceinline__ void copy_values(int32_t kv_head, int32_t tile) {
    constexpr int kRowBytes = kColumns * Cache::kBytes;
    const AttentionWork& work = maps_.list.attention;
    const int32_t size = work.args.kv.block_size;
    const int32_t blocks = kAttentionTile >> work.block_shift;
    const int stage = values_at_.stage;
    gpu::ptx::Mbarrier* const full = &memory_.values_full[stage];
    gpu::ptx::mbar_wait(&memory_.values_empty[stage], values_at_.parity ^ 1);
    gpu::ptx::mbar_arrive_expect_tx(full, Memory::kTileBytes);
    for (int32_t i = 0; i < blocks; ++i) {
      const int32_t at = memory_.blocks[tile * blocks + i];
      for (int first_d = 0; first_d < kDim; first_d += kColumns) {
        const int row = first_d / kColumns * kAttentionTile + i * size;
        gpu::ptx::tma_load_4d(
            memory_.values[stage] + row * kRowBytes, &maps_.v, first_d, 0, kv_head, at, full);
      }
    }
  }

  Memory& memory_;
  const ListMaps& maps_;
  Cursor<Memory::kKeyStages> keys_at_;
  Cursor<Memory::kValueStages> values_at_;
};

}  // namespace sluice::kernels::cuda
