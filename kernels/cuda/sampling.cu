// SPDX-License-Identifier: Apache-2.0
// The sampling of kernels/sampling.h with the CPU's bits. A row is cut into pieces, a block each,
// which find its largest logits, then noise where nothing is filtered and the terms of sums; a last
// block joins their results. Filters that end among a row's likeliest tokens look at those alone;
// where they keep more, that block goes through the whole row (sampling_filters.h). Tokens are
// sorted only where they are returned.
#include "kernels/sampling.h"

#include "kernels/cuda/cuda_operators.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/sampling_filters.h"
#include "kernels/cuda/sampling_pieces.h"
#include "kernels/cuda/sampling_row.h"

namespace sluice::kernels::cuda {

namespace ptx = gpu::ptx;

namespace {

// The tokens of a piece: rows along y, pieces of a row along x.
struct PieceOfRow {
  LogitRow row;
  int32_t begin;
  int32_t end;
};

__device__ __forceinline__ PieceOfRow piece_of_row(const SampleRow& asked, int32_t vocab_size) {
  const auto begin = static_cast<int32_t>(blockIdx.x) * kPieceTokens;
  const int32_t end = begin + kPieceTokens < vocab_size ? begin + kPieceTokens : vocab_size;
  return {{.x = asked.logits, .mask = asked.allowed_mask, .n = vocab_size}, begin, end};
}

// Writes the `listed` highest of the block's ranks to the piece's part of the row's list.
__device__ __forceinline__ void list_likeliest(const uint64_t (&ranks)[kThreadTokens],
                                               int32_t listed,
                                               uint64_t* list) {
  GPU_SHARED(uint32_t, num_listed, 1);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread == 0) num_listed[0] = 0;
  const uint64_t threshold = threshold_of(ranks, kThreadTokens, listed);
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kThreadTokens; ++j) {
    if (ranks[j] == 0 || ranks[j] < threshold) continue;
    list[gpu::shared_add(num_listed, 1U)] = ranks[j];
  }
  __syncthreads();
  const auto count = static_cast<int32_t>(num_listed[0]);
  for (int32_t i = count + thread; i < listed; i += kSampleThreads) list[i] = 0;
}

__global__ void __launch_bounds__(kSampleThreads, 1)
    scan_pieces_kernel(const __grid_constant__ SampleWork work) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const SampleRow& asked = work.rows[blockIdx.y];
  PiecesOfRow& found = work.found[blockIdx.y];
  const PieceOfRow piece = piece_of_row(asked, work.vocab_size);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  float x[kThreadTokens];
#pragma unroll
  for (int j = 0; j < kThreadTokens; ++j) {
    const int32_t i = piece.begin + thread + j * kSampleThreads;
    if (i < piece.end) x[j] = piece.row.x[i];
  }
  Seen seen;
  uint64_t ranks[kThreadTokens];
#pragma unroll
  for (int j = 0; j < kThreadTokens; ++j) {
    const int32_t i = piece.begin + thread + j * kSampleThreads;
    ranks[j] = i < piece.end ? seen.take(piece.row, x[j], i) : 0;
  }
  const auto largest = static_cast<int32_t>(highest_of_block(static_cast<uint64_t>(seen.largest)));
  const uint64_t candidate = highest_of_block(seen.candidate);
  const uint64_t any = highest_of_block(seen.any);
  if (thread == 0) {
    found.pieces[blockIdx.x] = {.candidate = candidate, .any = any, .noise = 0, .largest = largest};
  }
  const int32_t listed = listed_of_piece(asked, work.vocab_size);
  if (listed == 0) return;
  list_likeliest(ranks, listed, found.list + static_cast<int32_t>(blockIdx.x) * listed);
}

// The term of log-probabilities' sum, for every token, masked or not.
__device__ __forceinline__ float probability_term(float x, float max) {
  return exp_of(__fsub_rn(x, max));
}

// The term of top_p's sum where top_k leaves nothing out.
__device__ __forceinline__ float weight_term(
    const LogitRow& row, const SampleRow& asked, float max, float x, int32_t token) {
  return is_candidate(row, token) ? weight_of(asked, max, x) : 0.0F;
}

// Writes f(logit, token) for this thread's tokens of the piece to out[token].
template <typename F>
__device__ __forceinline__ void write_terms(const PieceOfRow& piece, float* out, F f) {
#pragma unroll 4
  for (int32_t i = piece.begin + static_cast<int32_t>(threadIdx.x); i < piece.end;
       i += kSampleThreads) {
    out[i] = f(piece.row.x[i], i);
  }
}

