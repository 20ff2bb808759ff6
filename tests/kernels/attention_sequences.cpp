// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/attention_sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "kernels/cpu/isa/simd.h"
#include "kernels/rope.h"
#include "kernels/row_steps.h"
#include "quant/format.h"
#include "quant/kv_code.h"

namespace sluice::kernels::test {

Sequences::Sequences(const Shape& shape, std::vector<int32_t> lengths, uint64_t seed)
    : shape_(shape), lengths_(std::move(lengths)) {
  Random random(seed);
  for (const int32_t length : lengths_) {
    first_.push_back(num_tokens_);
    num_tokens_ += length;
  }
  const auto tokens = static_cast<size_t>(num_tokens_);
  q_ = random.normals(tokens * static_cast<size_t>(q_width()), 1.5F);
  k_ = random.normals(tokens * static_cast<size_t>(k_width()), 1.5F);
  v_ = random.normals(tokens * static_cast<size_t>(v_width()));
  sinks_ = random.normals(static_cast<size_t>(shape.num_heads), 2);
  for (int32_t head = 0; head < shape.num_heads; ++head) {
    slopes_.push_back(-0.3F / static_cast<float>(1 + head * head));
  }
  place_reach_ = static_cast<int32_t>(
      align_up(*std::max_element(lengths_.begin(), lengths_.end()), 16));
  if (shape.place_bias) {
    place_bias_ = random.normals(static_cast<size_t>(2 * shape.num_heads * place_reach_));
  }
  cached_k_ = as_cached(k_, shape.head_dim);
  cached_v_ = as_cached(v_, shape.value_width());
  // Blocks are in random order, so that nothing depends on neighbours.
  const int32_t longest = *std::max_element(lengths_.begin(), lengths_.end());
  table_stride_ = static_cast<int32_t>(ceil_div(longest, shape.block_size));
  num_blocks_ = table_stride_ * static_cast<int32_t>(lengths_.size());
  table_.resize(static_cast<size_t>(num_blocks_));
  std::iota(table_.begin(), table_.end(), 0);
  for (size_t i = table_.size(); i > 1; --i) {
    std::swap(table_[i - 1], table_[static_cast<size_t>(random.below(static_cast<int32_t>(i)))]);
  }
}

Sequences::Result Sequences::run(const Device& device,
                                 const std::vector<Step>& steps,
                                 int32_t workspace_seq_len) {
  Result result;
  const auto cache_bytes = [&](int32_t width) {
    return static_cast<size_t>(num_blocks_) * static_cast<size_t>(shape_.num_kv_heads) *
           static_cast<size_t>(kv_head_bytes(shape_.dtype, width, shape_.block_size));
  };
  result.k.assign(cache_bytes(shape_.head_dim), std::byte{0xFF});
  result.v.assign(cache_bytes(shape_.value_width()), std::byte{0xFF});
  result.out.assign(static_cast<size_t>(num_tokens_) * static_cast<size_t>(out_width()),
                    std::nanf(""));
  std::vector<int32_t> done(lengths_.size(), 0);
  for (const Step& step : steps) run_step(device, step, workspace_seq_len, done, result);
  EXPECT_EQ(done, lengths_);
  return result;
}

std::vector<double> Sequences::oracle(int32_t req,
                                      int32_t position,
                                      int32_t head,
                                      bool from_cache) const {
  const auto element = [&](const std::vector<float>& rows,
                           const Cached& cached,
                           int32_t j,
                           int32_t kv_head,
                           int32_t width,
                           int32_t d) {
    const size_t at = index(req, j, kv_head);
    const auto i = at * static_cast<size_t>(width) + static_cast<size_t>(d);
    if (!from_cache) return static_cast<double>(rows[i]);
    return static_cast<double>(cached.codes[i]) * static_cast<double>(cached.scales[at]);
  };
  const int32_t kv_head = head / (shape_.num_heads / shape_.num_kv_heads);
  const float* q = query(req, position, head);
  const int32_t begin = first_key(position);
  std::vector<double> scores;
  double top = -std::numeric_limits<double>::infinity();
  for (int32_t j = begin; j <= last_key(req, position); ++j) {
    double score = 0;
    for (int32_t d = 0; d < shape_.head_dim; ++d) {
      score += double{q[d]} * element(k_, cached_k_, j, kv_head, shape_.head_dim, d);
    }
    score *= static_cast<double>(scale());
    if (shape_.soft_cap != 0) {
      const auto cap = static_cast<double>(shape_.soft_cap);
      score = cap * std::tanh(score / cap);
    }
    if (shape_.slopes) {
      score += static_cast<double>(slopes_[static_cast<size_t>(head)]) * std::abs(position - j);
    }
    if (shape_.place_bias) score += double{place_bias_of(head, j - position)};
    scores.push_back(score);
    top = std::max(top, score);
  }
  const auto sink = static_cast<double>(sinks_[static_cast<size_t>(head)]);
  if (shape_.sinks) top = std::max(top, sink);
  double total = shape_.sinks ? std::exp(sink - top) : 0;
  std::vector<double> out(static_cast<size_t>(shape_.value_width()), 0);
  for (int32_t j = begin; j <= last_key(req, position); ++j) {
    const double p = std::exp(scores[static_cast<size_t>(j - begin)] - top);
    total += p;
    for (size_t d = 0; d < out.size(); ++d) {
      out[d] +=
          p * element(v_, cached_v_, j, kv_head, shape_.value_width(), static_cast<int32_t>(d));
    }
  }
  for (double& value : out) value /= total;
  return out;
}

std::optional<Sequences::State> Sequences::partition_of(
    int32_t req, int32_t position, int32_t head, int32_t partition, int32_t begin) const {
  const int32_t kv_head = head / (shape_.num_heads / shape_.num_kv_heads);
  const auto dim = static_cast<size_t>(shape_.head_dim);
  const float* q = query(req, position, head);
  State state;
  const auto value_dim = static_cast<size_t>(shape_.value_width());
  state.o.assign(value_dim, 0.0F);
  bool any = false;
  for (int32_t tile = partition; tile < partition + kAttentionPartition; tile += kAttentionTile) {
    const int32_t from = std::max(tile, begin);
    const int32_t to = std::min(tile + kAttentionTile, last_key(req, position) + 1);
    if (from >= to) continue;
    any = true;
    std::vector<float> s(kAttentionTile);
    float m = state.m;
    for (int32_t j = from; j < to; ++j) {
      const size_t at = index(req, j, kv_head);
      float acc = 0;
      for (size_t d = 0; d < dim; ++d) {
        acc = std::fmaf(q[d], cached_k_.codes[at * dim + d], acc);
      }
      float& score = s[static_cast<size_t>(j - tile)];
      score = acc * cached_k_.scales[at] * scale();
      if (shape_.slopes) {
        const auto distance = static_cast<float>(std::abs(position - j));
        score = std::fmaf(slopes_[static_cast<size_t>(head)], distance, score);
      }
      if (shape_.place_bias) score += place_bias_of(head, j - position);
      m = std::max(m, s[static_cast<size_t>(j - tile)]);
    }
    float lanes[16] = {};
    const float c = own_exp(state.m - m);
    for (float& o : state.o) o *= c;
    for (int32_t j = from; j < to; ++j) {
      const float p = own_exp(s[static_cast<size_t>(j - tile)] - m);
      lanes[j % 16] += p;
      const size_t at = index(req, j, kv_head);
      const float weight = p * cached_v_.scales[at];
      for (size_t d = 0; d < value_dim; ++d) {
        state.o[d] = std::fmaf(weight, cached_v_.codes[at * value_dim + d], state.o[d]);
      }
    }
    for (int half = 8; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    state.l = std::fmaf(state.l, c, lanes[0]);
    state.m = m;
  }
  if (!any) return std::nullopt;
  return state;
}

void Sequences::merge(const State& state, State& merged) {
  const float m = std::max(merged.m, state.m);
  const float a = own_exp(merged.m - m);
  const float b = own_exp(state.m - m);
  merged.m = m;
  merged.l = std::fmaf(state.l, b, merged.l * a);
  for (size_t d = 0; d < merged.o.size(); ++d) {
    merged.o[d] = std::fmaf(state.o[d], b, merged.o[d] * a);
  }
}

std::vector<float> Sequences::tree(int32_t req, int32_t position, int32_t head) const {
  const int32_t begin = first_key(position);
  State merged;
  bool started = false;
  const int32_t last = last_key(req, position);
  for (int32_t partition = 0; partition <= last; partition += kAttentionPartition) {
    const std::optional<State> state = partition_of(req, position, head, partition, begin);
    if (!state) continue;
    if (started) {
      merge(*state, merged);
    } else {
      merged = *state;
    }
    started = true;
  }
  if (shape_.sinks) {
    const float sink = sinks_[static_cast<size_t>(head)];
    const float m = std::max(merged.m, sink);
    const float a = own_exp(merged.m - m);
    merged.l = merged.l * a + own_exp(sink - m);
    for (float& o : merged.o) o *= a;
  }
  for (float& o : merged.o) o /= merged.l;
  return merged.o;
}

float Sequences::own_exp(float x) {
  float in[16] = {};
  float out[16];
  in[0] = x;
  cpu::simd_table(Isa::kScalar).map(cpu::MathFunction::kExp, in, 16, out);
  return out[0];
}

double Sequences::rounded(float x) const {
  switch (shape_.dtype) {
    case DType::kF16:
      return static_cast<double>(half_to_float(float_to_half(x)));
    case DType::kBF16:
      return static_cast<double>(bf16_to_float(float_to_bf16(x)));
    default:
      return static_cast<double>(x);
  }
}

Sequences::Cached Sequences::as_cached(const std::vector<float>& rows, int32_t width) const {
  const auto dim = static_cast<size_t>(width);
  Cached cached{.codes = rows, .scales = std::vector<float>(rows.size() / dim, 1.0F)};
  if (!has_kv_scales(shape_.dtype)) {
    for (float& x : cached.codes) x = static_cast<float>(rounded(x));
    return cached;
  }
  const float unit = shape_.dtype == DType::kF8E4M3 ? 256.0F : 1.0F;
  std::vector<uint8_t> codes(dim);
  for (size_t i = 0; i < cached.scales.size(); ++i) {
    cached.scales[i] =
        unit * encode_kv_row(shape_.dtype, std::span(rows).subspan(i * dim, dim), codes.data());
    for (size_t d = 0; d < dim; ++d) {
      cached.codes[i * dim + d] = kv_code_value(shape_.dtype, codes[d]) / unit;
    }
  }
  return cached;
}

Sequences::Batch Sequences::gather(const Step& step, std::vector<int32_t>& done) const {
  Batch batch;
  for (const Piece& piece : step) {
    const auto req = static_cast<size_t>(piece.req);
    const int32_t* table = table_.data() + piece.req * table_stride_;
    for (int32_t i = 0; i < piece.num_tokens; ++i) {
      const int32_t position = done[req] + i;
      const int64_t token = first_[req] + position;
      batch.q.insert(
          batch.q.end(), q_.begin() + token * q_width(), q_.begin() + (token + 1) * q_width());
      batch.k.insert(
          batch.k.end(), k_.begin() + token * k_width(), k_.begin() + (token + 1) * k_width());
      batch.v.insert(
          batch.v.end(), v_.begin() + token * v_width(), v_.begin() + (token + 1) * v_width());
      batch.positions.push_back(position);
      batch.slots.push_back(int64_t{table[position / shape_.block_size]} * shape_.block_size +
                            position % shape_.block_size);
    }
    done[req] += piece.num_tokens;
    batch.query_start_loc.push_back(static_cast<int32_t>(batch.positions.size()));
    batch.seq_lens.push_back(done[req]);
    // Entries past the sequence and wholly before the window must not be read.
    const int32_t oldest = first_key(done[req] - piece.num_tokens);
    for (int32_t b = 0; b < table_stride_; ++b) {
      const bool used = b * shape_.block_size < done[req] && (b + 1) * shape_.block_size > oldest;
      batch.tables.push_back(used ? table[b] : -1000000);
    }
  }
  return batch;
}

std::vector<float> Sequences::attend(const Device& device,
                                     const Batch& batch,
                                     const KvLayerView& kv,
                                     int32_t workspace_seq_len) const {
  const int32_t longest = *std::max_element(batch.seq_lens.begin(), batch.seq_lens.end());
  const int64_t bytes =
      attention_workspace_bytes({.num_tokens = batch.query_start_loc.back(),
                                 .num_reqs = static_cast<int32_t>(batch.seq_lens.size()),
                                 .seq_len = workspace_seq_len > 0 ? workspace_seq_len : longest,
                                 .num_heads = shape_.num_heads,
                                 .num_kv_heads = shape_.num_kv_heads,
                                 .head_dim = std::max(shape_.head_dim, shape_.value_width()),
                                 .num_threads = device.num_threads()});
  std::vector<float> workspace(static_cast<size_t>(bytes) / sizeof(float), std::nanf(""));
  const size_t out_floats =
      static_cast<size_t>(batch.query_start_loc.back()) * static_cast<size_t>(out_width());
  std::vector<float> out(out_floats, std::nanf(""));
  // A following step sees each token once, and whole.
  std::vector<float> followed(out_floats, 0);
  RowSteps then;
  then.add(AddRowsArgs{.x = followed.data(),
                       .x_stride = out_width(),
                       .y = out.data(),
                       .y_stride = out_width(),
                       .num_rows = batch.query_start_loc.back(),
                       .n = static_cast<int32_t>(out_width())});
  std::vector<int32_t> num_seen;
  for (const int32_t length : batch.seq_lens) {
    if (shape_.num_unseen > 0) num_seen.push_back(shape_.num_seen(length));
  }
  attention(device.context(),
            {.q = batch.q.data(),
             .q_stride = q_width(),
             .num_heads = shape_.num_heads,
             .kv = kv,
             .query_start_loc = batch.query_start_loc,
             .seq_lens = batch.seq_lens,
             .block_table = batch.tables.data(),
             .block_table_stride = table_stride_,
             .scale = scale(),
             .window = shape_.window,
             .sees_behind = shape_.sees_behind,
             .num_seen = num_seen,
             .is_chunked = shape_.is_chunked,
             .soft_cap = shape_.soft_cap,
             .sinks = shape_.sinks ? sinks_.data() : nullptr,
             .slopes = shape_.slopes ? slopes_.data() : nullptr,
             .place_bias = shape_.place_bias ? &place_bias_of(0, 0) : nullptr,
             .place_bias_stride = 2 * place_reach_,
             .out = out.data(),
             .out_stride = out_width(),
             .workspace = std::as_writable_bytes(std::span(workspace)),
             .then = &then});
  EXPECT_EQ(followed, out) << device.name();
  return out;
}

void Sequences::run_step(const Device& device,
                         const Step& step,
                         int32_t workspace_seq_len,
                         std::vector<int32_t>& done,
                         Result& result) const {
  Batch batch = gather(step, done);
  const KvLayerView kv = {.k = result.k.data(),
                          .v = result.v.data(),
                          .dtype = shape_.dtype,
                          .num_blocks = num_blocks_,
                          .block_size = shape_.block_size,
                          .num_kv_heads = shape_.num_kv_heads,
                          .head_dim = shape_.head_dim,
                          .value_dim = shape_.value_dim};
  rope_write_kv(device.context(),
                {.q = batch.q.data(),
                 .q_stride = q_width(),
                 .k = batch.k.data(),
                 .k_stride = k_width(),
                 .v = batch.v.data(),
                 .v_stride = v_width(),
                 .num_heads = shape_.num_heads,
                 .table = nullptr,
                 .positions = batch.positions,
                 .slot_mapping = batch.slots,
                 .kv = kv});
  const std::vector<float> out = attend(device, batch, kv, workspace_seq_len);
  for (size_t i = 0; i < step.size(); ++i) {
    const auto req = static_cast<size_t>(step[i].req);
    const int64_t token = first_[req] + done[req] - step[i].num_tokens;
    std::copy(out.begin() + int64_t{batch.query_start_loc[i]} * out_width(),
              out.begin() + int64_t{batch.query_start_loc[i + 1]} * out_width(),
              result.out.begin() + token * out_width());
  }
}

std::vector<Step> together(const std::vector<int32_t>& lengths, int32_t chunk) {
  std::vector<Step> steps;
  for (int32_t at = 0;; at += chunk) {
    Step step;
    for (size_t req = 0; req < lengths.size(); ++req) {
      const int32_t left = lengths[req] - at;
      if (left > 0) step.push_back({static_cast<int32_t>(req), std::min(chunk, left)});
    }
    if (step.empty()) return steps;
    steps.push_back(step);
  }
}

std::vector<Step> apart(const std::vector<int32_t>& lengths, int32_t chunk) {
  std::vector<Step> steps;
  for (size_t req = 0; req < lengths.size(); ++req) {
    for (int32_t left = lengths[req]; left > 0; left -= chunk) {
      steps.push_back({{static_cast<int32_t>(req), std::min(chunk, left)}});
    }
  }
  return steps;
}

std::vector<Step> mixed(std::vector<int32_t> left, uint64_t seed) {
  Random random(seed);
  const int32_t sizes[] = {1, 1, 2, 7, 16, 64, 100};
  std::vector<Step> steps;
  while (std::any_of(left.begin(), left.end(), [](int32_t n) { return n > 0; })) {
    Step step;
    for (size_t req = left.size(); req-- > 0;) {
      if (left[req] == 0 || random.below(4) == 0) continue;
      const int32_t tokens = std::min(left[req], sizes[random.below(7)]);
      step.push_back({static_cast<int32_t>(req), tokens});
      left[req] -= tokens;
    }
    if (!step.empty()) steps.push_back(step);
  }
  return steps;
}

}  // namespace sluice::kernels::test
