// SPDX-License-Identifier: Apache-2.0
// kernels/sampling.h with the CPU's bits, one block a row. Where a filter ends, and the likeliest
// tokens of a row, are found digit by digit of the order (radix selection): nothing is sorted but
// what is asked for.
#include "kernels/sampling.h"

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/order.h"
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

// The candidate with the largest (x - max) / temperature + gumbel, of those that are kept: with
// ranks from `kept` up. A thread takes the four tokens of a counter.
__device__ __forceinline__ int32_t gumbel_argmax(const Row& row,
                                                 const SampleRow& asked,
                                                 float max,
                                                 uint64_t kept) {
  uint64_t best = 0;
  const auto position = static_cast<uint64_t>(asked.position);
  for (auto counter = static_cast<int32_t>(threadIdx.x); counter / 16 * 64 < row.n;
       counter += kThreads) {
    const Philox random = philox(static_cast<uint32_t>(counter), position, asked.seed);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int32_t token = counter / 16 * 64 + 16 * word + counter % 16;
      if (token >= row.n || !is_candidate(row, token)) continue;
      if (rank_of(row.x[token], token) < kept) continue;
      const float z = __fdiv_rn(__fsub_rn(row.x[token], max), asked.temperature);
      best = higher_rank(best, rank_of(__fadd_rn(z, gumbel(random.word[word])), token));
    }
  }
  return index_of(highest_of_block(best));
}

// Memory of functions that are there several times, as they take functions, and would have it as
// often.
__device__ __forceinline__ float* sum_terms() {
  GPU_SHARED(float, terms, kSumTile);
  return terms;
}

// To every thread: the sum of term(i), i in [0, n), in 16 lanes (i % 16, in order) folded by
// halves. The lanes are chains, so all threads make a tile's terms and 16 add them.
template <typename Term>
__device__ __forceinline__ float sum_in_lanes(int32_t n, Term term) {
  float* const terms = sum_terms();
  GPU_SHARED(float, total, 1);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  float sum = 0;
  for (int32_t begin = 0; begin < n; begin += kSumTile) {
    const int32_t count = n - begin < kSumTile ? n - begin : kSumTile;
    for (int32_t i = thread; i < count; i += kThreads) terms[i] = term(begin + i);
    __syncthreads();
    if (thread < kSumLanes) {
      for (int32_t i = thread; i < count; i += kSumLanes) sum = __fadd_rn(sum, terms[i]);
    }
    __syncthreads();
  }
  if (thread < kSumLanes) {
    constexpr uint32_t kHalfWarp = 0x0000FFFFU;
    for (int half = kSumLanes / 2; half >= 1; half /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(kHalfWarp, sum, half));
    }
    if (thread == 0) total[0] = sum;
  }
  __syncthreads();
  sum = total[0];
  __syncthreads();  // before the next call writes there
  return sum;
}

using Amount = unsigned long long;  // what shared_add takes of 64 bits

constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kThreadBins = kBins / kThreads;
constexpr int kGroups = 16;  // of threads
constexpr int kGroupThreads = kThreads / kGroups;

// The candidates with the same digit.
struct Bin {
  Amount above;  // the sum of amounts of higher ranks
  int32_t digit;
  uint32_t count;  // 0: no candidate is the one
};

// A digit's candidates and their amounts; a thread owns kThreadBins bins, thread 0 the highest.
struct Histogram {
  Amount amount[kBins];
  Amount of_thread[kThreads];
  Amount of_group[kGroups];
  uint32_t count[kBins];
  Bin found;
};

__device__ __forceinline__ Histogram& histogram() {
  GPU_SHARED(Histogram, bins, 1);
  return bins[0];
}

// The bin in which the sum of amounts over `above` and the bins from the highest down is reached
// first. By all threads, when all have added what they have to.
template <typename Reached>
__device__ __forceinline__ Bin bin_where(Histogram& bins, Amount above, Reached reached) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int highest = kBins - 1 - thread * kThreadBins;
  Amount own = 0;
  for (int i = 0; i < kThreadBins; ++i) own += bins.amount[highest - i];
  bins.of_thread[thread] = own;
  if (thread == 0) bins.found = {.above = 0, .digit = 0, .count = 0};
  __syncthreads();
  if (thread < kGroups) {
    Amount sum = 0;
    for (int i = 0; i < kGroupThreads; ++i) sum += bins.of_thread[thread * kGroupThreads + i];
    bins.of_group[thread] = sum;
  }
  __syncthreads();
  Amount sum = above;
  const int group = thread / kGroupThreads;
  for (int i = 0; i < group; ++i) sum += bins.of_group[i];
  for (int i = group * kGroupThreads; i < thread; ++i) sum += bins.of_thread[i];
  if (!reached(sum) && reached(sum + own)) {
    int digit = highest;
    for (; !reached(sum + bins.amount[digit]); --digit) sum += bins.amount[digit];
    bins.found = {.above = sum, .digit = digit, .count = bins.count[digit]};
  }
  __syncthreads();
  return bins.found;
}

