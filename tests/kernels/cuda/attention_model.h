// SPDX-License-Identifier: Apache-2.0
// A model of one row of attention over a cache of 16 or 8 bits, in plain loops by the definition in
// kernels/cuda/launch.h, with the shim's tensor core arithmetic; and the distance from
// kernels/attention.h that it may have.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/narrow.h"
#include "quant/kv_code.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::kernels::test {

class AttentionModel {
 public:
  AttentionModel(const AttentionArgs& args, simt::TensorCore core)
      : args_(args),
        kv_(args.kv),
        core_(core),
        half_(kv_.dtype == DType::kF16 ? simt::Half::kF16 : simt::Half::kBF16),
        width_(static_cast<size_t>(cached_head_dim(kv_.head_dim))),
        value_width_(static_cast<size_t>(cached_head_dim(kv_.value_width()))) {}

  struct Row {
    size_t request;
    int32_t token;  // index in the request's tokens of this call
    int32_t head;
  };

  [[nodiscard]] std::vector<float> output(const Row& row) const {
    const Keys keys = keys_of(row);
    const std::vector<uint16_t> q = query_of(row);
    State total;
    for (int32_t partition = keys.begin / kAttentionPartition;
         partition * kAttentionPartition < keys.end;
         ++partition) {
      const State next = partition_of(row, q, partition, keys);
      if (total.o.empty()) {
        total = next;
        continue;
      }
      const float m = std::max(total.m, next.m);
      const float keep = cuda::exp_of(total.m - m);
      const float add = cuda::exp_of(next.m - m);
      total.m = m;
      total.l = std::fmaf(next.l, add, total.l * keep);
      for (size_t d = 0; d < value_width_; ++d) {
        total.o[d] = std::fmaf(next.o[d], add, total.o[d] * keep);
      }
    }
    if (args_.sinks != nullptr) {
      const float sink = args_.sinks[row.head];
      const float m = std::max(total.m, sink);
      const float keep = cuda::exp_of(total.m - m);
      total.l = std::fmaf(1.0F, cuda::exp_of(sink - m), total.l * keep);
      for (float& o : total.o) o *= keep;
    }
    std::vector<float> out;
    for (int32_t d = 0; d < kv_.value_width(); ++d) {
      out.push_back(total.o[static_cast<size_t>(d)] / total.l);
    }
    return out;
  }

  // Let u be the largest relative error of a rounding to 16 bits. A score is off by at most
  // d_j = (u + head_dim 2^-22) scale sum |q k_j|, where 2^-22 is a generous share for what steps of
  // a chain cut off. So a weight is off by a factor within exp(+-2 max d_j), and its rounding and
  // the chain over the keys add u + keys 2^-22. Roundings of floats are far below the rest.
  [[nodiscard]] std::vector<double> tolerance(const Row& row) const {
    const Keys keys = keys_of(row);
    const double unit = half_ == simt::Half::kF16 ? 0x1p-11 : 0x1p-8;
    const float* const q = query(row);
    std::vector<double> scores;
    double off = 0;
    for (int32_t key = keys.begin; key < keys.end; ++key) {
      double sum = 0;
      double magnitude = 0;
      for (int32_t d = 0; d < kv_.head_dim; ++d) {
        const double product = double{q[d]} * value(k_code(row, key, d)) * k_scale(row, key);
        sum += product;
        magnitude += std::abs(product);
      }
      off = std::max(off, (unit + kv_.head_dim * 0x1p-22) * args_.scale * magnitude);
      sum *= args_.scale;
      if (args_.soft_cap != 0) sum = args_.soft_cap * std::tanh(sum / args_.soft_cap);
      if (args_.slopes != nullptr) sum += double{args_.slopes[row.head]} * (keys.end - 1 - key);
      scores.push_back(sum);
    }
    const double top = *std::ranges::max_element(scores);
    double l = args_.sinks == nullptr ? 0 : std::exp(args_.sinks[row.head] - top);
    for (double& score : scores) l += score = std::exp(score - top);
    const double factor = std::exp(2 * off) * (1 + unit + (keys.end - keys.begin) * 0x1p-22) - 1;
    std::vector<double> bound;
    for (int32_t d = 0; d < kv_.value_width(); ++d) {
      double weighed = 0;
      for (int32_t key = keys.begin; key < keys.end; ++key) {
        const double v = double{value(v_code(row, key, d))} * v_scale(row, key);
        weighed += scores[static_cast<size_t>(key - keys.begin)] / l * std::abs(v);
      }
      bound.push_back(weighed * factor + 1e-7);
    }
    return bound;
  }

