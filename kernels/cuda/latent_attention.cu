// SPDX-License-Identifier: Apache-2.0
// Latent attention (kernels/latent_attention.h). Over caches of floats by fma with the CPU's bits;
// over caches of 16 bits by mma.sync, by the definition in launch.h: a block has 16 rows, or two
// groups of 16 with four warps each, and walks tiles of 64 keys. A tile's latents and rotated parts
// come by cp.async, once, and are keys and then values of all rows: a warp has 16 keys of the
// scores and a quarter of the latent's outputs. Outputs of earlier partitions are where the row's
// output goes (attention_pair.h).
#include <algorithm>
#include <bit>

#include "engine/core/status.h"
#include "kernels/cuda/attention_fma.h"
#include "kernels/cuda/attention_pair.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/latent_work.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"

namespace sluice::kernels::cuda {

namespace ptx = gpu::ptx;

// The position of key `number` of a row block, by the block's list of chosen keys or without one.
__device__ __forceinline__ int32_t position_of(const int32_t* positions,
                                               int32_t first,
                                               int32_t number) {
  return positions == nullptr ? first + number : positions[number];
}

// Computes the scores of a partition's keys that some row sees, a thread per key.
template <int kRows>
__device__ __forceinline__ void score_keys(const LatentWork& work,
                                           const RowBlock& block,
                                           int32_t partition_begin,
                                           const FmaShared<kRows>& shared) {
  GPU_SHARED(int32_t, list, kAttentionPartition);
  const KvLayerView& kv = work.args.kv;
  const KeyRange keys =
      keys_within(visible_to_any(work, block), partition_begin, kAttentionPartition);
  const int32_t* const positions = chooses(work) ? list : nullptr;
  if (positions != nullptr) list_chosen(work, block, partition_begin, list);
  const auto rope_stride = static_cast<int32_t>(cached_head_dim(work.rope_dim));
  const int32_t* const table =
      work.args.block_table + int64_t{block.request} * work.args.block_table_stride;
  for (int32_t j = keys.begin + static_cast<int32_t>(threadIdx.x); j < keys.end;
       j += kAttentionThreads) {
    const int32_t key = position_of(positions, partition_begin, j);
    const int64_t row = int64_t{table[key / kv.block_size]} * kv.block_size + key % kv.block_size;
    const float* const latent = reinterpret_cast<const float*>(kv.k) + row * kv.head_dim;
    const float* const rope = reinterpret_cast<const float*>(kv.v) + row * rope_stride;
    float acc[kRows] = {};
    dot_rows<kRows>(shared.q, head_stride(work), latent, 1, kv.head_dim, acc);
    dot_rows<kRows>(shared.q + kv.head_dim, head_stride(work), rope, 1, work.rope_dim, acc);
    shared.v[j] = latent;
#pragma unroll
    for (int r = 0; r < kRows; ++r) shared.weights[r][j] = __fmul_rn(acc[r], work.args.scale);
  }
}

namespace {

constexpr int32_t kFmaRows = 8;
constexpr int kWidth = kMaxLatentDim + kMaxLatentRope;
constexpr int kKeyBytes = kWidth * 2;
static_assert(has_no_bank_conflict<kKeyBytes, 1>() && has_no_bank_conflict<kKeyBytes, 8>());

// Shared memory of a block of kGroups times 16 rows, with tiles in a ring.
template <int kGroups, int kStages>
struct LatentMemory {
  alignas(1024) std::byte ring[kStages][kAttentionTile * kKeyBytes];
  alignas(1024) std::byte q[kGroups * 16 * kKeyBytes];
  alignas(1024) std::byte weights[kGroups][16 * kKeyRowBytes];
  alignas(kPieceBytes) float sums[kGroups][16 * 4][kAttentionWarps];  // by row and lane % 4
  alignas(kPieceBytes) float tops[kGroups][16][kAttentionWarps];
  int32_t chosen[kAttentionPartition];
};

// A block's tiles on their way through the ring, by all threads: [latent | rotated] of each key, in
// rows. Keys that no row sees are zeros.
template <int kGroups, int kStages>
class LatentTiles {
  using Shared = LatentMemory<kGroups, kStages>;
  static constexpr int kWarps = kGroups * kAttentionWarps;

