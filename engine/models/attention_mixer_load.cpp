// SPDX-License-Identifier: Apache-2.0
// An attention half's tensors: how files name and join them, and this rank's part of them.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/attention_mixer.h"
#include "engine/models/rank_share.h"

namespace sluice {
namespace {

Expected<DeviceFloats> load_norm(const ModelConfig& config,
                                 WeightStore& weights,
                                 const std::string& name,
                                 int64_t n,
                                 const Portion& own) {
  SLUICE_TRY(std::vector<float> values, weights.vector(name, n));
  if (own.whole > 0) {
    values = {values.begin() + own.first, values.begin() + own.first + own.count};
  }
  for (float& value : values) value += config.norm_offset;
  return weights.place(std::move(values));
}

// What a score gains for each token of distance, by head. Where the number of heads is no power of
// two, the heads beyond one have every other slope of twice as many.
std::vector<float> alibi_slopes(const ModelConfig& config, int64_t num_heads) {
  const auto whole = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_heads)));
  std::vector<float> slopes;
  for (int64_t head = 0; head < num_heads; ++head) {
    const bool is_beyond = head >= whole;
    const auto step = static_cast<double>(is_beyond ? 2 * (head - whole) + 1 : 2 * (head + 1));
    const double steps = 2 * static_cast<double>(whole);
    const double exponent = -static_cast<double>(config.max_alibi_bias) * step / steps;
    slopes.push_back(-static_cast<float>(std::exp2(exponent)));
  }
  return slopes;
}

// The row of T5's table for a key so many places later, or earlier where it is negative: 8 rows for
// as many places each way, then 2 for each doubling of the distance up to 128, then the last one.
int64_t bucket_of_place(int64_t later) {
  constexpr int64_t kEachWay = 16;
  constexpr int64_t kExact = 8;
  const int64_t distance = std::abs(later);
  int64_t bucket = distance;
  if (distance >= kExact) {  // 8 + the whole part of 2 log2(distance / 8)
    const auto ratio = static_cast<uint64_t>(distance * distance / (kExact * kExact));
    const auto steps = static_cast<int64_t>(std::bit_width(ratio)) - 1;
    bucket = std::min(kExact + steps, kEachWay - 1);
  }
  return later > 0 ? kEachWay + bucket : bucket;
}

}  // namespace

Expected<std::unique_ptr<Mixer>> AttentionMixer::load(const ModelConfig& config,
                                                      int32_t layer,
                                                      int32_t activation_bits,
                                                      WeightStore& weights) {
  std::unique_ptr<AttentionMixer> mixer(
      new AttentionMixer(config, config.layers[static_cast<size_t>(layer)]));
  SLUICE_TRY_VOID(
      mixer->load_tensors("blk." + std::to_string(layer) + ".", activation_bits, weights));
  return mixer;
}

// Finds the columns of queries and gates, which alternate by head.
void AttentionMixer::separate_gates(WeightStore& weights) {
  CHECK(!config_.fused_qkv);
  std::vector<int32_t> queries;
  std::vector<int32_t> gates;
  for (int32_t i = 0; i < layer_.num_heads * layer_.head_dim; ++i) {
    const int32_t column = i + i / layer_.head_dim * layer_.head_dim;
    queries.push_back(column);
    gates.push_back(column + layer_.head_dim);
  }
  query_columns_ = weights.place(std::move(queries));
  gate_columns_ = weights.place(std::move(gates));
}

// Finds the gate of each column of a head's output. Ranks project all gates: a head's is one row,
// and shares are whole tiles of them.
void AttentionMixer::share_gates(WeightStore& weights) {
  std::vector<int32_t> gates;
  for (int32_t i = 0; i < out_width(); ++i) {
    gates.push_back(layer_.share.heads.first + i / layer_.value_width());
  }
  gate_columns_ = weights.place(std::move(gates));
}

