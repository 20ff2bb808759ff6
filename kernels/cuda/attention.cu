// SPDX-License-Identifier: Apache-2.0
// Attention's launches: the cut of rows and partitions into blocks, and the merge of partitions
// that ran side by side.
#include "kernels/attention.h"

#include <algorithm>
#include <bit>

#include "engine/core/status.h"
#include "kernels/cuda/attention_list_work.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

template <typename Work>
__global__ void __launch_bounds__(kAttentionThreads, 1)
    merge_kernel(const __grid_constant__ Work work) {
  gpu::ptx::start_next_launch();
  gpu::ptx::wait_for_launches();
  merge_row(work);
}

// The kernel that attends, by the cache and the device.
enum class Attends : uint8_t { kFma, kMma, kWgmma };

Attends attends(const KvLayerView& kv) {
  if (kv.dtype == DType::kF32) return Attends::kFma;
  return wgmma_attends(kv) && gpu::ptx::device_has_wgmma() ? Attends::kWgmma : Attends::kMma;
}

// With fewer blocks than this, partitions get blocks of their own: some for each of 132 SMs.
constexpr int64_t kEnoughBlocks = 512;
// Partitions make at most about this many blocks, except wgmma's. A recorded step has partitions
// for the longest possible context, and blocks without keys cost as much as starting them.
constexpr int64_t kMostBlocks = 2048;

struct Launch {
  RequestShare share;
  int32_t rows_per_block;
  int64_t blocks;
  int32_t partitions;  // most that the rows of one block see
};

Launch launch_of(const AttentionLimits& limits,
                 int32_t window,
                 RequestShare share,
                 int32_t rows_per_block) {
  const int64_t group = limits.num_heads / limits.num_kv_heads;
  // Like first_block_of: one block more per request than whole blocks of rows.
  const int64_t whole =
      share == RequestShare::kFewRows ? 0 : limits.num_tokens * group / rows_per_block;
  int64_t partitions = ceil_div(limits.seq_len, kAttentionPartition);
  if (window > 0) {
    const int64_t tokens = ceil_div(rows_per_block - 1, group) + 1;
    const int64_t keys = window + tokens - 1;
    partitions = std::min(partitions, ceil_div(keys - 1, kAttentionPartition) + 1);
  }
  return {.share = share,
          .rows_per_block = rows_per_block,
          .blocks = (whole + limits.num_reqs) * limits.num_kv_heads,
          .partitions = static_cast<int32_t>(partitions)};
}

// One launch, or two that each take the requests that suit it.
struct Plan {
  Launch launches[2];
  int count;
};

Plan plan_of(const AttentionLimits& limits, int32_t window, Attends by) {
  const int64_t group = limits.num_heads / limits.num_kv_heads;
  const int64_t rows = group * ceil_div(limits.num_tokens, limits.num_reqs);
  const auto one = [&](int32_t rows_per_block) {
    return Plan{{launch_of(limits, window, RequestShare::kAll, rows_per_block)}, 1};
  };
  if (rows <= 4) return one(4);
  if (rows <= 8) return one(8);
  const bool wide = limits.head_dim > kManyRowsWidth;
  if (by == Attends::kFma || wide || rows <= kFewAttentionRows) return one(kFewAttentionRows);
  // A step of one token a request has many rows only by its heads, which smaller blocks fit better.
  const bool prompts = limits.num_tokens > limits.num_reqs;
  const int32_t many = by == Attends::kWgmma && prompts ? kWgmmaAttentionRows : kManyAttentionRows;
  if (limits.num_reqs == 1) return one(many);
  return {{launch_of(limits, window, RequestShare::kManyRows, many),
           launch_of(limits, window, RequestShare::kFewRows, kFewAttentionRows)},
          2};
}

// Bytes of the partials of one partition.
int64_t partition_bytes(const AttentionLimits& limits, const Launch& launch) {
  return slot_bytes(launch.rows_per_block, limits.head_dim);
}