 public:
  // Takes tiles [begin, end). No thread may read the ring.
  __device__ __forceinline__ LatentTiles(
      Shared& shared, const LatentWork& work, const RowBlock& block, int32_t begin, int32_t end)
      : shared_(shared),
        work_(work),
        block_(block),
        table_(work.args.block_table + int64_t{block.request} * work.args.block_table_stride),
        keys_end_(visible_to_any(work, block).end),
        begin_(begin),
        end_(end),
        next_(begin) {
    for (int stage = 0; stage < kStages; ++stage) copy(stage);
  }

  // Waits for the next tile and returns its place.
  __device__ __forceinline__ const std::byte* wait() {
    ptx::cp_async_wait<kStages - 1>();
    __syncthreads();
    return shared_.ring[stage_];
  }

  // Gives the tile up that wait() returned.
  __device__ __forceinline__ void release() {
    __syncthreads();  // no thread reads it
    copy(stage_);
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
  }

 private:
  // Issues a group of copies, empty past the last tile, so that groups count stages.
  __device__ __forceinline__ void copy(int stage) {
    if (next_ < end_) {
      const int32_t partition = next_ / kPartitionTiles * kAttentionPartition;
      if (chooses(work_) && (next_ == begin_ || next_ % kPartitionTiles == 0)) {
        list_chosen(work_, block_, partition, shared_.chosen);
      }
      const int32_t* const positions = chooses(work_) ? shared_.chosen : nullptr;
      const auto warp = static_cast<int32_t>(threadIdx.x / 32);
      for (int32_t row = warp; row < kAttentionTile; row += kWarps) {
        const int32_t number = next_ * kAttentionTile + row;
        const bool seen = number < keys_end_;
        const int32_t key = seen ? position_of(positions, partition, number - partition) : 0;
        copy_key(shared_.ring[stage], row, key, seen);
      }
      ++next_;
    }
    ptx::cp_async_commit();
  }

  // A warp copies a key.
  __device__ __forceinline__ void copy_key(std::byte* tile,
                                           int32_t row,
                                           int32_t key,
                                           bool seen) const {
    const KvLayerView& kv = work_.args.kv;
    const int32_t latent_pieces = kv.head_dim / 8;
    const auto rope_pieces = static_cast<int32_t>(cached_head_dim(work_.rope_dim)) / 8;
    const int32_t block = seen ? table_[key >> work_.block_shift] : 0;
    const int64_t at = (int64_t{block} << work_.block_shift) + (key & (kv.block_size - 1));
    const std::byte* const latent = kv.k + at * latent_pieces * kPieceBytes;
    const std::byte* const rope = kv.v + at * rope_pieces * kPieceBytes;
    for (auto piece = static_cast<int32_t>(threadIdx.x % 32); piece < latent_pieces + rope_pieces;
         piece += 32) {
      const std::byte* const from = piece < latent_pieces
                                        ? latent + piece * kPieceBytes
                                        : rope + (piece - latent_pieces) * kPieceBytes;
      ptx::cp_async_16(
          tile + offset_of<kKeyBytes>(row, piece), seen ? from : kv.k, seen ? kPieceBytes : 0);
    }
  }

  Shared& shared_;
  const LatentWork& work_;
  const RowBlock& block_;
  const int32_t* table_;
  int32_t keys_end_;
  int32_t begin_;
  int32_t end_;
  int32_t next_;   // to copy
  int stage_ = 0;  // the next wait()'s
};

// A warp's part of 16 rows that four warps share.
template <typename Cache, int kGroups, int kStages>
class LatentRowsOfWarp {
  using Shared = LatentMemory<kGroups, kStages>;
  static constexpr int kColumns = kMaxLatentDim / kStep / kAttentionWarps;

 public:
  using Pair = RowPair<kColumns * 8, 0, LatentWork>;

  __device__ __forceinline__ LatentRowsOfWarp(Shared& shared,
                                              const LatentWork& work,
                                              const RowBlock& block)
      : shared_(shared),
        latent_dim_(work.args.kv.head_dim),
        width_(latent_dim_ + static_cast<int32_t>(cached_head_dim(work.rope_dim))),
        pair_(work, block, group() * 16, first_d(), warp() == 0, nullptr) {
    load_queries(work, block);
  }