// The passes that need the row's maximum: noise where nothing is filtered, the terms of sums.
__global__ void __launch_bounds__(kSampleThreads, 1)
    weigh_pieces_kernel(const __grid_constant__ SampleWork work) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto index = static_cast<int32_t>(blockIdx.y);
  const SampleRow& asked = work.rows[index];
  const bool makes_noise =
      asked.choose && !takes_first(asked) && !is_filtered(asked, work.vocab_size);
  float* const weights = needs_all_weights(asked, work.vocab_size)
                             ? terms_of(work, index, TermKind::kWeight)
                             : nullptr;
  float* const probabilities =
      needs_logprob(asked) ? terms_of(work, index, TermKind::kProbability) : nullptr;
  if (!makes_noise && weights == nullptr && probabilities == nullptr) return;
  PiecesOfRow& found = work.found[index];
  const Scan scan = scan_of_pieces(found, work.vocab_size);
  if (!scan.finite) return;
  const PieceOfRow piece = piece_of_row(asked, work.vocab_size);
  if (probabilities != nullptr) {
    const float max = piece.row.x[index_of(scan.any)];
    write_terms(piece, probabilities, [&](float x, int32_t) { return probability_term(x, max); });
  }
  if (!makes_noise && weights == nullptr) return;
  const float max = piece.row.x[index_of(scan.candidate)];
  if (weights != nullptr) {
    write_terms(piece, weights, [&](float x, int32_t i) {
      return weight_term(piece.row, asked, max, x, i);
    });
  }
  if (!makes_noise) return;
  const int32_t first = counters_of(piece.begin);
  const uint64_t best = highest_of_block(
      best_noise(piece.row, asked, max, 0, first, first + counters_of(kPieceTokens)));
  if (threadIdx.x == 0) found.pieces[blockIdx.x].noise = best;
}

