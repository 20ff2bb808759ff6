// SPDX-License-Identifier: Apache-2.0
// Latent attention's rows for the functions of attention_rows.h: one KV head, whose keys are
// latents and rotated parts, whose values are latents. Where tokens choose their keys, a block has
// heads of one token, and its keys are the chosen ones, numbered in ascending order.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/gpu.h"
#include "kernels/latent_attention.h"

namespace sluice::kernels::cuda {

// args.kv.k has the latents, of head_dim elements, and args.kv.v the rotated parts.
struct LatentWork : AttentionWork {
  int64_t query_head_stride;
  int64_t out_head_stride;
  int32_t rope_dim;
  ChosenKeys chosen;
};

inline constexpr int kMostLatentThreads = 256;

constexpr bool chooses(const LatentWork& work) { return work.chosen.words != nullptr; }

constexpr int32_t query_width(const LatentWork& work) {
  return work.args.kv.head_dim + work.rope_dim;
}

// Returns the blocks of a token that chooses its keys.
constexpr int32_t blocks_of_token(const LatentWork& work) {
  return (work.group + work.rows_per_block - 1) / work.rows_per_block;
}

__device__ __forceinline__ KeyRange visible_keys(const LatentWork& work,
                                                 const RowBlock& block,
                                                 int32_t r) {
  if (chooses(work)) return {0, block.num_chosen};
  return visible_keys(static_cast<const AttentionWork&>(work), block, r);
}

__device__ __forceinline__ const float* query_of(const LatentWork& work,
                                                 const RowBlock& block,
                                                 int32_t r) {
  const int32_t row = block.first_row + r;
  return work.args.q + (block.first_token + row / work.group) * work.args.q_stride +
         row % work.group * work.query_head_stride;
}

__device__ __forceinline__ float* output_of(const LatentWork& work,
                                            const RowBlock& block,
                                            int32_t r) {
  const int32_t row = block.first_row + r;
  return work.args.out + (block.first_token + row / work.group) * work.args.out_stride +
         row % work.group * work.out_head_stride;
}

__device__ __forceinline__ int32_t count_bits(uint64_t word) {
  return __popc(static_cast<uint32_t>(word)) + __popc(static_cast<uint32_t>(word >> 32));
}

// A thread's run of the words of a block's token, and how many keys are chosen in front of it and
// in all.
struct ChosenRun {
  const uint64_t* words;
  int32_t begin;
  int32_t end;
  int32_t before;
  int32_t total;
};

// All threads of the block call it. It begins and ends with a barrier.
__device__ __forceinline__ ChosenRun chosen_run(const LatentWork& work,
                                                int32_t token,
                                                int32_t num_keys) {
  GPU_SHARED(int32_t, counts, kMostLatentThreads);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto threads = static_cast<int32_t>(blockDim.x);
  const auto words = static_cast<int32_t>(chosen_words(num_keys));
  const int32_t each = (words + threads - 1) / threads;
  ChosenRun run{.words = work.chosen.words + token * work.chosen.stride,
                .begin = thread * each < words ? thread * each : words,
                .end = (thread + 1) * each < words ? (thread + 1) * each : words,
                .before = 0,
                .total = 0};
  int32_t count = 0;
  for (int32_t w = run.begin; w < run.end; ++w) count += count_bits(run.words[w]);
  __syncthreads();
  counts[thread] = count;
  __syncthreads();
  for (int32_t t = 0; t < threads; ++t) {
    run.before += t < thread ? counts[t] : 0;
    run.total += counts[t];
  }
  return run;
}

// Writes the positions of the chosen keys [begin, begin + kAttentionPartition), counted in
// ascending order, to `positions`. All threads of the block call it; it ends with a barrier.
__device__ __forceinline__ void list_chosen(const LatentWork& work,
                                            const RowBlock& block,
                                            int32_t begin,
                                            int32_t* positions) {
  const int32_t token = block.first_token;
  const ChosenRun run = chosen_run(work, token, block.first_position + 1);
  int32_t number = run.before - begin;
  for (int32_t w = run.begin; w < run.end && number < kAttentionPartition; ++w) {
    for (uint64_t left = run.words[w]; left != 0; left &= left - 1, ++number) {
      if (number < 0 || number >= kAttentionPartition) continue;
      positions[number] = w * 64 + count_bits((left & (~left + 1)) - 1);
    }
  }
  __syncthreads();
}

// Finds the block's rows; all of its threads call it.
__device__ __forceinline__ RowBlock find_rows(const LatentWork& work) {
  if (!chooses(work)) return find_rows(static_cast<const AttentionWork&>(work));
  GPU_SHARED(int32_t, found, 1);
  const auto from_last = static_cast<int32_t>(gridDim.x - 1 - blockIdx.x);
  const int32_t token = from_last / blocks_of_token(work);
  if (threadIdx.x == 0) found[0] = -1;
  __syncthreads();
  const int32_t* const starts = work.args.query_start_loc.data();
  for (auto request = static_cast<int32_t>(threadIdx.x); request < work.num_reqs;
       request += static_cast<int32_t>(blockDim.x)) {
    if (starts[request] <= token && starts[request + 1] > token) found[0] = request;
  }
  __syncthreads();
  const int32_t request = found[0];
  if (request < 0) return {};
  const int32_t position = work.args.seq_lens.data()[request] - starts[request + 1] + token;
  const int32_t first_row = from_last % blocks_of_token(work) * work.rows_per_block;
  const int32_t rows = work.group - first_row;
  const bool splits = from_last < work.num_slots / work.partitions;
  return {.request = request,
          .first_token = token,
          .first_position = position,
          .first_row = first_row,
          .num_rows = rows < work.rows_per_block ? rows : work.rows_per_block,
          .kv_head = 0,
          .slot = splits ? from_last * work.partitions : -1,
          .num_chosen = chosen_run(work, token, position + 1).total};
}

}  // namespace sluice::kernels::cuda