// Whether a launch is of use where only some of its requests are split: a recorded step's lengths
// are far below its limits, those of prompts are not.
bool splits_in_part(const AttentionLimits& limits, const Launch& launch) {
  return launch.rows_per_block <= kFewAttentionRows || limits.num_tokens <= limits.num_reqs;
}

// Bytes of a launch's partials for partitions side by side; 0: it has enough blocks without.
int64_t partials_bytes(const AttentionLimits& limits, const Launch& launch) {
  if (launch.partitions == 1 || launch.blocks >= kEnoughBlocks) return 0;
  const int64_t bytes = launch.blocks * launch.partitions * partition_bytes(limits, launch);
  if (bytes <= kMostPartials) return bytes;
  return splits_in_part(limits, launch) ? kMostPartials : 0;
}

// A launch by the list where each item is a partition: its blocks, the slots for partials of each
// block, and the bytes of all; 0 bytes: a row block has one partition and needs no merge.
struct ListShape {
  int64_t blocks;
  int64_t slots;
  int64_t bytes;
};

ListShape list_shape(const AttentionLimits& limits, const Launch& launch) {
  const int64_t items = launch.blocks * launch.partitions;
  const int64_t blocks = std::min<int64_t>(items, gpu::multiprocessors());
  const int64_t bytes = blocks * partition_bytes(limits, launch);  // of a slot of each block
  const int64_t slots = std::min({ceil_div(items, blocks),
                                  int64_t{launch.partitions},
                                  std::max<int64_t>(kMostPartials / bytes, 1)});
  return {blocks, slots, launch.partitions == 1 ? 0 : slots * bytes};
}

// Whether requests of few rows share a list of work.
bool has_list(const AttentionLimits& limits) {
  return limits.head_dim <= kWideHead && gpu::ptx::device_has_wgmma();
}

bool by_list(const AttentionLimits& limits, const KvLayerView& kv, const Launch& launch) {
  return launch.rows_per_block <= kFewAttentionRows && limits.num_reqs <= kMostListRequests &&
         list_attends(kv) && has_list(limits);
}

// `split`: partitions run side by side, as far as there is room.
AttentionWork work_of(const AttentionArgs& args,
                      const AttentionLimits& limits,
                      const Launch& launch,
                      bool split) {
  const auto room = static_cast<int64_t>(args.workspace.size()) / partition_bytes(limits, launch);
  const int64_t slots = std::min(room, launch.blocks * launch.partitions);
  return {.args = args,
          .share = launch.share,
          .num_reqs = static_cast<int32_t>(args.seq_lens.size()),
          .group = limits.num_heads / limits.num_kv_heads,
          .rows_per_block = launch.rows_per_block,
          .block_shift = std::countr_zero(static_cast<uint32_t>(args.kv.block_size)),
          .partials = split ? reinterpret_cast<float*>(args.workspace.data()) : nullptr,
          .num_slots = split ? static_cast<int32_t>(slots) : 0,
          .partitions = launch.partitions};
}

void start_list(Stream stream,
                const AttentionArgs& args,
                const AttentionLimits& limits,
                const Launch& launch) {
  const ListShape shape = list_shape(limits, launch);
  const auto room = static_cast<int64_t>(args.workspace.size());
  const int64_t of_each = shape.blocks * partition_bytes(limits, launch);
  const int64_t slots = std::min(shape.slots, room / of_each);
  const bool split = shape.bytes > 0 && slots > 0;
  const int64_t row_blocks = std::min<int64_t>(launch.blocks, gpu::multiprocessors());
  launch_attention_list(stream,
                        {.attention = work_of(args, limits, launch, split),
                         .blocks = static_cast<int32_t>(split ? shape.blocks : row_blocks),
                         .slots = static_cast<int32_t>(slots)});
}

template <typename Work>
void start_merge(Stream stream, const Work& work, const AttentionGrid& grid) {
  gpu::launch(stream,
              {.blocks_x = grid.blocks,
               .blocks_y = work.rows_per_block,
               .threads = kAttentionThreads,
               .overlaps = overlaps(LaunchKind::kAttention, work.args.num_tokens)},
              merge_kernel<Work>,
              work);
}