  [[nodiscard]] __device__ __forceinline__ Pair& pair() { return pair_; }

  // Takes one tile, with barriers of the block. Tiles that its rows do not see change nothing.
  __device__ __forceinline__ void take(LatentTiles<kGroups, kStages>& tiles, int32_t tile) {
    const std::byte* const keys = tiles.wait();
    const int32_t begin = tile * kAttentionTile;
    float s[8];
    multiply_keys(keys, s);
    pair_.finish_scores(begin, warp() * kStep, s);
    float tops[2];
    Pair::find_tops(s, tops);
    if (lane() % 4 == 0) {
      shared_.tops[group()][lane() / 4][warp()] = tops[0];
      shared_.tops[group()][lane() / 4 + 8][warp()] = tops[1];
    }
    __syncthreads();
    for (int h = 0; h < 2; ++h) {
      const float(&of_warps)[kAttentionWarps] = shared_.tops[group()][lane() / 4 + 8 * h];
      for (int w = 0; w < kAttentionWarps; ++w) tops[h] = higher_of(tops[h], of_warps[w]);
    }
    float c[2];
    pair_.raise(tops, c);
    float parts[2][1];
    pair_.weigh(s, parts);
    uint32_t weights[1][4];
    Pair::template pack<Cache>(s, weights);
    share(weights[0], parts);
    __syncthreads();
    pair_.rescale(c);
    multiply_values(keys);
    for (int h = 0; h < 2; ++h) {
      pair_.add_sum(h, shared_.sums[group()][(lane() / 4 + 8 * h) * 4 + lane() % 4], c);
    }
    tiles.release();
  }

 private:
  __device__ __forceinline__ static int group() {
    return static_cast<int>(threadIdx.x / kAttentionThreads);
  }

  __device__ __forceinline__ static int warp() {
    return static_cast<int>(threadIdx.x % kAttentionThreads / 32);
  }

  __device__ __forceinline__ static int lane() { return Pair::lane(); }

  __device__ __forceinline__ static int first_d() { return warp() * kColumns * kStep; }

  // Writes q, rounded, to shared memory; missing rows and elements are zeros. The first wait for a
  // tile shows it to all warps.
  __device__ __forceinline__ void load_queries(const LatentWork& work, const RowBlock& block) {
    const int32_t elements = query_width(work);
    for (int32_t r = static_cast<int32_t>(threadIdx.x / 32); r < kGroups * 16;
         r += kGroups * kAttentionWarps) {
      const float* const q = r < block.num_rows ? query_of(work, block, r) : nullptr;
      for (int32_t d = 2 * lane(); d < width_; d += 64) {
        const float low = q != nullptr && d < elements ? q[d] : 0.0F;
        const float high = q != nullptr && d + 1 < elements ? q[d + 1] : 0.0F;
        auto* const to = shared_.q + offset_of<kKeyBytes>(r, d / 8) + d % 8 * 2;
        *reinterpret_cast<uint32_t*>(to) = Cache::pack(low, high);
      }
    }
  }

  // Computes the products of 16 rows and the warp's 16 keys.
  __device__ __forceinline__ void multiply_keys(const std::byte* keys, float (&s)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i] = 0;
    const int matrix = lane() / 8;
    const int row = warp() * kStep + matrix / 2 * 8 + lane() % 8;
#pragma unroll 2
    for (int step = 0; step < width_ / kStep; ++step) {
      uint32_t a[4];
      load_rows<kKeyBytes>(a, shared_.q, group() * 16, 2 * step);
      uint32_t b[4];
      ptx::ldmatrix_x4(b, keys + offset_of<kKeyBytes>(row, 2 * step + matrix % 2));
      Cache::multiply(s, a, b[0], b[1]);
      Cache::multiply(s + 4, a, b[2], b[3]);
    }
  }

