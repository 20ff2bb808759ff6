// SPDX-License-Identifier: Apache-2.0
// Rows in pieces, a block each, and the likeliest tokens of a row, joined from the pieces' results.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/order.h"
#include "kernels/cuda/sampling_filters.h"
#include "kernels/cuda/sampling_row.h"

namespace sluice::kernels::cuda {

inline constexpr int kThreadTokens = 8;
inline constexpr int32_t kPieceTokens = kSampleThreads * kThreadTokens;
inline constexpr int32_t kMostPieces = kMaxVocabSize / kPieceTokens;
inline constexpr int kListed = 16;  // ranks of a thread in the list of all pieces
inline constexpr int32_t kMostListed = kSampleThreads * kListed;
inline constexpr int32_t kMostKept = 256;  // likeliest tokens of a row, a thread each
static_assert(kMostPieces <= kSampleThreads && kMostListed >= kMostPieces);
static_assert(kMostKept <= kSampleThreads);

struct Piece {
  uint64_t candidate;
  uint64_t any;
  uint64_t noise;  // the highest noisy rank of a candidate; only without filters
  int32_t largest;
};

// The results of a row's pieces, and the likeliest of each, 0 where there are no more.
struct PiecesOfRow {
  Piece pieces[kMostPieces];
  uint64_t list[kMostListed];
};

// Sums over a row are chains of one block. For the first rows of a launch the pieces compute the
// terms; launches with more rows have enough blocks, which compute their own.
inline constexpr int32_t kTermRows = 8;
enum class TermKind : uint8_t { kProbability, kWeight };
inline constexpr int32_t kTermKinds = 2;

struct SampleWork {
  SampleRow* rows;
  int32_t vocab_size;
  TokenId* chosen;     // null: not wanted
  PiecesOfRow* found;  // by row
  float* terms;        // [kTermRows][kTermKinds][vocab_size]
};

// Returns the row's terms of that kind, written if the row needs them; null: there is no room.
__device__ __forceinline__ float* terms_of(const SampleWork& work, int32_t row, TermKind kind) {
  if (row >= kTermRows) return nullptr;
  const int64_t place = int64_t{row} * kTermKinds + static_cast<int64_t>(kind);
  return work.terms + place * work.vocab_size;
}

constexpr int32_t pieces_of(int32_t vocab_size) {
  return (vocab_size + kPieceTokens - 1) / kPieceTokens;
}

// Returns how many ranks of each piece are listed; 0: the row needs none.
__device__ __forceinline__ int32_t listed_of_piece(const SampleRow& asked, int32_t vocab_size) {
  if (!asked.choose || takes_first(asked)) return 0;
  const int32_t room = kMostListed / pieces_of(vocab_size);
  const int32_t most = room < kMostKept ? room : kMostKept;
  if (has_top_k(asked, vocab_size)) return asked.top_k <= most ? asked.top_k : 0;
  return is_filtered(asked, vocab_size) ? most : 0;
}

struct Counts {
  int32_t of[3];
};

// Gives every thread the sums of all threads' three counts, each below 2^16. `round` differs by one
// from the previous call's.
__device__ __forceinline__ Counts count_in_block(const Counts& mine, int round) {
  GPU_SHARED(int32_t, by_warp, 2 * 2 * kSampleWarps);
  int32_t* const now = by_warp + round % 2 * (2 * kSampleWarps);
  const int32_t pair = __reduce_add_sync(kAllLanes, mine.of[0] | mine.of[1] << 16);
  const int32_t last = __reduce_add_sync(kAllLanes, mine.of[2]);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (lane == 0) {
    now[threadIdx.x / 32] = pair;
    now[kSampleWarps + threadIdx.x / 32] = last;
  }
  __syncthreads();
  const bool has_warp = lane < kSampleWarps;
  const int32_t pairs = __reduce_add_sync(kAllLanes, has_warp ? now[lane] : 0);
  const int32_t lasts = __reduce_add_sync(kAllLanes, has_warp ? now[kSampleWarps + lane] : 0);
  return {{pairs & 0xFFFF, static_cast<int32_t>(static_cast<uint32_t>(pairs) >> 16), lasts}};
}

// Returns a threshold that exactly the `nth` highest of the ranks that the block's threads hold
// reach; 0 if there are no more ranks than that. Each thread's first `used` are ranks or 0. The
// threshold grows by two bits a round from the highest down. No two ranks are equal, so that at the
// latest the last bit separates the nth from the next.
template <int kHeld>
__device__ __forceinline__ uint64_t threshold_of(const uint64_t (&held)[kHeld],
                                                 int32_t used,
                                                 int32_t nth) {
  uint64_t found = 0;
  int round = 0;
  for (int bit = 62; bit >= 0; bit -= 2, ++round) {
    const uint64_t step = uint64_t{1} << bit;
    Counts mine{{0, 0, 0}};
#pragma unroll
    for (int s = 0; s < kHeld; ++s) {
      if (s >= used) break;
#pragma unroll
      for (int m = 0; m < 3; ++m) {
        mine.of[m] += held[s] >= found + step * static_cast<uint64_t>(m + 1) ? 1 : 0;
      }
    }
    const Counts all = count_in_block(mine, round);
#pragma unroll
    for (int m = 2; m >= 0; --m) {
      if (all.of[m] < nth) continue;
      found += step * static_cast<uint64_t>(m + 1);
      if (all.of[m] == nth) return found;
      break;
    }
  }
  return found;
}

// Gives every thread the joined results of the pieces.
__device__ __forceinline__ Scan scan_of_pieces(const PiecesOfRow& found, int32_t vocab_size) {
  static_assert(kMostPieces <= kSampleThreads);
  Seen seen;
  if (static_cast<int32_t>(threadIdx.x) < pieces_of(vocab_size)) {
    const Piece& piece = found.pieces[threadIdx.x];
    seen.candidate = piece.candidate;
    seen.any = piece.any;
    seen.largest = piece.largest;
  }
  return scan_of(seen);
}

// The likeliest candidates of a row, in the order of their ids.
struct Likeliest {
  uint64_t unordered[kMostKept];
  uint64_t rank[kMostKept];
  Amount units[kMostKept];
  float weight[kMostKept];
  uint32_t count;
  uint64_t by_weight;
  float all;
};

__device__ __forceinline__ Likeliest& likeliest() {
  GPU_SHARED(Likeliest, one, 1);
  return one[0];
}

// Gathers the row's likeliest from the pieces' lists of `listed` each. Returns the threshold that
// only they reach; 0: they are all candidates.
__device__ __forceinline__ uint64_t take_likeliest(const PiecesOfRow& found,
                                                   int32_t vocab_size,
                                                   int32_t listed,
                                                   Likeliest& some) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t count = pieces_of(vocab_size) * listed;
  const int32_t used = (count + kSampleThreads - 1) / kSampleThreads;
  uint64_t ranks[kListed];
#pragma unroll
  for (int s = 0; s < kListed; ++s) {
    const int32_t i = thread + s * kSampleThreads;
    ranks[s] = i < count ? found.list[i] : 0;
  }
  if (thread == 0) some.count = 0;
  const uint64_t lowest = threshold_of(ranks, used, listed);
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kListed; ++s) {
    if (ranks[s] == 0 || ranks[s] < lowest) continue;
    some.unordered[gpu::shared_add(&some.count, 1U)] = ranks[s];
  }
  __syncthreads();
  const auto size = static_cast<int32_t>(some.count);
  if (thread < size) {
    const uint64_t own = some.unordered[thread];
    int32_t place = 0;
    for (int32_t i = 0; i < size; ++i) {
      place += index_of(some.unordered[i]) < index_of(own) ? 1 : 0;
    }
    some.rank[place] = own;
  }
  __syncthreads();
  return lowest;
}

