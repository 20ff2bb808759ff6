// SPDX-License-Identifier: Apache-2.0
// Functions of a block that has all of a row: sums over it with the CPU's bits, and the end of its
// filters, found digit by digit of the order (radix selection).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/order.h"
#include "kernels/cuda/sampling_row.h"

namespace sluice::kernels::cuda {

inline constexpr int32_t kSumLanes = 16;
inline constexpr int kTermThreads = kSampleThreads - 32;  // the first warp adds
inline constexpr int kThreadTerms = 6;
inline constexpr int32_t kSumTile = kTermThreads * kThreadTerms;

inline constexpr int kDigitBits = 11;
inline constexpr int kBins = 1 << kDigitBits;
inline constexpr int kThreadBins = kBins / kSampleThreads;
inline constexpr int kGroups = 16;  // groups of threads
inline constexpr int kGroupThreads = kSampleThreads / kGroups;

// The candidates with the same digit.
struct Bin {
  Amount above;  // the sum of amounts of higher ranks
  int32_t digit;
  uint32_t count;  // 0: no candidate is found
};

// Candidates and amounts by digit; a thread owns kThreadBins bins, thread 0 the highest.
struct Histogram {
  Amount amount[kBins];
  uint32_t count[kBins];
  Amount of_thread[kSampleThreads];
  Amount of_group[kGroups];
  Bin found;
};

// Shared memory for functions that a kernel instantiates several times, with other functions as
// arguments: each instance would have its own.
__device__ __forceinline__ Histogram& histogram() {
  GPU_SHARED(Histogram, bins, 1);
  return bins[0];
}

// Two tiles of terms, in place of the bins, which are not in use meanwhile.
__device__ __forceinline__ float* sum_terms() {
  static_assert(2 * kSumTile * sizeof(float) <= offsetof(Histogram, of_thread));
  return reinterpret_cast<float*>(histogram().amount);
}

// Returns a lane's chain over `count` terms, of which a batch is read ahead.
__device__ __forceinline__ float add_terms(const float* terms, int32_t count, float sum) {
  constexpr int kBatch = 12;
  constexpr int32_t kStep = kBatch * kSumLanes;
  auto i = static_cast<int32_t>(threadIdx.x);
  if (count == kSumTile) {
    static_assert(kSumTile % kStep == 0);
    float next[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) next[j] = terms[i + j * kSumLanes];
    for (; i < kSumTile; i += kStep) {
      float now[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) now[j] = next[j];
      if (i + kStep < kSumTile) {
#pragma unroll
        for (int j = 0; j < kBatch; ++j) next[j] = terms[i + kStep + j * kSumLanes];
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) sum = __fadd_rn(sum, now[j]);
    }
    return sum;
  }
#pragma unroll 4
  for (; i < count; i += kSumLanes) sum = __fadd_rn(sum, terms[i]);
  return sum;
}

// Gives every thread the sum of term(values[i], i), i in [0, n), in 16 lanes (i % 16, in order)
// folded by halves. The lanes are chains: 16 threads add a tile's terms while other warps make the
// next tile's from values that they have read before.
template <typename Term>
__device__ __forceinline__ float sum_in_lanes(const float* values, int32_t n, Term term) {
  float* const terms = sum_terms();
  GPU_SHARED(float, total, 1);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t first = thread - (kSampleThreads - kTermThreads);  // index in a tile's terms
  const int32_t tiles = (n + kSumTile - 1) / kSumTile;
  float ahead[kThreadTerms];
  const auto read = [&](int32_t tile) {
#pragma unroll
    for (int j = 0; j < kThreadTerms; ++j) {
      const int32_t i = tile * kSumTile + first + j * kTermThreads;
      if (i < n) ahead[j] = values[i];
    }
  };
  const auto make = [&](int32_t tile) {
    float x[kThreadTerms];
#pragma unroll
    for (int j = 0; j < kThreadTerms; ++j) x[j] = ahead[j];
    if (tile + 1 < tiles) read(tile + 1);
#pragma unroll
    for (int j = 0; j < kThreadTerms; ++j) {
      const int32_t at = first + j * kTermThreads;
      const int32_t i = tile * kSumTile + at;
      if (i < n) terms[tile % 2 * kSumTile + at] = term(x[j], i);
    }
  };
  float sum = 0;
  if (first >= 0) {
    read(0);
    make(0);
  }
  __syncthreads();
  for (int32_t tile = 0; tile < tiles; ++tile) {
    const int32_t left = n - tile * kSumTile;
    if (first >= 0 && tile + 1 < tiles) make(tile + 1);
    if (thread < kSumLanes) {
      sum = add_terms(terms + tile % 2 * kSumTile, left < kSumTile ? left : kSumTile, sum);
    }
    __syncthreads();
  }
  if (thread < kSumLanes) {
    sum = sum_of_sixteen(sum, kHalfWarp);
    if (thread == 0) total[0] = sum;
  }
  __syncthreads();
  sum = total[0];
  __syncthreads();  // the next call writes there
  return sum;
}

// Returns the bin in which the sum of `above` and the amounts from the highest bin down first
// reaches the goal. All threads call it, after all have added their amounts.
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

// Returns the candidate, among ranks below `end`, at which the sum of amount(logit) from the
// highest rank down is reached(sum); 0 if none. reached(0) must be false.
template <typename AmountOf, typename Reached>
__device__ __forceinline__ uint64_t
rank_where(const LogitRow& row, uint64_t end, AmountOf amount, Reached reached) {
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
    for (int i = thread; i < kBins; i += kSampleThreads) {
      bins.amount[i] = 0;
      bins.count[i] = 0;
    }
    __syncthreads();
#pragma unroll 4
    for (int32_t i = thread; i < row.n; i += kSampleThreads) {
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
  for (int32_t i = thread; i < row.n; i += kSampleThreads) {
    const uint64_t own = rank_of(row.x[i], i);
    if (is_candidate(row, i) && has_prefix(own)) rank = own;
  }
  return highest_of_block(rank);
}

inline constexpr uint64_t kEveryRank = UINT64_MAX;

// Returns the nth candidate among ranks below `end`; 0 if there are fewer.
__device__ __forceinline__ uint64_t rank_of_nth(const LogitRow& row, uint64_t end, Amount nth) {
  return rank_where(
      row, end, [](float) { return Amount{1}; }, [&](Amount sum) { return sum >= nth; });
}

// Returns the lowest rank that is kept; `first` is the highest, `all` the sum of all candidates'
// weights where needs_all_weights.
__device__ __forceinline__ uint64_t lowest_kept(const LogitRow& row,
                                                const SampleRow& asked,
                                                uint64_t first,
                                                float all) {
  const float max = row.x[index_of(first)];
  const auto weight = [&](float x) { return weight_of(asked, max, x); };
  uint64_t kept = 0;
  if (has_top_k(asked, row.n)) {
    kept = rank_of_nth(row, kEveryRank, static_cast<Amount>(asked.top_k));
  }
  const auto is_kept = [&](int32_t i) {
    return is_candidate(row, i) && rank_of(row.x[i], i) >= kept;
  };
  uint64_t by_weight = 0;
  if (asked.top_p < 1.0F) {
    if (has_top_k(asked, row.n)) {
      all = sum_in_lanes(
          row.x, row.n, [&](float x, int32_t i) { return is_kept(i) ? weight(x) : 0.0F; });
    }
    const double enough = enough_of(asked, all);
    by_weight = enough <= 0 ? first
                            : rank_where(
                                  row,
                                  kEveryRank,
                                  [&](float x) { return units_of(weight(x)); },
                                  [&](Amount sum) { return __ull2double_rn(sum) >= enough; });
  }
  if (asked.min_p > 0) {
    uint64_t light = 0;  // the first candidate that is too light
    for (auto i = static_cast<int32_t>(threadIdx.x); i < row.n; i += kSampleThreads) {
      const uint64_t rank = rank_of(row.x[i], i);
      if (!is_candidate(row, i) || rank == first || weight(row.x[i]) >= asked.min_p) continue;
      light = higher_rank(light, rank);
    }
    kept = higher_rank(kept, highest_of_block(light) + 1);
  }
  return higher_rank(kept, by_weight);
}

// Returns the chosen token of a row whose filters keep more than its likeliest; `all` as in
// lowest_kept.
__device__ __forceinline__ int32_t choose_of_all(const LogitRow& row,
                                                 const SampleRow& asked,
                                                 const Scan& scan,
                                                 float all) {
  const uint64_t kept = lowest_kept(row, asked, scan.candidate, all);
  const float max = row.x[index_of(scan.candidate)];
  return index_of(highest_of_block(best_noise(row, asked, max, kept, 0, counters_of(row.n))));
}

}  // namespace sluice::kernels::cuda
