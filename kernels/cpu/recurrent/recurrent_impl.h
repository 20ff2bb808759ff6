// SPDX-License-Identifier: Apache-2.0
// The short convolution, the gated delta rule, Mamba-2 and gates, for recurrent_<isa>.cpp.
#pragma once

#include "kernels/cpu/isa/math16.h"
#include "kernels/cpu/isa/vec16.h"
#include "kernels/cpu/recurrent/recurrent_block.h"
#include "kernels/recurrent.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

SLUICE_INLINE V16 sigmoid(V16 x) {
  const V16 one = broadcast(1.0F);
  return div(one, add(one, exp(sub(zero(), x))));
}

SLUICE_INLINE V16 softplus(V16 x) {
  const V16 tail = log(add(broadcast(1.0F), exp(sub(zero(), abs(x)))));
  return add(max(zero(), x), tail);
}

static void conv_block(const ConvBlock& block) {
  const int32_t before = block.taps - 1;
  V16 window[kMaxConvTaps];  // the inputs of the last `taps` tokens, oldest first
  V16 weight[kMaxConvTaps];
  for (int32_t i = 0; i < before; ++i) window[i] = load(block.window + i * 16);
  for (int32_t i = 0; i < block.taps; ++i) weight[i] = load(block.weight + i * block.n);
  const V16 bias = block.bias == nullptr ? zero() : load(block.bias);
  for (int32_t row = 0; row < block.num_rows; ++row) {
    V16 in = load(block.x + row * block.x_stride);
    if (block.gate_in != nullptr) in = mul(load(block.gate_in + row * block.x_stride), in);
    window[before] = in;
    V16 y = bias;
    for (int32_t i = 0; i < block.taps; ++i) y = fma(weight[i], window[i], y);
    for (int32_t i = 0; i < before; ++i) window[i] = window[i + 1];
    if (block.silu) y = silu(y);
    if (block.gate_out != nullptr) y = mul(load(block.gate_out + row * block.x_stride), y);
    store(block.out + row * block.out_stride, y);
  }
  for (int32_t i = 0; i < before; ++i) store(block.window + i * 16, window[i]);
}

SLUICE_INLINE void normalize_key(float* x, int32_t n, float eps, float scale) {
  V16 sum = zero();
  for (int32_t i = 0; i < n; i += 16) sum = fma(load(x + i), load(x + i), sum);
  const float r = 1.0F / sqrt_float(fold_by_halves(sum) + eps);
  for (int32_t i = 0; i < n; i += 16) {
    const V16 unit = mul(load(x + i), broadcast(r));
    store(x + i, scale == 1 ? unit : mul(unit, broadcast(scale)));
  }
}

static void delta_row(const DeltaRow& row) {
  for (int32_t head = 0; head < row.num_key_heads; ++head) {
    normalize_key(row.q + head * row.key_dim, row.key_dim, row.eps, row.scale);
    normalize_key(row.k + head * row.key_dim, row.key_dim, row.eps, 1);
  }
  for (int32_t head = 0; head < row.num_value_heads; head += 16) {
    const int32_t count = row.num_value_heads - head < 16 ? row.num_value_heads - head : 16;
    const V16 beta = sigmoid(load_partial(row.b + head, count));
    store_partial(row.b + head, mul(beta, broadcast(row.beta_scale)), count);
    if (row.decays_channels) continue;
    const V16 x = add(load_partial(row.a + head, count), load_partial(row.dt_bias + head, count));
    const V16 decay = exp(mul(load_partial(row.rate + head, count), softplus(x)));
    store_partial(row.a + head, decay, count);
  }
  if (!row.decays_channels) return;
  for (int32_t head = 0; head < row.num_value_heads; ++head) {
    const V16 rate = broadcast(row.rate[head]);
    for (int32_t i = head * row.key_dim; i < (head + 1) * row.key_dim; i += 16) {
      const V16 x = add(load(row.a + i), load(row.dt_bias + i));
      store(row.a + i, exp(mul(rate, softplus(x))));
    }
  }
}