 private:
  struct Keys {
    int32_t begin;
    int32_t end;
  };

  struct State {
    float m = -0x1.fffffep127F;
    float l = 0;
    std::vector<float> o = {};
  };

  [[nodiscard]] Keys keys_of(const Row& row) const {
    const int32_t tokens =
        args_.query_start_loc[row.request + 1] - args_.query_start_loc[row.request];
    const int32_t position = args_.seq_lens[row.request] - tokens + row.token;
    const int32_t first = args_.window <= 0  ? 0
                          : args_.is_chunked ? position / args_.window * args_.window
                                             : position - args_.window + 1;
    return {std::max(first, 0), position + 1};
  }

  [[nodiscard]] const float* query(const Row& row) const {
    return args_.q + (args_.query_start_loc[row.request] + row.token) * args_.q_stride +
           int64_t{row.head} * kv_.head_dim;
  }

  [[nodiscard]] uint16_t rounded(float x) const {
    return half_ == simt::Half::kF16 ? cuda::to_half(x) : cuda::to_bf16(x);
  }

  [[nodiscard]] std::vector<uint16_t> query_of(const Row& row) const {
    std::vector<uint16_t> q(width_);
    for (int32_t d = 0; d < kv_.head_dim; ++d) {
      q[static_cast<size_t>(d)] = rounded(query(row)[d]);
    }
    return q;
  }

  // Returns where the key's block of a head of K or V is.
  [[nodiscard]] const std::byte* block_of(const Row& row,
                                          const std::byte* cache,
                                          int32_t key,
                                          size_t width) const {
    const size_t entry = row.request * static_cast<size_t>(args_.block_table_stride) +
                         static_cast<size_t>(key / kv_.block_size);
    const int32_t kv_head = row.head / (args_.num_heads / kv_.num_kv_heads);
    return cache + (int64_t{args_.block_table[entry]} * kv_.num_kv_heads + kv_head) *
                       kv_head_bytes(kv_.dtype, static_cast<int64_t>(width), kv_.block_size);
  }

  // Returns an element as 16 bits of the tensor core's type.
  [[nodiscard]] uint16_t element(const std::byte* block, int64_t index) const {
    if (!has_kv_scales(kv_.dtype)) {
      uint16_t bits;
      std::memcpy(&bits, block + 2 * index, sizeof(bits));
      return bits;
    }
    const float code = kv_code_value(kv_.dtype, static_cast<uint8_t>(block[index]));
    return cuda::to_bf16(kv_.dtype == DType::kF8E4M3 ? code / 256 : code);
  }

  [[nodiscard]] uint16_t k_code(const Row& row, int32_t key, int64_t d) const {
    return element(block_of(row, kv_.k, key, width_), d * kv_.block_size + key % kv_.block_size);
  }

  [[nodiscard]] uint16_t v_code(const Row& row, int32_t key, int64_t d) const {
    return element(block_of(row, kv_.v, key, value_width_),
                   key % kv_.block_size * static_cast<int64_t>(value_width_) + d);
  }

  [[nodiscard]] float value(uint16_t bits) const {
    return half_ == simt::Half::kF16 ? cuda::from_half(bits) : cuda::from_bf16(bits);
  }

  [[nodiscard]] float k_scale(const Row& row, int32_t key) const {
    return scale(row, kv_.k, key, width_);
  }

  [[nodiscard]] float v_scale(const Row& row, int32_t key) const {
    return scale(row, kv_.v, key, value_width_);
  }