  // Writes the warp's weights of 16 keys, which other warps see after the next barrier.
  __device__ __forceinline__ void share(const uint32_t (&weights)[4], const float (&parts)[2][1]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane() / 4 + 8 * h;
      shared_.sums[group()][row * 4 + lane() % 4][warp()] = parts[h][0];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        auto* const to = shared_.weights[group()] +
                         offset_of<kKeyRowBytes>(row, 2 * warp() + half) + lane() % 4 * 4;
        *reinterpret_cast<uint32_t*>(to) = weights[2 * half + h];
      }
    }
  }

  __device__ __forceinline__ void multiply_values(const std::byte* values) {
    float(&o)[kColumns * 8] = pair_.outputs();
#pragma unroll 1
    for (int step = 0; step < kTileSteps; ++step) {
      uint32_t a[4];
      load_rows<kKeyRowBytes>(a, shared_.weights[group()], 0, 2 * step);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        if (first_d() + i * kStep >= latent_dim_) break;
        uint32_t b[4];
        load_columns<kKeyBytes>(b, values, step * kStep, first_d() / 8 + 2 * i);
        Cache::multiply(o + 8 * i, a, b[0], b[1]);
        Cache::multiply(o + 8 * i + 4, a, b[2], b[3]);
      }
    }
  }

  Shared& shared_;
  int32_t latent_dim_;
  int32_t width_;
  Pair pair_;
};

template <typename Cache, int kGroups, int kStages>
__global__ void __launch_bounds__(kGroups* kAttentionThreads, 1)
    latent_mma_kernel(const __grid_constant__ LatentWork work) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  using Shared = LatentMemory<kGroups, kStages>;
  GPU_DYN_SHARED(Shared, shared);
  attend_partitions<LatentRowsOfWarp<Cache, kGroups, kStages>, LatentTiles<kGroups, kStages>>(
      shared, work);
}

__global__ void __launch_bounds__(kAttentionThreads, 1)
    latent_fma_kernel(const __grid_constant__ LatentWork work) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  attend_rows<kFmaRows>(work);
}

__global__ void __launch_bounds__(kAttentionThreads, 1)
    latent_merge_kernel(const __grid_constant__ LatentWork work) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  merge_row(work);
}

// With fewer blocks than this, partitions get blocks of their own, but for those of requests whose
// partials find no room in kMostPartials.
constexpr int64_t kEnoughBlocks = 64;
// Partitions make at most about this many blocks: those without keys cost as much as starting them.
constexpr int64_t kMostBlocks = 1024;
constexpr int32_t kGroupRows = 16;

// How a call is cut; `blocks` are an upper bound for every step within limits.
struct Launch {
  int32_t rows_per_block;
  int64_t blocks;
  int32_t partitions;
};

int64_t row_blocks_of(const AttentionLimits& limits, bool chooses, int32_t rows_per_block) {
  if (chooses) return limits.num_tokens * ceil_div(limits.num_heads, rows_per_block);
  return int64_t{limits.num_tokens} * limits.num_heads / rows_per_block + limits.num_reqs;
}

// Whether a device has room for two tiles and two groups of rows.
bool has_room() { return ptx::device_has_wgmma(); }

Launch launch_of(const AttentionLimits& limits, DType dtype, bool chooses) {
  int32_t rows = dtype == DType::kF32 ? kFmaRows : kGroupRows;
  const int64_t blocks_of_two = row_blocks_of(limits, chooses, 2 * kGroupRows);
  if (dtype != DType::kF32 && has_room() && limits.num_heads > kGroupRows &&
      blocks_of_two >= 2 * kEnoughBlocks) {
    rows = 2 * kGroupRows;
  }
  return {.rows_per_block = rows,
          .blocks = row_blocks_of(limits, chooses, rows),
          .partitions = static_cast<int32_t>(ceil_div(limits.seq_len, kAttentionPartition))};
}

