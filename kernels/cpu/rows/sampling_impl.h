// SPDX-License-Identifier: Apache-2.0
// Passes over a row of logits for simd_<isa>.cpp. Lanes that are not candidates hold -infinity.
#pragma once

#include "kernels/cpu/isa/math16.h"
#include "kernels/cpu/isa/vec16.h"
#include "kernels/cpu/rows/sampling_block.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

constexpr float kMinusInfinity = -__builtin_inff();

alignas(64) constexpr int32_t kLaneBits[16] = {1 << 0,
                                               1 << 1,
                                               1 << 2,
                                               1 << 3,
                                               1 << 4,
                                               1 << 5,
                                               1 << 6,
                                               1 << 7,
                                               1 << 8,
                                               1 << 9,
                                               1 << 10,
                                               1 << 11,
                                               1 << 12,
                                               1 << 13,
                                               1 << 14,
                                               1 << 15};

// Loads tokens [i, i + 16), i a multiple of 16.
SLUICE_INLINE V16 candidates(const LogitRow& row, int32_t i) {
  const bool whole = i + 16 <= row.n;
  if (whole && row.mask == nullptr) return load(row.x + i);
  uint32_t bits = row.mask != nullptr ? row.mask[i / 32] >> (i % 32) & 0xFFFFU : 0xFFFFU;
  if (!whole) bits &= (1U << (row.n - i)) - 1;
  const V16 x = whole ? load(row.x + i) : load_partial(row.x + i, row.n - i);
  const I16 set = bit_and(broadcast(static_cast<int32_t>(bits)), load(kLaneBits));
  return select(less(broadcast(int32_t{0}), set), x, broadcast(kMinusInfinity));
}

// Keeps the candidates at or before `last` in the total order.
SLUICE_INLINE V16 kept(V16 x, int32_t i, Candidate last) {
  const V16 cut = broadcast(last.logit);
  const V16 none = broadcast(kMinusInfinity);
  const Mask16 late = less(broadcast(last.token), add(load(kLaneIds), broadcast(i)));
  const V16 tied = select(late, none, x);
  return select(less(cut, x), x, select(less(x, cut), none, tied));
}

// Returns (x - max) / temperature.
SLUICE_INLINE V16 scaled_logits(V16 x, const SoftmaxSpec& spec) {
  return div(sub(x, broadcast(spec.max)), broadcast(spec.temperature));
}

// Returns the largest value of any lane, the lowest id among equals.
SLUICE_INLINE Candidate best_lane(V16 value, I16 id) {
  alignas(64) float values[16];
  alignas(64) int32_t ids[16];
  store(values, value);
  store(ids, id);
  Candidate best = {values[0], ids[0]};
  for (int lane = 1; lane < 16; ++lane) {
    const bool better =
        values[lane] > best.logit || (values[lane] == best.logit && ids[lane] < best.token);
    if (better) best = {values[lane], ids[lane]};
  }
  return best;
}

static LogitScan scan_logits(const LogitRow& row) {
  V16 best = broadcast(kMinusInfinity);
  I16 best_id = broadcast(INT32_MAX);
  I16 largest_bits = broadcast(int32_t{0});
  I16 id = load(kLaneIds);
  for (int32_t i = 0; i < row.n; i += 16) {
    const V16 raw = i + 16 <= row.n ? load(row.x + i) : load_partial(row.x + i, row.n - i);
    largest_bits = max(largest_bits, bit_and(bits_of(raw), broadcast(INT32_MAX)));
    const V16 x = candidates(row, i);
    const Mask16 better = less(best, x);
    best = select(better, x, best);
    best_id = select(better, id, best_id);
    id = add(id, broadcast(int32_t{16}));
  }
  return {best_lane(best, best_id), max_lane(largest_bits) < 0x7F800000};
}

// Returns the sum of exp((x - max) / temperature) over the kept: lane i % 16, folded by halves.
static float sum_exp(const LogitRow& row, const SoftmaxSpec& spec) {
  V16 sum = zero();
  for (int32_t i = 0; i < row.n; i += 16) {
    const V16 x = kept(candidates(row, i), i, spec.last);
    sum = add(sum, exp(scaled_logits(x, spec)));
  }
  return fold_by_halves(sum);
}

static void weigh_candidates(const Candidate* from,
                             int32_t count,
                             const SoftmaxSpec& spec,
                             float* weights) {
  for (int32_t i = 0; i < count; i += 16) {
    const int32_t lanes = count - i < 16 ? count - i : 16;
    alignas(64) float x[16] = {};
    for (int32_t lane = 0; lane < lanes; ++lane) x[lane] = from[i + lane].logit;
    store_partial(weights + i, exp(scaled_logits(load(x), spec)), lanes);
  }
}

static float log_of(float x) {
  alignas(64) float lanes[16];
  store(lanes, log(broadcast(x)));
  return lanes[0];
}

struct Philox {
  I16 word[4];
};

