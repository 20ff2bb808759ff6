// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling.h"

#include <algorithm>
#include <cfloat>
#include <cstring>

#include "engine/core/status.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/rows/sampling_block.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kAlignment = 64;

int64_t worker_bytes(int32_t vocab_size) {
  return align_up((cpu::kLogitBands + vocab_size) * int64_t{4} +
                      vocab_size * static_cast<int64_t>(sizeof(cpu::Candidate)),
                  kAlignment);
}

}  // namespace

int64_t sampling_workspace_bytes(int32_t vocab_size, int32_t num_threads) {
  return worker_bytes(vocab_size) * num_threads;
}

namespace cpu {
namespace {

constexpr Candidate kNoCut = {-FLT_MAX, INT32_MAX};  // every finite candidate comes before it

bool before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// The candidates of one row in the total order, sorted only as far as needed.
class OrderedCandidates {
 public:
  OrderedCandidates(const SimdTable& simd, const LogitRow& row, float first, std::byte* workspace)
      : simd_(simd),
        row_(row),
        first_(first),
        counts_(reinterpret_cast<uint32_t*>(workspace)),
        weights_(reinterpret_cast<float*>(workspace) + kLogitBands),
        entries_(reinterpret_cast<Candidate*>(weights_ + row.n)) {
    std::memset(counts_, 0, kLogitBands * sizeof(uint32_t));
    simd_.count_bands(row_, first_, counts_);
  }

  // Returns the k-th candidate (from 1), or the last one.
  Candidate nth(int64_t k) {
    int32_t band = 0;
    int64_t passed = 0;
    int32_t last_used = 0;
    for (; band < kLogitBands; ++band) {
      if (counts_[band] != 0) last_used = band;
      if (passed + counts_[band] >= k) break;
      passed += counts_[band];
    }
    if (band == kLogitBands) {
      band = last_used;
      passed -= counts_[band];
      k = passed + counts_[band];
    }
    const int32_t count = simd_.collect_bands(row_, first_, band, band + 1, entries_);
    Candidate* const wanted = entries_ + (k - passed - 1);
    std::nth_element(entries_, wanted, entries_ + count, before);
    return *wanted;
  }

  // Fetches the next run of candidates and returns its size, 0 after the last. Runs follow one
  // another in the order, and are sorted by id inside; they grow, so that a flat row takes few
  // passes.
  int32_t next() {
    const int32_t begin = next_band_;
    int64_t count = 0;
    while (next_band_ < kLogitBands && count < run_size_) count += counts_[next_band_++];
    if (count == 0) return 0;
    run_size_ = std::min<int64_t>(4 * run_size_, 2048);
    return simd_.collect_bands(row_, first_, begin, next_band_, entries_);
  }

  // Sorts the `count` candidates of the current run.
  void sort(int32_t count) { std::sort(entries_, entries_ + count, before); }

  [[nodiscard]] const Candidate* entries() const { return entries_; }

  [[nodiscard]] float* weights() const { return weights_; }