void start(Stream stream,
           const AttentionArgs& args,
           const AttentionLimits& limits,
           const Launch& launch) {
  if (args.slopes == nullptr && by_list(limits, args.kv, launch)) {
    return start_list(stream, args, limits, launch);
  }
  const int64_t bytes = partials_bytes(limits, launch);
  const int64_t needed = splits_in_part(limits, launch) ? partition_bytes(limits, launch) : bytes;
  const bool split = bytes > 0 && needed <= static_cast<int64_t>(args.workspace.size());
  const AttentionWork work = work_of(args, limits, launch, split);
  const bool wgmma = args.kv.dtype != DType::kF32 && launch.rows_per_block == kWgmmaAttentionRows;
  const int64_t most = wgmma ? launch.partitions : ceil_div(kMostBlocks, launch.blocks);
  const AttentionGrid grid{.blocks = launch.blocks,
                           .partitions = split ? std::min<int64_t>(launch.partitions, most) : 1};
  if (wgmma) {
    RoomyWork roomy{work};
    roomy.num_slots = 0;
    launch_attention_wgmma(stream, roomy, grid);
    if (split) start_merge(stream, roomy, grid);
    return;
  }
  if (args.kv.dtype == DType::kF32) {
    launch_attention_fma(stream, work, grid);
  } else {
    launch_attention_mma(stream, work, grid);
  }
  if (split) start_merge(stream, work, grid);
}

}  // namespace

int32_t max_attention_head_dim() {
  const int capability = gpu::compute_capability();
  const bool has_room = capability == 80 || capability == 87 || capability / 10 == 9 ||
                        capability / 10 == 10;
  return has_room ? kMaxAttentionHeadDim : kWideHead;
}

int64_t attention_workspace_bytes(const AttentionLimits& limits, int32_t window) {
  if (limits.num_tokens == 0) return 0;
  int64_t most = 0;
  for (const Attends by : {Attends::kFma, Attends::kMma, Attends::kWgmma}) {
    const Plan plan = plan_of(limits, window, by);
    for (int i = 0; i < plan.count; ++i) {
      const Launch& launch = plan.launches[i];
      most = std::max(most, partials_bytes(limits, launch));
      if (by == Attends::kFma || !has_list(limits)) continue;
      if (launch.rows_per_block > kFewAttentionRows) continue;
      most = std::max(most, list_shape(limits, launch).bytes);
    }
  }
  return most;
}

int64_t mixed_attention_workspace_bytes(const AttentionLimits& limits) {
  if (limits.num_tokens == 0 || !has_list(limits)) return 0;
  AttentionLimits step = limits;
  step.num_reqs = std::min(limits.num_reqs, kMostListRequests);
  if (limits.head_dim <= kManyRowsWidth) {
    // plan_of: with more tokens than this, requests of more rows take blocks of many rows.
    const int32_t group = limits.num_heads / limits.num_kv_heads;
    const int64_t few = int64_t{step.num_reqs} * std::max(kFewAttentionRows / group, 1);
    step.num_tokens = static_cast<int32_t>(std::min<int64_t>(limits.num_tokens, few));
  }
  return list_shape(step, launch_of(step, 0, RequestShare::kAll, kFewAttentionRows)).bytes;
}

void launch_attention(Stream stream, const AttentionArgs& args, const AttentionLimits& limits) {
  CHECK(args.then == nullptr);
  CHECK(limits.num_heads == args.num_heads && limits.num_kv_heads == args.kv.num_kv_heads);
  CHECK(limits.head_dim == args.kv.head_dim);
  if (limits.num_tokens == 0) return;
  const Plan plan = plan_of(limits, args.window, attends(args.kv));
  for (int i = 0; i < plan.count; ++i) start(stream, args, limits, plan.launches[i]);
}

}  // namespace sluice::kernels::cuda