// The candidate, of those with ranks below `end`, with which the sum of amount(logit) from the
// highest rank down is reached(sum); 0 if it never is. reached(0) must be false.
template <typename AmountOf, typename Reached>
__device__ __forceinline__ uint64_t
rank_where(const Row& row, uint64_t end, AmountOf amount, Reached reached) {
  Histogram& bins = histogram();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  Amount above = 0;
  uint64_t prefix = 0;  // the rank from bit `known` up
  int known = 64;
  const auto has_prefix = [&](uint64_t rank) {
    return rank < end && (known == 64 || rank >> known == prefix);
  };
  while (known > 0) {
    const int shift = known > kDigitBits ? known - kDigitBits : 0;
    for (int i = thread; i < kBins; i += kThreads) {
      bins.amount[i] = 0;
      bins.count[i] = 0;
    }
    __syncthreads();
    for (int32_t i = thread; i < row.n; i += kThreads) {
      const uint64_t rank = rank_of(row.x[i], i);
      if (!is_candidate(row, i) || !has_prefix(rank)) continue;
      const auto digit = static_cast<int>(rank >> shift & (kBins - 1));
      gpu::shared_add(&bins.amount[digit], amount(row.x[i]));
      gpu::shared_add(&bins.count[digit], 1U);
    }
    __syncthreads();
    const Bin found = bin_where(bins, above, reached);
    if (found.count == 0) return 0;
    above = found.above;
    const uint64_t digit =
        static_cast<uint64_t>(found.digit) & ((uint64_t{1} << (known - shift)) - 1);
    prefix = known == 64 ? digit : prefix << (known - shift) | digit;
    known = shift;
    if (found.count == 1) break;
  }
  uint64_t rank = 0;
  for (int32_t i = thread; i < row.n; i += kThreads) {
    const uint64_t own = rank_of(row.x[i], i);
    if (is_candidate(row, i) && has_prefix(own)) rank = own;
  }
  return highest_of_block(rank);
}

constexpr uint64_t kEveryRank = UINT64_MAX;

// The nth candidate of those with ranks below `end`; 0 if there are fewer.
__device__ __forceinline__ uint64_t rank_of_nth(const Row& row, uint64_t end, Amount nth) {
  return rank_where(
      row, end, [](float) { return Amount{1}; }, [&](Amount sum) { return sum >= nth; });
}

// The rank from which on candidates are kept; `first` is the highest.
__device__ __forceinline__ uint64_t lowest_kept(const Row& row,
                                                const SampleRow& asked,
                                                uint64_t first) {
  const float max = row.x[index_of(first)];
  const auto weight = [&](float x) {
    return exp_of(__fdiv_rn(__fsub_rn(x, max), asked.temperature));
  };
  uint64_t kept = 0;
  if (asked.top_k > 0 && asked.top_k < row.n) {
    kept = rank_of_nth(row, kEveryRank, static_cast<Amount>(asked.top_k));
  }
  const auto is_kept = [&](int32_t i) {
    return is_candidate(row, i) && rank_of(row.x[i], i) >= kept;
  };
  uint64_t by_weight = 0;
  if (asked.top_p < 1.0F) {
    const float all =
        sum_in_lanes(row.n, [&](int32_t i) { return is_kept(i) ? weight(row.x[i]) : 0.0F; });
    // Whole units of 2^-40, which add up exactly in any order.
    const double units = __dmul_rn(static_cast<double>(asked.top_p), 0x1p40);
    const double enough = __dmul_rn(units, static_cast<double>(all));
    by_weight = enough <= 0
                    ? first
                    : rank_where(
                          row,
                          kEveryRank,
                          [&](float x) { return __float2ull_rz(__fmul_rn(weight(x), 0x1p40F)); },
                          [&](Amount sum) { return __ull2double_rn(sum) >= enough; });
  }
  if (asked.min_p > 0) {
    uint64_t light = 0;  // the first that is too light
    for (auto i = static_cast<int32_t>(threadIdx.x); i < row.n; i += kThreads) {
      const uint64_t rank = rank_of(row.x[i], i);
      if (!is_candidate(row, i) || rank == first || weight(row.x[i]) >= asked.min_p) continue;
      light = higher_rank(light, rank);
    }
    kept = higher_rank(kept, highest_of_block(light) + 1);
  }
  return higher_rank(kept, by_weight);
}