 private:
  const SimdTable& simd_;
  const LogitRow row_;
  const float first_;
  uint32_t* counts_;
  float* weights_;
  Candidate* entries_;
  int32_t next_band_ = 0;
  int64_t run_size_ = 64;
};

// Weights add up in whole units of 2^-40, exactly, so the order of addition is free.
constexpr double kUnitsPerWeight = 0x1p40;

int64_t weight_units(float weight) {
  return static_cast<int64_t>(static_cast<double>(weight) * kUnitsPerWeight);
}

// Returns the last candidate that top_k, min_p and top_p keep.
Candidate last_kept(const SimdTable& simd,
                    const LogitRow& logits,
                    const SampleRow& row,
                    const Candidate& first,
                    std::byte* workspace) {
  const bool use_top_k = row.top_k > 0 && row.top_k < logits.n;
  const bool use_top_p = row.top_p < 1.0F;
  if (!use_top_k && !use_top_p && row.min_p <= 0) return kNoCut;
  if (row.top_k == 1) return first;
  OrderedCandidates ordered(simd, logits, first.logit, workspace);
  SoftmaxSpec spec = {.max = first.logit, .temperature = row.temperature, .last = kNoCut};
  if (use_top_k) spec.last = ordered.nth(row.top_k);
  if (!use_top_p && row.min_p <= 0) return spec.last;

  const double enough = use_top_p ? static_cast<double>(row.top_p) * kUnitsPerWeight *
                                        static_cast<double>(simd.sum_exp(logits, spec))
                                  : DBL_MAX;
  Candidate last = first;
  int64_t sum = 0;
  for (int32_t count = ordered.next(); count > 0; count = ordered.next()) {
    const Candidate* const entries = ordered.entries();
    float* const weights = ordered.weights();
    simd.weigh_candidates(entries, count, spec, weights);
    int64_t run_sum = 0;
    float lightest = 1.0F;
    Candidate run_last = entries[0];
    for (int32_t i = 0; i < count; ++i) {
      run_sum += weight_units(weights[i]);
      lightest = std::min(lightest, weights[i]);
      if (before(run_last, entries[i])) run_last = entries[i];
    }
    if (lightest >= row.min_p && static_cast<double>(sum + run_sum) < enough &&
        !before(spec.last, run_last)) {
      sum += run_sum;
      last = run_last;
      continue;
    }
    ordered.sort(count);
    simd.weigh_candidates(entries, count, spec, weights);
    for (int32_t i = 0; i < count; ++i) {
      const bool is_first = entries[i].token == first.token;
      if (!is_first && (weights[i] < row.min_p || before(spec.last, entries[i]))) return last;
      last = entries[i];
      sum += weight_units(weights[i]);
      if (static_cast<double>(sum) >= enough) return last;
    }
  }
  return last;
}

void add_logprobs(const SimdTable& simd, int32_t vocab_size, SampleRow& row, std::byte* workspace) {
  const LogitRow all = {.x = row.logits, .mask = nullptr, .n = vocab_size};
  const float max = simd.scan_logits(all).first.logit;
  const float sum = simd.sum_exp(all, {.max = max, .temperature = 1.0F, .last = kNoCut});
  const float log_sum = max + simd.log_of(sum);
  row.logprob = row.logits[row.token] - log_sum;
  if (row.num_logprobs == 0) return;
  OrderedCandidates ordered(simd, all, max, workspace);
  const size_t wanted = std::min<size_t>(row.top_logprobs.size(), static_cast<size_t>(vocab_size));
  size_t filled = 0;
  while (filled < wanted) {
    const int32_t count = ordered.next();
    ordered.sort(count);
    for (int32_t i = 0; i < count && filled < wanted; ++i) {
      const Candidate& candidate = ordered.entries()[i];
      row.top_logprobs[filled++] = {candidate.token, candidate.logit - log_sum};
    }
  }
}

void sample_row(const SimdTable& simd, int32_t vocab_size, SampleRow& row, std::byte* workspace) {
  const LogitRow logits = {.x = row.logits, .mask = row.allowed_mask, .n = vocab_size};
  const LogitScan scan = simd.scan_logits(logits);
  row.finite = scan.finite;
  if (row.choose || !scan.finite) row.token = kInvalidToken;
  if (!scan.finite) return;
  if (!row.choose) {
    add_logprobs(simd, vocab_size, row, workspace);
    return;
  }
  if (row.temperature == 0) {
    row.token = scan.first.token;
  } else {
    const SoftmaxSpec spec = {.max = scan.first.logit,
                              .temperature = row.temperature,
                              .last = last_kept(simd, logits, row, scan.first, workspace)};
    const NoiseKey key = {.seed = row.seed, .position = static_cast<uint64_t>(row.position)};
    row.token = simd.gumbel_argmax(logits, spec, key, scan.first.token);
  }
  if (row.num_logprobs >= 0) add_logprobs(simd, vocab_size, row, workspace);
}

}  // namespace

void sample(const ExecContext& ctx, const SampleArgs& args) {
  const int64_t stride = worker_bytes(args.vocab_size);
  CHECK_LE(stride * ctx.pool->num_threads(), static_cast<int64_t>(args.workspace.size()));
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(static_cast<int64_t>(args.rows.size()), [&](int64_t i, int32_t worker) {
    SampleRow& row = args.rows[static_cast<size_t>(i)];
    sample_row(simd, args.vocab_size, row, args.workspace.data() + worker * stride);
    if (args.chosen != nullptr) args.chosen[i] = row.token;
  });
}

void take_tokens(const ExecContext&, const TakeTokensArgs& args) {
  for (const PendingToken& pending : args.pending) {
    const TokenId token = args.chosen[pending.from];
    args.token_ids[pending.row] = token >= 0 && token < args.vocab_size ? token : 0;
  }
}

void place_following(const ExecContext&, const PlaceFollowingArgs& args) {
  for (const FollowingRow& row : args.following) place_following_row(args, row);
}

}  // namespace cpu
}  // namespace sluice::kernels