// Philox4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011)
// for 16 consecutive counters.
SLUICE_MATH Philox philox(int32_t first_counter, const NoiseKey& key) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53;
  constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;
  constexpr uint32_t kWeyl1 = 0xBB67AE85;
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto lanes = [](uint32_t x) { return broadcast(static_cast<int32_t>(x)); };
  const I16 multiplier0 = lanes(kMultiplier0);
  const I16 multiplier1 = lanes(kMultiplier1);
  uint32_t key0 = low(key.seed);
  uint32_t key1 = low(key.seed >> 32);
  I16 c0 = add(load(kLaneIds), broadcast(first_counter));
  I16 c1 = lanes(low(key.position));
  I16 c2 = lanes(low(key.position >> 32));
  I16 c3 = broadcast(int32_t{0});
  for (int round = 0; round < 10; ++round) {
    const I16 high0 = mul_high(c0, multiplier0);
    const I16 low0 = mul_low(c0, multiplier0);
    const I16 high1 = mul_high(c2, multiplier1);
    const I16 low1 = mul_low(c2, multiplier1);
    c0 = bit_xor(bit_xor(high1, c1), lanes(key0));
    c1 = low1;
    c2 = bit_xor(bit_xor(high0, c3), lanes(key1));
    c3 = low0;
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

// -log(-log(u)), u = n / 2^31, n = (bits >> 1) | 1. Near 1 the inner logarithm takes 1 - u, which
// is exact, so large values of the noise keep their precision. Results are in [-3.08, 21.49].
SLUICE_MATH V16 gumbel(I16 bits) {
  const I16 n = bit_or(shift_right_logical(bits, 1), broadcast(int32_t{1}));
  const V16 unit = broadcast(0x1p-31F);
  const I16 complement = add(sub(broadcast(INT32_MAX), n), broadcast(int32_t{1}));
  const V16 rest = mul(to_float(complement), unit);
  const LogParts far = split_for_log(mul(to_float(n), unit));
  const Mask16 near = less(broadcast(int32_t{0x5A82799A}), n);  // u > sqrt(1/2)
  const V16 log_u =
      log_of_parts(select(near, sub(zero(), rest), far.f), select(near, zero(), far.e));
  return sub(zero(), log(sub(zero(), log_u)));
}

constexpr float kGumbelBound = 21.5F;

// Scores the 64 tokens from `base`: base + 16 w + l has word w of counter base / 64 * 16 + l.
SLUICE_INLINE void gumbel_block(const LogitRow& row,
                                const SoftmaxSpec& spec,
                                const NoiseKey& key,
                                int32_t base,
                                float bound,
                                V16* best,
                                I16* best_id) {
  V16 z[4];
  V16 top = broadcast(kMinusInfinity);
  for (int w = 0; w < 4; ++w) {
    const int32_t i = base + 16 * w;
    if (i >= row.n) {
      z[w] = broadcast(kMinusInfinity);
      continue;
    }
    z[w] = scaled_logits(kept(candidates(row, i), i, spec.last), spec);
    top = max(top, z[w]);
  }
  // No noise lifts these scores to the bound; rounding is monotonic, so that they may be skipped.
  if (max_lane(top) + kGumbelBound < bound) return;
  const Philox random = philox(base / 4, key);
  for (int w = 0; w < 4; ++w) {
    const V16 score = add(z[w], gumbel(random.word[w]));
    const Mask16 better = less(*best, score);
    *best = select(better, score, *best);
    *best_id = select(better, add(load(kLaneIds), broadcast(base + 16 * w)), *best_id);
  }
}

// Returns the kept token with the largest (x - max) / temperature + gumbel; `first`: candidate 0.
static int32_t gumbel_argmax(const LogitRow& row,
                             const SoftmaxSpec& spec,
                             const NoiseKey& key,
                             int32_t first) {
  // The score of the likeliest block is a lower bound for the best one.
  V16 best = broadcast(kMinusInfinity);
  I16 best_id = broadcast(INT32_MAX);
  gumbel_block(row, spec, key, first / 64 * 64, kMinusInfinity, &best, &best_id);
  const float bound = max_lane(best);
  best = broadcast(kMinusInfinity);
  best_id = broadcast(INT32_MAX);
  for (int32_t base = 0; base < row.n; base += 64) {
    gumbel_block(row, spec, key, base, bound, &best, &best_id);
  }
  return best_lane(best, best_id).token;
}

SLUICE_INLINE I16 bands(V16 x, float first) {
  return shift_right_logical(bits_of(abs(sub(broadcast(first), x))), kLogitBandShift);
}

// Adds the candidates of each band to counts[kLogitBands].
static void count_bands(const LogitRow& row, float first, uint32_t* counts) {
  for (int32_t i = 0; i < row.n; i += 16) {
    const V16 x = candidates(row, i);
    alignas(64) int32_t band[16];
    store(band, bands(x, first));
    uint32_t left = mask_bits(less(broadcast(kMinusInfinity), x));
    if (left == 0xFFFFU) {
      for (const int32_t b : band) ++counts[b];
      continue;
    }
    for (; left != 0; left &= left - 1) ++counts[band[__builtin_ctz(left)]];
  }
}

// Writes the candidates of the bands [begin, end), ids ascending; returns how many.
static int32_t collect_bands(
    const LogitRow& row, float first, int32_t begin, int32_t end, Candidate* out) {
  int32_t count = 0;
  for (int32_t i = 0; i < row.n; i += 16) {
    const V16 x = candidates(row, i);
    const I16 band = bands(x, first);
    uint32_t left = mask_bits(less(band, broadcast(end))) &
                    ~mask_bits(less(band, broadcast(begin))) &
                    mask_bits(less(broadcast(kMinusInfinity), x));
    for (; left != 0; left &= left - 1) {
      const int32_t token = i + __builtin_ctz(left);
      out[count++] = {row.x[token], token};
    }
  }
  return count;
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