// The likeliest of all tokens, in order, a block's worth of them at a time.
__device__ __forceinline__ void write_top(const Row& all, SampleRow& asked, float log_sum) {
  GPU_SHARED(uint64_t, chosen, kThreads);
  GPU_SHARED(uint32_t, num_chosen, 1);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto room = static_cast<int64_t>(asked.top_logprobs.size());
  const auto wanted = static_cast<int32_t>(room < all.n ? room : all.n);
  TokenScore* const out = asked.top_logprobs.data();
  uint64_t end = kEveryRank;
  for (int32_t filled = 0; filled < wanted; filled += kThreads) {
    const int32_t count = wanted - filled < kThreads ? wanted - filled : kThreads;
    if (thread == 0) num_chosen[0] = 0;
    const uint64_t last = rank_of_nth(all, end, static_cast<Amount>(count));
    for (int32_t i = thread; i < all.n; i += kThreads) {
      const uint64_t rank = rank_of(all.x[i], i);
      if (rank >= last && rank < end) chosen[gpu::shared_add(num_chosen, 1U)] = rank;
    }
    __syncthreads();
    if (thread < count) {
      const uint64_t own = chosen[thread];
      int32_t place = filled;
      for (int32_t i = 0; i < count; ++i) place += chosen[i] > own ? 1 : 0;
      const int32_t token = index_of(own);
      out[place] = {token, __fsub_rn(all.x[token], log_sum)};
    }
    __syncthreads();
    end = last;
  }
}

// The chosen token's log-probability, and those of the likeliest; `any` is the first of all tokens.
__device__ __forceinline__ void write_logprobs(const Row& row,
                                               SampleRow& asked,
                                               int32_t token,
                                               uint64_t any) {
  const float max = row.x[index_of(any)];
  const float sum =
      sum_in_lanes(row.n, [&](int32_t i) { return exp_of(__fsub_rn(row.x[i], max)); });
  const float log_sum = __fadd_rn(max, log_of(sum));
  if (threadIdx.x == 0) asked.logprob = __fsub_rn(row.x[token], log_sum);
  if (asked.num_logprobs == 0) return;
  write_top({.x = row.x, .mask = nullptr, .n = row.n}, asked, log_sum);
}

__global__ void __launch_bounds__(kThreads, 1)
    sample_kernel(SampleRow* rows, int32_t vocab_size, TokenId* chosen) {
  SampleRow& asked = rows[blockIdx.x];
  const Row row{.x = asked.logits, .mask = asked.allowed_mask, .n = vocab_size};
  const bool choose = asked.choose;
  const Scan scan = scan_logits(row);
  int32_t token = kInvalidToken;
  if (scan.finite && !choose) {
    token = asked.token;
  } else if (scan.finite && (asked.temperature == 0 || asked.top_k == 1)) {
    token = index_of(scan.candidate);
  } else if (scan.finite) {
    const uint64_t kept = lowest_kept(row, asked, scan.candidate);
    token = gumbel_argmax(row, asked, row.x[index_of(scan.candidate)], kept);
  }
  if (threadIdx.x == 0) {
    asked.finite = scan.finite;
    if (choose || !scan.finite) asked.token = token;
    if (chosen != nullptr) chosen[blockIdx.x] = token < 0 ? 0 : token;
  }
  if (!scan.finite || (choose && asked.num_logprobs < 0)) return;
  write_logprobs(row, asked, token, scan.any);
}

__global__ void __launch_bounds__(kThreads, 1)
    take_tokens_kernel(const __grid_constant__ TakeTokensArgs args) {
  const auto i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.open.size()) return;
  const OpenToken open = args.open.data()[i];
  const TokenId token = args.chosen[open.from];
  args.token_ids[open.row] = token >= 0 && token < args.vocab_size ? token : 0;
}

}  // namespace

void launch_sample(Stream stream, const SampleArgs& args) {
  gpu::launch(stream,
              {.blocks_x = static_cast<int64_t>(args.rows.size()), .threads = kThreads},
              sample_kernel,
              args.rows.data(),
              args.vocab_size,
              args.chosen);
}

void launch_take_tokens(Stream stream, const TakeTokensArgs& args) {
  const auto count = static_cast<int64_t>(args.open.size());
  gpu::launch(stream,
              {.blocks_x = ceil_div(count, int64_t{kThreads}), .threads = kThreads},
              take_tokens_kernel,
              args);
}

}  // namespace sluice::kernels::cuda