SLUICE_INLINE V16 fold_lanes(V16* lanes) {
  for (int32_t half = 8; half > 0; half /= 2) {
    for (int32_t l = 0; l < half; ++l) lanes[l] = add(lanes[l], lanes[l + half]);
  }
  return lanes[0];
}

// Lanes whose sums are in registers together.
inline constexpr int32_t kLanesTogether = 4;

// Calls update(i, S) for each row i of the state, stores what it returns, and returns the sums over
// i of weights[i] times that.
template <typename Update>
SLUICE_INLINE V16 update_and_sum(const float* weights, float* state, int32_t n, Update update) {
  V16 lanes[16];
  for (int32_t first = 0; first < 16; first += kLanesTogether) {
    V16 sums[kLanesTogether];
#pragma GCC unroll 4
    for (int32_t l = 0; l < kLanesTogether; ++l) sums[l] = zero();
    for (int32_t i = first; i < n; i += 16) {
#pragma GCC unroll 4
      for (int32_t l = 0; l < kLanesTogether; ++l) {
        float* const at = state + (i + l) * 16;
        const V16 s = update(i + l, load(at));
        store(at, s);
        sums[l] = fma(broadcast(weights[i + l]), s, sums[l]);
      }
    }
#pragma GCC unroll 4
    for (int32_t l = 0; l < kLanesTogether; ++l) lanes[first + l] = sums[l];
  }
  return fold_lanes(lanes);
}

template <bool kDecaysChannels>
SLUICE_INLINE void delta_rows(const DeltaBlock& block) {
  for (int32_t row = 0; row < block.num_rows; ++row) {
    const float* const q = block.q + row * block.qkv_stride;
    const float* const k = block.k + row * block.qkv_stride;
    const float* const decays = block.decay + row * block.gate_stride;
    const V16 decay = broadcast(*decays);
    const V16 m = update_and_sum(
        k, block.state, block.key_dim, [&](int32_t i, V16 s) __attribute__((always_inline)) {
          return mul(kDecaysChannels ? broadcast(decays[i]) : decay, s);
        });
    const V16 v = load(block.v + row * block.qkv_stride);
    const V16 d = mul(broadcast(block.beta[row * block.gate_stride]), sub(v, m));
    const V16 o = update_and_sum(
        q, block.state, block.key_dim, [&](int32_t i, V16 s) __attribute__((always_inline)) {
          return fma(broadcast(k[i]), d, s);
        });
    store(block.out + row * block.out_stride, o);
  }
}

static void delta_block(const DeltaBlock& block) {
  block.decays_channels ? delta_rows<true>(block) : delta_rows<false>(block);
}

static void mamba_row(const MambaRow& row) {
  for (int32_t head = 0; head < row.num_heads; head += 16) {
    const int32_t count = row.num_heads - head < 16 ? row.num_heads - head : 16;
    const V16 x = add(load_partial(row.dt + head, count), load_partial(row.dt_bias + head, count));
    const V16 step = min(broadcast(row.max_step), max(broadcast(row.min_step), softplus(x)));
    store_partial(row.dt + head, step, count);
    store_partial(row.decay + head, exp(mul(load_partial(row.rate + head, count), step)), count);
  }
}

static void mamba_block(const MambaBlock& block) {
  for (int32_t row = 0; row < block.num_rows; ++row) {
    const float* const b = block.b + row * block.row_stride;
    const float* const c = block.c + row * block.row_stride;
    const V16 x = load(block.x + row * block.row_stride);
    const V16 decay = broadcast(block.decay[row * block.step_stride]);
    const V16 u = mul(broadcast(block.step[row * block.step_stride]), x);
    const V16 y = update_and_sum(
        c, block.state, block.state_dim, [&](int32_t n, V16 s) __attribute__((always_inline)) {
          return fma(broadcast(b[n]), u, mul(decay, s));
        });
    store(block.out + row * block.out_stride, fma(broadcast(block.skip), x, y));
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