// Returns the sum of the likeliest's weights with sum_in_lanes' bits: other tokens' terms are zeros
// there, which change no sum.
__device__ __forceinline__ float weights_of_likeliest(Likeliest& some) {
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const auto size = static_cast<int32_t>(some.count);
  if (lane < kSumLanes) {
    float sum = 0;
#pragma unroll 4
    for (int32_t i = 0; i < size; ++i) {
      const float next = __fadd_rn(sum, some.weight[i]);
      sum = index_of(some.rank[i]) % kSumLanes == lane ? next : sum;
    }
    sum = sum_of_sixteen(sum, kHalfWarp);
    if (lane == 0) some.all = sum;
  }
  __syncthreads();
  return some.all;
}

// Gives every thread the rank with which top_p ends; 0: it ends after the likeliest. A thread has
// one of the likeliest in `own`, or 0.
__device__ __forceinline__ uint64_t
end_of_top_p(const SampleRow& asked, uint64_t first, uint64_t own, float all, Likeliest& some) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const double enough = enough_of(asked, all);
  if (own != 0) {
    Amount above = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(some.count); ++i) {
      above += some.rank[i] > own ? some.units[i] : 0;
    }
    const auto reached = [&](Amount sum) { return __ull2double_rn(sum) >= enough; };
    const bool ends =
        enough <= 0 ? own == first : !reached(above) && reached(above + some.units[thread]);
    if (ends) some.by_weight = own;
  }
  __syncthreads();
  return some.by_weight;
}