Expected<void> AttentionMixer::load_tensors(const std::string& prefix,
                                            int32_t bits,
                                            WeightStore& weights) {
  const int32_t head_dim = layer_.head_dim;
  const int32_t value_dim = layer_.value_width();
  SLUICE_TRY_VOID(kernels::check_attention(weights.device(), head_dim, value_dim));
  if (config_.is_encoder && weights.device() != DeviceType::kCpu) {
    return make_error(ErrorCode::kUnsupported,
                      weights.path() + ": found tokens that see those behind them, as the CUDA "
                                       "backend's attention has none; --device cpu runs it",
                      "device");
  }
  const LayerShare& share = layer_.share;
  const int64_t q = whole_of(share.heads, layer_.num_heads) * head_dim;
  const int64_t k = whole_of(share.kv_heads, layer_.num_kv_heads) * head_dim;
  const int64_t v = whole_of(share.kv_heads, layer_.num_kv_heads) * value_dim;
  const int64_t out_rows = whole_of(share.heads, layer_.num_heads) * value_dim;
  const Portion q_rows = rows_of(share.heads, head_dim);
  const Portion k_rows = rows_of(share.kv_heads, head_dim);
  const Portion v_rows = rows_of(share.kv_heads, value_dim);
  const std::string fused = prefix + "attn_qkv";
  const int64_t total = q + k + v;
  const bool bias = config_.qkv_bias;
  const int32_t parts_of_q = config_.gates_with_queries ? 2 : 1;
  if (config_.gates_with_queries) separate_gates(weights);
  using Parts = std::vector<Projection::Part>;
  Parts parts = config_.fused_qkv ? Parts{{fused, q, bias, {0, total}, q_rows},
                                          {fused, k, bias, {q, total}, k_rows},
                                          {fused, v, bias, {q + k, total}, v_rows}}
                                  : Parts{{prefix + "attn_q",
                                           parts_of_q * q,
                                           bias,
                                           {},
                                           rows_of(share.heads, parts_of_q * head_dim)},
                                          {prefix + "attn_k", k, bias, {}, k_rows},
                                          {prefix + "attn_v", v, bias, {}, v_rows}};
  if (layer_.kv_from >= 0 || layer_.values_are_keys) {
    CHECK(!config_.fused_qkv && !config_.attention_gate);
    parts.resize(layer_.kv_from >= 0 ? 1 : 2);
  }
  const bool has_matrix = config_.attention_gate && !config_.gates_with_queries;
  if (has_matrix && config_.gates_heads) {
    share_gates(weights);
    parts.push_back({prefix + "attn_gate", whole_heads(), false, {}, {}});
  } else if (has_matrix) {
    CHECK_EQ(value_dim, head_dim);
    parts.push_back({prefix + "attn_gate", q, false, {}, q_rows});
  }
  const int32_t width = config_.attention_in > 0 ? config_.attention_in : config_.hidden;
  SLUICE_TRY(qkv_, Projection::load(weights, parts, width, bits));
  const std::array<Projection::Part, 1> out = {
      {{prefix + "attn_output", config_.hidden, config_.attention_out_bias, {}, {}}}};
  SLUICE_TRY(out_, Projection::load(weights, out, out_rows, bits, config_.share.segments));
  SLUICE_TRY_VOID(load_norms(prefix, weights));
  if (config_.attention_sinks && layer_.has_sinks) {
    const int64_t heads = whole_of(share.heads, layer_.num_heads);
    SLUICE_TRY(std::vector<float> sinks, weights.vector(prefix + "attn_sinks.weight", heads));
    sinks.erase(sinks.begin(), sinks.begin() + share.heads.first);
    sinks_ = weights.place(std::move(sinks));
  }
  if (config_.max_alibi_bias != 0) {
    std::vector<float> slopes = alibi_slopes(config_, whole_of(share.heads, layer_.num_heads));
    slopes.erase(slopes.begin(), slopes.begin() + share.heads.first);
    slopes_ = weights.place(std::move(slopes));
  }
  if (config_.place_buckets > 0) {
    SLUICE_TRY(place_bias_, load_place_bias(weights));
  }
  return {};
}

// One table for all layers, a row a bucket, becomes each head's bias by place.
Expected<DeviceFloats> AttentionMixer::load_place_bias(WeightStore& weights) const {
  const int64_t buckets = config_.place_buckets;
  std::vector<std::vector<float>> table;
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    SLUICE_TRY(std::vector<float> row,
               weights.vector("attn_rel_b.weight", layer_.num_heads, {bucket, buckets}));
    table.push_back(std::move(row));
  }
  std::vector<float> biases;
  for (size_t head = 0; head < static_cast<size_t>(layer_.num_heads); ++head) {
    for (int64_t later = -place_reach(); later < place_reach(); ++later) {
      biases.push_back(table[static_cast<size_t>(bucket_of_place(later))][head]);
    }
  }
  return weights.place(std::move(biases));
}

// Loads weights that each head has of its own: a row of one tensor, or a tensor a head.
Expected<DeviceFloats> AttentionMixer::load_head_norms(const std::string& stem,
                                                       int64_t heads,
                                                       const Portion& own,
                                                       WeightStore& weights) const {
  const bool are_apart = weights.has(stem + ".0.weight");
  std::vector<float> all;
  for (int64_t head = 0; head < heads; ++head) {
    const std::string name = are_apart ? stem + "." + std::to_string(head) : stem;
    const RowSlice row = are_apart ? RowSlice{} : RowSlice{head, heads};
    SLUICE_TRY(const std::vector<float> one,
               weights.vector(name + ".weight", layer_.head_dim, row));
    const bool is_own = own.whole == 0 || (head >= own.first && head < own.first + own.count);
    if (is_own) all.insert(all.end(), one.begin(), one.end());
  }
  for (float& value : all) value += config_.norm_offset;
  return weights.place(std::move(all));
}

Expected<void> AttentionMixer::load_norms(const std::string& prefix, WeightStore& weights) {
  const int32_t head_dim = layer_.head_dim;
  if (config_.value_norm) {
    v_norm_ = weights.place(std::vector<float>(static_cast<size_t>(head_dim), 1.0F));
  }
  const bool by_head = config_.qk_norm != QkNorm::kRow;
  const auto load = [&](const char* name,
                        int64_t heads,
                        const Portion& own) -> Expected<DeviceFloats> {
    if (config_.qk_norm == QkNorm::kEachHead) {
      return load_head_norms(prefix + name, heads, own, weights);
    }
    return load_norm(config_,
                     weights,
                     prefix + name + ".weight",
                     by_head ? head_dim : heads * head_dim,
                     by_head ? Portion{} : rows_of(own, head_dim));
  };
  const bool has_norms = config_.qk_norm != QkNorm::kNone && layer_.norms_qk;
  if (has_norms && !config_.qk_norm_weights) {
    CHECK(by_head);
    const std::vector<float> ones(static_cast<size_t>(head_dim), 1.0F);
    q_norm_ = weights.place(ones);
    k_norm_ = weights.place(ones);
  } else if (has_norms) {
    SLUICE_TRY(q_norm_, load("attn_q_norm", whole_heads(), layer_.share.heads));
    if (layer_.kv_from < 0) {
      SLUICE_TRY(k_norm_, load("attn_k_norm", whole_kv_heads(), layer_.share.kv_heads));
    }
  }
  if (layer_.kv_from < 0) return {};
  // Files may have what such a layer would have if it did not read another's.
  for (const char* name : {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"}) {
    weights.leave_out(prefix + name);
  }
  return {};
}

}  // namespace sluice