LatentWork work_of(const LatentAttentionArgs& args, const Launch& launch) {
  const LatentKvView& cache = args.cache;
  LatentWork work = {};
  work.args = as_one_head(args);
  work.share = RequestShare::kAll;
  work.num_reqs = static_cast<int32_t>(args.seq_lens.size());
  work.group = args.num_heads;
  work.rows_per_block = launch.rows_per_block;
  work.block_shift = std::countr_zero(static_cast<uint32_t>(cache.block_size));
  const int64_t slot = slot_bytes(launch.rows_per_block, cache.latent_dim);
  const int64_t room = static_cast<int64_t>(args.workspace.size()) / slot;
  const bool split = launch.partitions > 1 && launch.blocks < kEnoughBlocks && room > 0;
  work.partials = split ? reinterpret_cast<float*>(args.workspace.data()) : nullptr;
  const int64_t slots = std::min(room, launch.blocks * launch.partitions);
  work.num_slots = split ? static_cast<int32_t>(slots) : 0;
  work.partitions = launch.partitions;
  work.query_head_stride = args.query.head_stride;
  work.out_head_stride = args.out.head_stride;
  work.rope_dim = cache.rope_dim;
  work.chosen = args.chosen;
  return work;
}

template <typename Cache, int kGroups, int kStages>
void start_mma(Stream stream, const LatentWork& work, gpu::LaunchShape shape) {
  shape.threads = kGroups * kAttentionThreads;
  shape.shared_bytes = sizeof(LatentMemory<kGroups, kStages>);
  gpu::launch(stream, shape, latent_mma_kernel<Cache, kGroups, kStages>, work);
}

template <typename Cache>
void start_mma(Stream stream, const LatentWork& work, const gpu::LaunchShape& shape) {
  if (!has_room()) return start_mma<Cache, 1, 1>(stream, work, shape);
  return work.rows_per_block == kGroupRows ? start_mma<Cache, 1, 2>(stream, work, shape)
                                           : start_mma<Cache, 2, 2>(stream, work, shape);
}

}  // namespace

int64_t latent_partials_bytes(const AttentionLimits& limits) {
  if (limits.num_tokens == 0) return 0;
  const auto partitions = ceil_div(limits.seq_len, kAttentionPartition);
  if (partitions == 1) return 0;
  int64_t most = 0;
  for (const int32_t rows : {kFmaRows, kGroupRows}) {
    const int64_t blocks =
        std::max(row_blocks_of(limits, false, rows), row_blocks_of(limits, true, rows));
    const int64_t each = partitions * slot_bytes(rows, limits.head_dim);
    most = std::max(most, std::min(blocks, kEnoughBlocks - 1) * each);
  }
  return std::min(most, kMostPartials);
}

void launch_latent_attention(Stream stream, const LatentAttentionArgs& args) {
  const LatentKvView& cache = args.cache;
  CHECK(cache.latent_dim % 32 == 0 && cache.latent_dim <= kMaxLatentDim);
  CHECK_LE(cache.rope_dim, kMaxLatentRope);
  if (args.num_tokens == 0) return;
  const bool chooses = args.chosen.words != nullptr;
  const Launch launch = launch_of({.num_tokens = args.num_tokens,
                                   .num_reqs = static_cast<int32_t>(args.seq_lens.size()),
                                   .seq_len = most_keys(args, args.max_seq_len),
                                   .num_heads = args.num_heads,
                                   .num_kv_heads = 1,
                                   .head_dim = cache.latent_dim,
                                   .num_threads = 1},
                                  cache.dtype,
                                  chooses);
  const LatentWork work = work_of(args, launch);
  const bool split = work.partials != nullptr;
  const int64_t most = ceil_div(kMostBlocks, launch.blocks);
  const gpu::LaunchShape shape{.blocks_x = launch.blocks,
                               .blocks_y = split ? std::min<int64_t>(launch.partitions, most) : 1,
                               .threads = kAttentionThreads,
                               .shared_bytes = fma_shared_bytes<kFmaRows>(work),
                               .overlaps = overlaps(LaunchKind::kAttention, args.num_tokens)};
  if (cache.dtype == DType::kF32) {
    gpu::launch(stream, shape, latent_fma_kernel, work);
  } else if (cache.dtype == DType::kF16) {
    start_mma<F16Cache>(stream, work, shape);
  } else {
    CHECK(cache.dtype == DType::kBF16);
    start_mma<Bf16Cache>(stream, work, shape);
  }
  if (!split) return;
  gpu::launch(stream,
              {.blocks_x = launch.blocks,
               .blocks_y = launch.rows_per_block,
               .threads = kAttentionThreads,
               .overlaps = shape.overlaps},
              latent_merge_kernel,
              work);
}

}  // namespace sluice::kernels::cuda