// Returns the noisy rank of one token.
__device__ __forceinline__ uint64_t noise_of_token(const LogitRow& row,
                                                   const SampleRow& asked,
                                                   float max,
                                                   int32_t token) {
  const int32_t counter = token / 64 * 16 + token % 16;
  const auto position = static_cast<uint64_t>(asked.position);
  const Philox random = philox(static_cast<uint32_t>(counter), position, asked.seed);
  uint32_t bits = random.word[0];
#pragma unroll
  for (int word = 1; word < 4; ++word) bits = token / 16 % 4 == word ? random.word[word] : bits;
  return noisy_rank(row, asked, max, token, bits);
}

// Returns the chosen token of a row with filters if they end among its likeliest; else
// kInvalidToken. `all`: the sum of all candidates' weights where needs_all_weights.
__device__ __forceinline__ int32_t choose_of_likeliest(const PiecesOfRow& found,
                                                       const LogitRow& row,
                                                       const SampleRow& asked,
                                                       const Scan& scan,
                                                       int32_t listed,
                                                       float all) {
  Likeliest& some = likeliest();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const uint64_t lowest = take_likeliest(found, row.n, listed, some);
  const bool by_count = has_top_k(asked, row.n);  // the likeliest are those that top_k keeps
  const float max = row.x[index_of(scan.candidate)];
  uint64_t own = 0;
  float weight = 0;
  if (thread < static_cast<int32_t>(some.count)) {
    own = some.rank[thread];
    weight = weight_of(asked, max, row.x[index_of(own)]);
    some.weight[thread] = weight;
    some.units[thread] = units_of(weight);
  }
  if (thread == 0) some.by_weight = 0;
  __syncthreads();
  uint64_t kept = 0;  // rank that ends the filters; 0: after all of these
  if (asked.top_p < 1.0F) {
    if (by_count) all = weights_of_likeliest(some);
    kept = end_of_top_p(asked, scan.candidate, own, all, some);
  }
  if (asked.min_p > 0) {
    const bool light = own != 0 && own != scan.candidate && !(weight >= asked.min_p);
    const uint64_t first_light = highest_of_block(light ? own : 0);
    if (first_light != 0) kept = higher_rank(kept, first_light + 1);
  }
  if (kept == 0 && !by_count && lowest != 0) return kInvalidToken;
  const bool stays = own != 0 && own >= kept;
  return index_of(highest_of_block(stays ? noise_of_token(row, asked, max, index_of(own)) : 0));
}

}  // namespace sluice::kernels::cuda
