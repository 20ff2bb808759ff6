// SPDX-License-Identifier: Apache-2.0
// kernels/sampling.h with the CPU's bits, one block a row: the likeliest token, the one with the
// largest noisy logit, log-probability of the chosen one. No GPU has run it yet.
#include "kernels/sampling.h"

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/narrow.h"
#include "kernels/cuda/rows.h"

namespace sluice::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int32_t kSumLanes = 16;
constexpr int32_t kSumTile = 2048;

struct Row {
  const float* x;
  const uint32_t* mask;  // null: all tokens are candidates
  int32_t n;
};

__device__ __forceinline__ bool is_candidate(const Row& row, int32_t token) {
  return row.mask == nullptr || (row.mask[token / 32] >> (token % 32) & 1U) != 0;
}

// Orders like (value descending, token ascending), the greatest first; 0 comes after all. Both
// zeros are one value.
__device__ __forceinline__ uint64_t rank_of(float value, int32_t token) {
  const uint32_t bits = bits_of(__fadd_rn(value, 0.0F));
  const uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(~token);
}

__device__ __forceinline__ int32_t token_of(uint64_t rank) {
  return static_cast<int32_t>(~static_cast<uint32_t>(rank));
}

__device__ __forceinline__ uint64_t higher_rank(uint64_t a, uint64_t b) { return a > b ? a : b; }

__device__ __forceinline__ uint64_t highest_of_warp(uint64_t rank) {
  const auto high = static_cast<uint32_t>(rank >> 32);
  const uint32_t highest = __reduce_max_sync(kAllLanes, high);
  const uint32_t low = high == highest ? static_cast<uint32_t>(rank) : 0U;
  return uint64_t{highest} << 32 | __reduce_max_sync(kAllLanes, low);
}

// To every thread of the block, the greatest of theirs.
__device__ __forceinline__ uint64_t highest_of_block(uint64_t rank) {
  GPU_SHARED(uint64_t, by_warp, kWarps);
  const uint64_t mine = highest_of_warp(rank);
  if (threadIdx.x % 32 == 0) by_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  uint64_t highest = by_warp[0];
  for (int i = 1; i < kWarps; ++i) highest = higher_rank(highest, by_warp[i]);
  __syncthreads();  // before the next call writes there
  return highest;
}

struct Scan {
  uint64_t candidate;  // the first
  uint64_t any;        // masked or not
  bool finite;         // every logit
};

__device__ __forceinline__ Scan scan_logits(const Row& row) {
  uint64_t candidate = 0;
  uint64_t any = 0;
  int32_t largest = 0;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < row.n; i += kThreads) {
    const float x = row.x[i];
    const int32_t bits = magnitude_bits(x);
    largest = bits > largest ? bits : largest;
    const uint64_t rank = rank_of(x, i);
    any = higher_rank(any, rank);
    if (is_candidate(row, i)) candidate = higher_rank(candidate, rank);
  }
  const uint64_t widest = highest_of_block(static_cast<uint64_t>(largest));
  return {.candidate = highest_of_block(candidate),
          .any = highest_of_block(any),
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

// As in kernels/cpu/sampling_impl.h, which says why.
__device__ __forceinline__ float gumbel(uint32_t bits) {
  const auto n = static_cast<int32_t>(bits >> 1 | 1U);
  const float rest = __fmul_rn(__int2float_rn(INT32_MAX - n + 1), 0x1p-31F);
  const LogParts far = split_for_log(__fmul_rn(__int2float_rn(n), 0x1p-31F));
  const bool near = n > 0x5A82799A;
  const float log_u = near ? log_of_parts(-rest, 0.0F) : log_of_parts(far.f, far.e);
  return -log_of(-log_u);
}

// The candidate with the largest (x - max) / temperature + gumbel. A thread takes the four tokens
// of a counter.
__device__ __forceinline__ int32_t gumbel_argmax(const Row& row,
                                                 const SampleRow& asked,
                                                 float max) {
  uint64_t best = 0;
  const auto position = static_cast<uint64_t>(asked.position);
  for (auto counter = static_cast<int32_t>(threadIdx.x); counter / 16 * 64 < row.n;
       counter += kThreads) {
    const Philox random = philox(static_cast<uint32_t>(counter), position, asked.seed);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int32_t token = counter / 16 * 64 + 16 * word + counter % 16;
      if (token >= row.n || !is_candidate(row, token)) continue;
      const float z = __fdiv_rn(__fsub_rn(row.x[token], max), asked.temperature);
      best = higher_rank(best, rank_of(__fadd_rn(z, gumbel(random.word[word])), token));
    }
  }
  return token_of(highest_of_block(best));
}

// max + log(sum of exp(x - max)), in lanes 0-15 of warp 0: the sums are chains, so all threads make
// a tile's terms and 16 add them.
__device__ __forceinline__ float log_sum_exp(const Row& row, float max) {
  GPU_SHARED(float, terms, kSumTile);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  float sum = 0;
  for (int32_t begin = 0; begin < row.n; begin += kSumTile) {
    const int32_t count = row.n - begin < kSumTile ? row.n - begin : kSumTile;
    for (int32_t i = thread; i < count; i += kThreads) {
      terms[i] = exp_of(__fsub_rn(row.x[begin + i], max));
    }
    __syncthreads();
    if (thread < kSumLanes) {
      for (int32_t i = thread; i < count; i += kSumLanes) sum = __fadd_rn(sum, terms[i]);
    }
    __syncthreads();
  }
  if (thread >= kSumLanes) return 0;
  constexpr uint32_t kHalfWarp = 0x0000FFFFU;
  for (int half = kSumLanes / 2; half >= 1; half /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(kHalfWarp, sum, half));
  }
  return __fadd_rn(max, log_of(sum));
}

__global__ void __launch_bounds__(kThreads, 1) sample_kernel(SampleRow* rows, int32_t vocab_size) {
  SampleRow& asked = rows[blockIdx.x];
  const Row row{.x = asked.logits, .mask = asked.allowed_mask, .n = vocab_size};
  const Scan scan = scan_logits(row);
  const bool possible = scan.finite && can_sample(asked, vocab_size);
  int32_t token = kInvalidToken;
  if (possible && !asked.choose) {
    token = asked.token;
  } else if (possible) {
    const int32_t first = token_of(scan.candidate);
    const bool greedy = asked.temperature == 0 || asked.top_k == 1;
    token = greedy ? first : gumbel_argmax(row, asked, row.x[first]);
  }
  if (threadIdx.x == 0) {
    asked.finite = scan.finite;
    if (asked.choose || !possible) asked.token = token;
  }
  const bool wants_logprob = asked.num_logprobs >= 0 || !asked.choose;
  if (!possible || !wants_logprob) return;
  const float log_sum = log_sum_exp(row, row.x[token_of(scan.any)]);
  if (threadIdx.x == 0) asked.logprob = __fsub_rn(row.x[token], log_sum);
}

}  // namespace

void launch_sample(Stream stream, const SampleArgs& args) {
  gpu::launch(stream,
              {.blocks_x = static_cast<int64_t>(args.rows.size()), .threads = kThreads},
              sample_kernel,
              args.rows.data(),
              args.vocab_size);
}

}  // namespace sluice::kernels::cuda