  [[nodiscard]] float scale(const Row& row,
                            const std::byte* cache,
                            int32_t key,
                            size_t width) const {
    if (!has_kv_scales(kv_.dtype)) return 1.0F;
    float scale;
    std::memcpy(&scale,
                block_of(row, cache, key, width) + width * static_cast<size_t>(kv_.block_size) +
                    static_cast<size_t>(key % kv_.block_size) * sizeof(float),
                sizeof(scale));
    return kv_.dtype == DType::kF8E4M3 ? scale * 256 : scale;
  }

  [[nodiscard]] float step(const uint16_t* a, const uint16_t* b, float c) const {
    return simt::tensor_core_step(half_, a, b, c, core_);
  }

  [[nodiscard]] float score(const Row& row, const std::vector<uint16_t>& q, int32_t key) const {
    float s = 0;
    for (size_t first = 0; first < width_; first += 16) {
      uint16_t k[16];
      for (size_t i = 0; i < 16; ++i) k[i] = k_code(row, key, static_cast<int64_t>(first + i));
      s = step(&q[first], k, s);
    }
    if (has_kv_scales(kv_.dtype)) s *= k_scale(row, key);
    s *= args_.scale;
    if (args_.soft_cap != 0) s = args_.soft_cap * cuda::tanh_of(s / args_.soft_cap);
    if (args_.slopes == nullptr) return s;
    const auto distance = static_cast<float>(keys_of(row).end - 1 - key);
    return std::fmaf(args_.slopes[row.head], distance, s);
  }

  // Adds a tile; keys of it that the row does not see weigh nothing.
  void add_tile(const Row& row,
                const std::vector<uint16_t>& q,
                int32_t begin,
                Keys keys,
                State& state) const {
    float p[kAttentionTile] = {};
    float m = state.m;
    const int32_t first = std::max(begin, keys.begin) - begin;
    const int32_t last = std::min(begin + kAttentionTile, keys.end) - begin;
    for (int32_t j = first; j < last; ++j) m = std::max(m, p[j] = score(row, q, begin + j));
    for (int32_t j = first; j < last; ++j) p[j] = cuda::exp_of(p[j] - m);
    const float c = cuda::exp_of(state.m - m);
    float quads[4];
    for (int32_t lane = 0; lane < 4; ++lane) {
      float groups[4];
      for (int32_t group = 0; group < 4; ++group) {
        const float* const of = p + 16 * group + 2 * lane;
        groups[group] = of[0] + of[1] + of[8] + of[9];
      }
      quads[lane] = (groups[0] + groups[1]) + (groups[2] + groups[3]);
    }
    state.m = m;
    state.l = std::fmaf(state.l, c, (quads[0] + quads[1]) + (quads[2] + quads[3]));
    uint16_t weights[kAttentionTile] = {};
    for (int32_t j = first; j < last; ++j) {
      const bool scaled = has_kv_scales(kv_.dtype) && p[j] != 0;
      weights[j] = rounded(scaled ? p[j] * v_scale(row, begin + j) : p[j]);
    }
    for (size_t d = 0; d < value_width_; ++d) {
      float o = state.o[d] * c;
      for (int32_t group = 0; group < kAttentionTile; group += 16) {
        uint16_t v[16] = {};
        for (int32_t j = std::max(group, first); j < std::min(group + 16, last); ++j) {
          v[j - group] = v_code(row, begin + j, static_cast<int64_t>(d));
        }
        o = step(weights + group, v, o);
      }
      state.o[d] = o;
    }
  }

  [[nodiscard]] State partition_of(const Row& row,
                                   const std::vector<uint16_t>& q,
                                   int32_t partition,
                                   Keys keys) const {
    State state;
    state.o.assign(value_width_, 0.0F);
    const int32_t begin = partition * kAttentionPartition;
    for (int32_t tile = begin; tile < begin + kAttentionPartition; tile += kAttentionTile) {
      if (tile + kAttentionTile <= keys.begin || tile >= keys.end) continue;
      add_tile(row, q, tile, keys, state);
    }
    for (float& o : state.o) o += 0.0F;
    return state;
  }

  const AttentionArgs& args_;
  const KvLayerView& kv_;
  simt::TensorCore core_;
  simt::Half half_;
  size_t width_;
  size_t value_width_;
};

}  // namespace sluice::kernels::test
