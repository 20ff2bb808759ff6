// SPDX-License-Identifier: Apache-2.0
// Functions that the attention kernels share: which rows a block has, which keys they see, and how
// the partitions of a row join. attention.cu plans, merges and finishes; attention_fma.cu is for
// caches of floats, attention_list.cu for few rows a request on Hopper, attention_wgmma.cu for
// prompts there over 16 bits, attention_mma.cu and its like for everything else.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.h"

namespace sluice::kernels::cuda {

inline constexpr int kAttentionThreads = 128;
inline constexpr int kAttentionWarps = kAttentionThreads / 32;
inline constexpr int32_t kPartitionTiles = kAttentionPartition / kAttentionTile;
inline constexpr float kLowest = -0x1.fffffep127F;

// Rows of a block for requests of few rows; requests with more take blocks of many rows.
inline constexpr int32_t kFewAttentionRows = 16;
inline constexpr int32_t kManyAttentionRows = 64;
inline constexpr int32_t kWgmmaAttentionRows = 128;
// Blocks of many rows are for heads up to this size; shared memory has no room for more.
inline constexpr int32_t kManyRowsWidth = 128;
// Above this size a head's q and outputs do not fit registers.
inline constexpr int32_t kWideHead = 256;
// wgmma takes caches in blocks of at least this many keys: the narrowest swizzle's row of K.
inline constexpr int32_t kWgmmaBlockSize = 16;

// The requests whose rows a launch takes.
enum class RequestShare : uint8_t {
  kAll,
  kManyRows,  // requests with more than kFewAttentionRows rows
  kFewRows,   // all other requests; a block is a request's
};

struct AttentionWork {
  AttentionArgs args;
  RequestShare share;
  int32_t num_reqs;
  int32_t group;  // query heads of a KV head
  int32_t rows_per_block;
  int32_t block_shift;  // key >> block_shift is its block of the cache
  // Slots of one partition of a row block and a KV head: [row][head_dim + 2]: o, m, l. Requests
  // have theirs in order, [row block][KV head][partition]. Null: each block walks all of its
  // partitions and finishes its rows, as do those of requests for which there are not enough slots.
  float* partials;
  int32_t num_slots;   // 0 without partials
  int32_t partitions;  // most of a row block
};

// A launch with room for `partitions` slots of every block, which are in the order of the blocks:
// no register has to hold their place. `num_slots` is 0.
struct RoomyWork : AttentionWork {};

// Blocks of a launch: row blocks times KV heads along x. Where partitions run side by side, along y
// one block for each partition or fewer, which then take partitions in turn.
struct AttentionGrid {
  int64_t blocks;
  int64_t partitions;
};

// For caches of floats, with the CPU's bits.
void launch_attention_fma(Stream stream, const AttentionWork& work, const AttentionGrid& grid);
// For caches of 16 and 8 bits, by the definition in launch.h.
void launch_attention_mma(Stream stream, const AttentionWork& work, const AttentionGrid& grid);
// The parts of launch_attention_mma for caches of 8 bits.
void launch_attention_int8(Stream stream, const AttentionWork& work, const AttentionGrid& grid);
void launch_attention_fp8(Stream stream, const AttentionWork& work, const AttentionGrid& grid);
// Whether launch_attention_wgmma takes such a cache.
bool wgmma_attends(const KvLayerView& kv);
// Gives launch_attention_mma's bits, with kWgmmaAttentionRows rows a block, on a device that has
// wgmma. A block takes one partition, or all.
void launch_attention_wgmma(Stream stream, const RoomyWork& work, const AttentionGrid& grid);

struct KeyRange {
  int32_t begin;
  int32_t end;
};

// Row r is query head r % group of the request's token r / group.
struct RowBlock {
  int32_t request;
  int32_t first_token;     // index of the request's first token in the call
  int32_t first_position;  // that token's
  int32_t first_row;
  int32_t num_rows;  // 0: nothing to do
  int32_t kv_head;
  int32_t slot = -1;       // of its first partition; below 0: there is no room (is_split)
  int32_t num_chosen = 0;  // the keys that its one token has chosen (latent_work.h)
};

struct RequestWork {
  int32_t first_token;     // index of the request's first token in the call
  int32_t first_position;  // that token's
  int32_t rows;
  int32_t row_blocks;  // 0: nothing to do
  int32_t partitions;  // most of a row block, from its own first one on
};

__device__ __forceinline__ RequestWork request_work(const AttentionWork& work, int32_t request) {
  const int32_t first_token = work.args.query_start_loc.data()[request];
  const int32_t tokens = work.args.query_start_loc.data()[request + 1] - first_token;
  const int32_t length = work.args.seq_lens.data()[request];
  const int32_t rows = tokens * work.group;
  const bool many = rows > kFewAttentionRows;
  const bool taken =
      work.share == RequestShare::kAll || many == (work.share == RequestShare::kManyRows);
  const int32_t position = length - tokens;
  const int32_t first =
      first_visible_key(position, work.args.window, work.args.is_chunked) / kAttentionPartition;
  const int32_t range = (length - 1) / kAttentionPartition - first + 1;
  return {.first_token = first_token,
          .first_position = position,
          .rows = rows,
          .row_blocks = taken ? (rows + work.rows_per_block - 1) / work.rows_per_block : 0,
          .partitions = range < work.partitions ? range : work.partitions};
}

// Returns how many slots the request's partials take.
__device__ __forceinline__ int32_t slots_of(const AttentionWork& work, const RequestWork& of) {
  return of.row_blocks * work.args.kv.num_kv_heads * of.partitions;
}

// Returns the slot of the first partition of a request's unit (row block and KV head), where the
// requests in front of it take `before` slots; below 0: there is no room for the request.
__device__ __forceinline__ int32_t first_slot(const AttentionWork& work,
                                              int32_t request,
                                              uint32_t before,
                                              int32_t unit) {
  if (work.num_slots == 0) return -1;
  const RequestWork of = request_work(work, request);
  const uint32_t end = before + static_cast<uint32_t>(slots_of(work, of));
  if (end > static_cast<uint32_t>(work.num_slots)) return -1;
  return static_cast<int32_t>(before) + unit * of.partitions;
}

// Each request's blocks start at the most that the rows before it can fill, so that a block finds
// its request by looking at one request at a time.
__device__ __forceinline__ int32_t first_block_of(const AttentionWork& work, int32_t request) {
  if (work.share == RequestShare::kFewRows) return request;
  const int64_t rows_before = int64_t{work.args.query_start_loc.data()[request]} * work.group;
  return static_cast<int32_t>(rows_before / work.rows_per_block) + request;
}

// Finds the block's rows; all of its threads call it. Last rows, which see most keys, come first.
__device__ __forceinline__ RowBlock find_rows(const AttentionWork& work) {
  GPU_SHARED(int32_t, found, 1);
  GPU_SHARED(uint32_t, slots_before, 1);
  const int32_t kv_heads = work.args.kv.num_kv_heads;
  const auto from_last = static_cast<int32_t>(gridDim.x - 1 - blockIdx.x);
  const int32_t index = from_last / kv_heads;
  if (threadIdx.x == 0) {
    found[0] = -1;
    slots_before[0] = 0;
  }
  __syncthreads();
  int32_t before = 0;  // of the thread's requests
  for (auto request = static_cast<int32_t>(threadIdx.x); request < work.num_reqs;
       request += static_cast<int32_t>(blockDim.x)) {
    if (first_block_of(work, request) > index) break;
    if (first_block_of(work, request + 1) > index) {
      found[0] = request;
    } else if (work.num_slots > 0) {
      before += slots_of(work, request_work(work, request));
    }
  }
  if (before > 0) gpu::shared_add(slots_before, static_cast<uint32_t>(before));
  __syncthreads();
  const int32_t request = found[0];
  if (request < 0) return {};
  const int32_t first_token = work.args.query_start_loc.data()[request];
  const int32_t tokens = work.args.query_start_loc.data()[request + 1] - first_token;
  const bool many = tokens * work.group > kFewAttentionRows;
  if (work.share != RequestShare::kAll && many != (work.share == RequestShare::kManyRows)) {
    return {};
  }
  const int32_t row_block = index - first_block_of(work, request);
  const int32_t first_row = row_block * work.rows_per_block;
  const int32_t rows = tokens * work.group - first_row;
  const int32_t kv_head = from_last % kv_heads;
  return {.request = request,
          .first_token = first_token,
          .first_position = work.args.seq_lens.data()[request] - tokens,
          .first_row = first_row,
          .num_rows = rows < 0                     ? 0
                      : rows < work.rows_per_block ? rows
                                                   : work.rows_per_block,
          .kv_head = kv_head,
          .slot = first_slot(work, request, slots_before[0], row_block * kv_heads + kv_head)};
}

// Returns the keys, absolute, that row r of the block sees.
__device__ __forceinline__ KeyRange visible_keys(const AttentionWork& work,
                                                 const RowBlock& block,
                                                 int32_t r) {
  const int32_t position = block.first_position + (block.first_row + r) / work.group;
  return {first_visible_key(position, work.args.window, work.args.is_chunked), position + 1};
}

// Returns the keys that any row sees; the last row's begin and end last.
template <typename Work>
__device__ __forceinline__ KeyRange visible_to_any(const Work& work, const RowBlock& block) {
  return {visible_keys(work, block, 0).begin, visible_keys(work, block, block.num_rows - 1).end};
}

// The first partition that a row of the block sees: number 0 of those kept for the merge.
template <typename Work>
__device__ __forceinline__ int32_t first_partition_of(const Work& work, const RowBlock& block) {
  return visible_to_any(work, block).begin / kAttentionPartition;
}

// Whether the row block's partitions run side by side; if not, one block walks all of them.
__device__ __forceinline__ bool is_split(const AttentionWork& /*work*/, const RowBlock& block) {
  return block.slot >= 0;
}

__device__ __forceinline__ bool is_split(const RoomyWork& work, const RowBlock& /*block*/) {
  return work.partials != nullptr;
}

// Returns the tiles that block `index` of a row block walks: those of its partition number `index`
// where partitions run side by side, none past the last one that its rows see; else the first block
// walks all.
template <typename Work>
__device__ __forceinline__ KeyRange tiles_of(const Work& work,
                                             const RowBlock& block,
                                             int32_t index) {
  const KeyRange keys = visible_to_any(work, block);
  const KeyRange tiles{keys.begin / kAttentionTile, (keys.end - 1) / kAttentionTile + 1};
  if (!is_split(work, block)) return index == 0 ? tiles : KeyRange{0, 0};
  const int32_t partition = first_partition_of(work, block) + index;
  return {std::max(tiles.begin, partition * kPartitionTiles),
          std::min(tiles.end, (partition + 1) * kPartitionTiles)};
}

// `keys` within [begin, begin + size), relative to begin; {0, 0}: none.
__device__ __forceinline__ KeyRange keys_within(KeyRange keys, int32_t begin, int32_t size) {
  const int32_t first = keys.begin > begin ? keys.begin - begin : 0;
  const int32_t last = keys.end - begin < size ? keys.end - begin : size;
  return first < last ? KeyRange{first, last} : KeyRange{0, 0};
}

// Returns the offset, in elements, of row r's head of `width` in q or out.
__device__ __forceinline__ int64_t head_at(
    const AttentionWork& work, const RowBlock& block, int32_t r, int64_t stride, int32_t width) {
  const int32_t row = block.first_row + r;
  const int32_t head = block.kv_head * work.group + row % work.group;
  return (block.first_token + row / work.group) * stride + int64_t{head} * width;
}

__device__ __forceinline__ int64_t head_at(const AttentionWork& work,
                                           const RowBlock& block,
                                           int32_t r,
                                           int64_t stride) {
  return head_at(work, block, r, stride, work.args.kv.head_dim);
}

// Returns where row r's query is, and how many elements it has.
__device__ __forceinline__ const float* query_of(const AttentionWork& work,
                                                 const RowBlock& block,
                                                 int32_t r) {
  return work.args.q + head_at(work, block, r, work.args.q_stride);
}

constexpr int32_t query_width(const AttentionWork& work) { return work.args.kv.head_dim; }

// Returns where row r's output goes.
__device__ __forceinline__ float* output_of(const AttentionWork& work,
                                            const RowBlock& block,
                                            int32_t r) {
  return work.args.out +
         head_at(work, block, r, work.args.out_stride, work.args.kv.value_width());
}

struct MergeFactors {
  float m;
  float keep;  // factor of the state so far
  float add;   // factor of the joining state
};

__device__ __forceinline__ MergeFactors merge_factors(float m, float m_next) {
  const float both = higher_of(m, m_next);
  return {both, exp_of(__fsub_rn(m, both)), exp_of(__fsub_rn(m_next, both))};
}

__device__ __forceinline__ float merged(const MergeFactors& factors, float x, float x_next) {
  return __fmaf_rn(x_next, factors.add, __fmul_rn(x, factors.keep));
}

struct RowState {
  float m;
  float l;
};

// The output is o * keep / l.
struct Finish {
  float keep;
  float l;
};

// Joins the sink, if any.
__device__ __forceinline__ Finish finish_of(const float* sink, const RowState& state) {
  if (sink == nullptr) return {.keep = 1.0F, .l = state.l};
  const MergeFactors factors = merge_factors(state.m, *sink);
  return {.keep = factors.keep, .l = merged(factors, state.l, 1.0F)};
}

__device__ __forceinline__ float finished(const Finish& finish, float o) {
  return __fdiv_rn(__fmul_rn(o, finish.keep), finish.l);
}

__device__ __forceinline__ const float* sink_of(const AttentionWork& work,
                                                const RowBlock& block,
                                                int32_t r) {
  if (work.args.sinks == nullptr) return nullptr;
  return work.args.sinks + block.kv_head * work.group + (block.first_row + r) % work.group;
}

// Returns what row r's scores gain for each token of distance.
__device__ __forceinline__ float slope_of(const AttentionWork& work,
                                          const RowBlock& block,
                                          int32_t r) {
  return work.args.slopes[block.kv_head * work.group + (block.first_row + r) % work.group];
}

__device__ __forceinline__ int64_t slot_of(const AttentionWork& /*work*/, const RowBlock& block) {
  return block.slot;
}

__device__ __forceinline__ int64_t slot_of(const RoomyWork& work, const RowBlock& /*block*/) {
  return int64_t{blockIdx.x} * work.partitions;
}

// Returns where a row's part of that partition is stored for the merge.
template <typename Work>
__device__ __forceinline__ float* partial_of(const Work& work,
                                             const RowBlock& block,
                                             int32_t index,
                                             int32_t r) {
  const int64_t slot = slot_of(work, block) + index;
  return work.partials + (slot * work.rows_per_block + r) * (int64_t{work.args.kv.head_dim} + 2);
}

// Partials take at most this many bytes, however long the context: a step whose lengths would take
// more finds that out on the device, and requests for which there is no room are not split.
inline constexpr int64_t kMostPartials = int64_t{512} << 20;

// Bytes of the partials of one partition of `rows`, as partial_of() places them.
constexpr int64_t slot_bytes(int32_t rows, int32_t head_dim) {
  return rows * (int64_t{head_dim} + 2) * int64_t{sizeof(float)};
}

// Merges one row of a row block, along y. Every thread folds m and l itself, and o for its d.
template <typename Work>
__device__ __forceinline__ void merge_row(const Work& work) {
  const RowBlock block = find_rows(work);
  const auto r = static_cast<int32_t>(blockIdx.y);
  if (r >= block.num_rows || !is_split(work, block)) return;
  const KeyRange keys = visible_keys(work, block, r);
  const int32_t base = first_partition_of(work, block);
  const int32_t first = keys.begin / kAttentionPartition - base;
  const int32_t last = (keys.end - 1) / kAttentionPartition - base;
  const int32_t width = work.args.kv.head_dim;
  float* const out = output_of(work, block, r);
  for (auto d = static_cast<int32_t>(threadIdx.x); d < work.args.kv.value_width();
       d += kAttentionThreads) {
    const float* partial = partial_of(work, block, first, r);
    RowState state{.m = partial[width], .l = partial[width + 1]};
    float output = partial[d];
    for (int32_t partition = first + 1; partition <= last; ++partition) {
      partial = partial_of(work, block, partition, r);
      const MergeFactors factors = merge_factors(state.m, partial[width]);
      output = merged(factors, output, partial[d]);
      state = {.m = factors.m, .l = merged(factors, state.l, partial[width + 1])};
    }
    out[d] = finished(finish_of(sink_of(work, block, r), state), output);
  }
}

}  // namespace sluice::kernels::cuda
