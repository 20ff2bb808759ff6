// SPDX-License-Identifier: Apache-2.0
// A row of logits for the kernels of kernels/sampling.h: the order of its tokens, the noise that
// chooses one, the weights of filters. Blocks have kSampleThreads threads.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/order.h"
#include "kernels/cuda/rows.h"
#include "kernels/sampling.h"

namespace sluice::kernels::cuda {

inline constexpr int kSampleThreads = 512;
inline constexpr int kSampleWarps = kSampleThreads / 32;

struct LogitRow {
  const float* x;
  const uint32_t* mask;  // null: all tokens are candidates
  int32_t n;
};

__device__ __forceinline__ bool is_candidate(const LogitRow& row, int32_t token) {
  return row.mask == nullptr || (row.mask[token / 32] >> (token % 32) & 1U) != 0;
}

// Gives every thread of the block the greatest of their ranks.
__device__ __forceinline__ uint64_t highest_of_block(uint64_t rank) {
  GPU_SHARED(uint64_t, by_warp, kSampleWarps);
  const uint64_t mine = highest_of_warp(rank);
  if (threadIdx.x % 32 == 0) by_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const uint64_t highest = highest_of_warp(lane < kSampleWarps ? by_warp[lane] : 0);
  __syncthreads();  // the next call writes there
  return highest;
}

// The results of a pass over a row; ranks are 0 where there is none.
struct Scan {
  uint64_t candidate;  // the first one
  uint64_t any;        // the first token, masked or not
  bool finite;         // every logit is
};

// One thread's results so far.
struct Seen {
  uint64_t candidate = 0;
  uint64_t any = 0;
  int32_t largest = 0;  // magnitude, in bits

  // Returns the rank of token i, 0 if it is no candidate.
  __device__ __forceinline__ uint64_t take(const LogitRow& row, float x, int32_t i) {
    const int32_t bits = magnitude_bits(x);
    largest = bits > largest ? bits : largest;
    const uint64_t rank = rank_of(x, i);
    any = higher_rank(any, rank);
    const uint64_t own = is_candidate(row, i) ? rank : 0;
    candidate = higher_rank(candidate, own);
    return own;
  }
};

// Joins the results of the block's threads; all of them call it.
__device__ __forceinline__ Scan scan_of(const Seen& seen) {
  const uint64_t widest = highest_of_block(static_cast<uint64_t>(seen.largest));
  return {.candidate = highest_of_block(seen.candidate),
          .any = highest_of_block(seen.any),
          .finite = widest < static_cast<uint64_t>(kInfinityBits)};
}

struct Philox {
  uint32_t word[4];
};

// Philox4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
__device__ __forceinline__ Philox philox(uint32_t counter, uint64_t position, uint64_t seed) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  uint32_t c[4] = {counter, low(position), high(position), 0};
  uint32_t key[2] = {low(seed), high(seed)};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{c[0]} * 0xD2511F53U;
    const uint64_t product1 = uint64_t{c[2]} * 0xCD9E8D57U;
    c[0] = high(product1) ^ c[1] ^ key[0];
    c[1] = low(product1);
    c[2] = high(product0) ^ c[3] ^ key[1];
    c[3] = low(product0);
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return {{c[0], c[1], c[2], c[3]}};
}

// Returns the Gumbel noise of 32 random bits; kernels/cpu/rows/sampling_impl.h explains it.
__device__ __forceinline__ float gumbel(uint32_t bits) {
  const auto n = static_cast<int32_t>(bits >> 1 | 1U);
  const float rest = __fmul_rn(__int2float_rn(INT32_MAX - n + 1), 0x1p-31F);
  const LogParts far = split_for_log(__fmul_rn(__int2float_rn(n), 0x1p-31F));
  const bool near = n > 0x5A82799A;
  const float log_u = near ? log_of_parts(-rest, 0.0F) : log_of_parts(far.f, far.e);
  return -log_of(-log_u);
}

// Returns a token's rank by (x - max) / temperature + gumbel(bits).
__device__ __forceinline__ uint64_t
noisy_rank(const LogitRow& row, const SampleRow& asked, float max, int32_t token, uint32_t bits) {
  const float z = __fdiv_rn(__fsub_rn(row.x[token], max), asked.temperature);
  return rank_of(__fadd_rn(z, gumbel(bits)), token);
}

// Returns the highest noisy rank among this thread's candidates whose ranks are `kept` or higher.
// The block shares the row's counters [begin, end); a thread takes the four tokens of a counter.
__device__ __forceinline__ uint64_t best_noise(const LogitRow& row,
                                               const SampleRow& asked,
                                               float max,
                                               uint64_t kept,
                                               int32_t begin,
                                               int32_t end) {
  uint64_t best = 0;
  const auto position = static_cast<uint64_t>(asked.position);
  for (auto counter = begin + static_cast<int32_t>(threadIdx.x); counter < end;
       counter += kSampleThreads) {
    const Philox random = philox(static_cast<uint32_t>(counter), position, asked.seed);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int32_t token = counter / 16 * 64 + 16 * word + counter % 16;
      if (token >= row.n || !is_candidate(row, token)) continue;
      if (rank_of(row.x[token], token) < kept) continue;
      best = higher_rank(best, noisy_rank(row, asked, max, token, random.word[word]));
    }
  }
  return best;
}

// Returns how many counters the first n tokens of a row take.
__device__ __forceinline__ int32_t counters_of(int32_t n) { return (n + 63) / 64 * 16; }

using Amount = unsigned long long;  // the 64-bit type of shared_add

// Returns a weight in whole units of 2^-40, which add up exactly in any order.
__device__ __forceinline__ Amount units_of(float weight) {
  return __float2ull_rz(__fmul_rn(weight, 0x1p40F));
}

// Returns the units with which top_p ends, given `all`, the weights' sum.
__device__ __forceinline__ double enough_of(const SampleRow& asked, float all) {
  return __dmul_rn(__dmul_rn(static_cast<double>(asked.top_p), 0x1p40), static_cast<double>(all));
}

__device__ __forceinline__ float weight_of(const SampleRow& asked, float max, float x) {
  return exp_of(__fdiv_rn(__fsub_rn(x, max), asked.temperature));
}

__device__ __forceinline__ bool takes_first(const SampleRow& asked) {
  return asked.temperature == 0 || asked.top_k == 1;
}

__device__ __forceinline__ bool has_top_k(const SampleRow& asked, int32_t vocab_size) {
  return asked.top_k > 0 && asked.top_k < vocab_size;
}

__device__ __forceinline__ bool is_filtered(const SampleRow& asked, int32_t vocab_size) {
  return has_top_k(asked, vocab_size) || asked.top_p < 1.0F || asked.min_p > 0;
}

// Whether top_p ends by the weights of all candidates, not of those that top_k leaves.
__device__ __forceinline__ bool needs_all_weights(const SampleRow& asked, int32_t vocab_size) {
  return asked.choose && !takes_first(asked) && asked.top_p < 1.0F && !has_top_k(asked, vocab_size);
}

__device__ __forceinline__ bool needs_logprob(const SampleRow& asked) {
  return !asked.choose || asked.num_logprobs >= 0;
}

}  // namespace sluice::kernels::cuda