// Writes the likeliest of all tokens, in order, a block's worth at a time.
__device__ __forceinline__ void write_top(const LogitRow& all, SampleRow& asked, float log_sum) {
  GPU_SHARED(uint64_t, chosen, kSampleThreads);
  GPU_SHARED(uint32_t, num_chosen, 1);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto room = static_cast<int64_t>(asked.top_logprobs.size());
  const auto wanted = static_cast<int32_t>(room < all.n ? room : all.n);
  TokenScore* const out = asked.top_logprobs.data();
  uint64_t end = kEveryRank;
  for (int32_t filled = 0; filled < wanted; filled += kSampleThreads) {
    const int32_t count = wanted - filled < kSampleThreads ? wanted - filled : kSampleThreads;
    if (thread == 0) num_chosen[0] = 0;
    const uint64_t last = rank_of_nth(all, end, static_cast<Amount>(count));
    for (int32_t i = thread; i < all.n; i += kSampleThreads) {
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

// Writes the chosen token's log-probability, and those of the likeliest.
__device__ __forceinline__ void write_logprobs(
    const LogitRow& row, SampleRow& asked, const Scan& scan, int32_t token, const float* terms) {
  const float max = row.x[index_of(scan.any)];
  const float sum =
      sum_in_lanes(terms == nullptr ? row.x : terms, row.n, [&](float value, int32_t) {
        return terms == nullptr ? probability_term(value, max) : value;
      });
  const float log_sum = __fadd_rn(max, log_of(sum));
  if (threadIdx.x == 0) asked.logprob = __fsub_rn(row.x[token], log_sum);
  if (asked.num_logprobs == 0) return;
  write_top({.x = row.x, .mask = nullptr, .n = row.n}, asked, log_sum);
}

// Returns the chosen token of a row of finite logits with filters.
__device__ __forceinline__ int32_t choose_filtered(const SampleWork& work,
                                                   const LogitRow& row,
                                                   const SampleRow& asked,
                                                   const Scan& scan) {
  const auto index = static_cast<int32_t>(blockIdx.x);
  float all = 0;
  if (needs_all_weights(asked, row.n)) {
    const float max = row.x[index_of(scan.candidate)];
    const float* const terms = terms_of(work, index, TermKind::kWeight);
    all = sum_in_lanes(terms == nullptr ? row.x : terms, row.n, [&](float value, int32_t i) {
      return terms == nullptr ? weight_term(row, asked, max, value, i) : value;
    });
  }
  const int32_t listed = listed_of_piece(asked, row.n);
  int32_t token = kInvalidToken;
  if (listed > 0) {
    token = choose_of_likeliest(work.found[index], row, asked, scan, listed, all);
  }
  return token == kInvalidToken ? choose_of_all(row, asked, scan, all) : token;
}

// Finishes a row, by one block, from its pieces' joined results.
__global__ void __launch_bounds__(kSampleThreads, 1)
    join_pieces_kernel(const __grid_constant__ SampleWork work) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto index = static_cast<int32_t>(blockIdx.x);
  SampleRow& asked = work.rows[index];
  const PiecesOfRow& found = work.found[index];
  const LogitRow row{.x = asked.logits, .mask = asked.allowed_mask, .n = work.vocab_size};
  const Scan scan = scan_of_pieces(found, row.n);
  const bool choose = asked.choose;
  int32_t token = kInvalidToken;
  if (scan.finite && !choose) {
    token = asked.token;
  } else if (scan.finite && takes_first(asked)) {
    token = index_of(scan.candidate);
  } else if (scan.finite && !is_filtered(asked, row.n)) {
    const bool has_piece = static_cast<int32_t>(threadIdx.x) < pieces_of(row.n);
    token = index_of(highest_of_block(has_piece ? found.pieces[threadIdx.x].noise : 0));
  } else if (scan.finite) {
    token = choose_filtered(work, row, asked, scan);
  }
  const bool has_logprob = scan.finite && needs_logprob(asked);
  __syncthreads();  // no thread reads what is written now
  if (threadIdx.x == 0) {
    asked.finite = scan.finite;
    if (choose || !scan.finite) asked.token = token;
    if (work.chosen != nullptr) work.chosen[index] = token;
  }
  if (!has_logprob) return;
  write_logprobs(row, asked, scan, token, terms_of(work, index, TermKind::kProbability));
}

constexpr int kTakeThreads = 128;

__global__ void __launch_bounds__(kTakeThreads, 1)
    take_tokens_kernel(const __grid_constant__ TakeTokensArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto i = static_cast<size_t>(blockIdx.x) * kTakeThreads + threadIdx.x;
  if (i >= args.pending.size()) return;
  const PendingToken pending = args.pending.data()[i];
  const TokenId token = args.chosen[pending.from];
  args.token_ids[pending.row] = token >= 0 && token < args.vocab_size ? token : 0;
}

// place_following.
__global__ void __launch_bounds__(kTakeThreads, 1)
    place_following_kernel(const __grid_constant__ PlaceFollowingArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto i = static_cast<size_t>(blockIdx.x) * kTakeThreads + threadIdx.x;
  if (i < args.following.size()) place_following_row(args, args.following.data()[i]);
}

int64_t found_bytes(int64_t num_rows) {
  return align_up(num_rows * int64_t{sizeof(PiecesOfRow)}, 64);
}

}  // namespace

int64_t sampling_workspace_bytes(int32_t vocab_size, int64_t max_rows) {
  const int64_t term_rows = max_rows < kTermRows ? max_rows : kTermRows;
  return found_bytes(max_rows) + term_rows * kTermKinds * vocab_size * int64_t{sizeof(float)};
}

void launch_sample(Stream stream, const SampleArgs& args) {
  const auto rows = static_cast<int64_t>(args.rows.size());
  CHECK_LE(args.vocab_size, kMaxVocabSize);
  CHECK_LE(sampling_workspace_bytes(args.vocab_size, rows),
           static_cast<int64_t>(args.workspace.size()));
  const SampleWork work{
      .rows = args.rows.data(),
      .vocab_size = args.vocab_size,
      .chosen = args.chosen,
      .found = reinterpret_cast<PiecesOfRow*>(args.workspace.data()),
      .terms = reinterpret_cast<float*>(args.workspace.data() + found_bytes(rows))};
  const gpu::LaunchShape by_row{.blocks_x = rows,
                                .threads = kSampleThreads,
                                .overlaps = overlaps(LaunchKind::kSampling, rows)};
  const gpu::LaunchShape by_piece{.blocks_x = pieces_of(args.vocab_size),
                                  .blocks_y = rows,
                                  .threads = kSampleThreads,
                                  .overlaps = overlaps(LaunchKind::kSampling, rows)};
  gpu::launch(stream, by_piece, scan_pieces_kernel, work);
  gpu::launch(stream, by_piece, weigh_pieces_kernel, work);
  gpu::launch(stream, by_row, join_pieces_kernel, work);
}

void launch_take_tokens(Stream stream, const TakeTokensArgs& args) {
  const auto count = static_cast<int64_t>(args.pending.size());
  gpu::launch(stream,
              {.blocks_x = ceil_div(count, int64_t{kTakeThreads}),
               .threads = kTakeThreads,
               .overlaps = overlaps(LaunchKind::kSampling, count)},
              take_tokens_kernel,
              args);
}

void launch_place_following(Stream stream, const PlaceFollowingArgs& args) {
  const auto count = static_cast<int64_t>(args.following.size());
  gpu::launch(stream,
              {.blocks_x = ceil_div(count, int64_t{kTakeThreads}),
               .threads = kTakeThreads,
               .overlaps = overlaps(LaunchKind::kSampling, count)},
              place_following_kernel,
              args);
}

}  // namespace sluice::kernels::cuda
