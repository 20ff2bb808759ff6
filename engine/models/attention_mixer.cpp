// SPDX-License-Identifier: Apache-2.0
#include "engine/models/attention_mixer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "engine/models/dense_ffn.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"
#include "kernels/recurrent.h"

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

// K and V as the kernels take them: planes of one shape.
kernels::KvLayerView view_of(const LayerCache& cache) {
  const KvPlaneView& k = cache.planes[0];
  return {.k = k.data,
          .v = cache.planes[1].data,
          .dtype = k.shape.dtype,
          .num_blocks = k.num_blocks,
          .block_size = k.block_size,
          .num_kv_heads = k.shape.num_heads,
          .head_dim = k.shape.width,
          .value_dim = cache.planes[1].shape.width};
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

AttentionMixer::Buffers AttentionMixer::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  Buffers buffers;
  buffers.qkv = arena.take_floats(tokens * qkv_stride());
  buffers.attention = arena.take_floats(tokens * attention_stride());
  if (config_.gates_with_queries) {
    buffers.gated_queries = arena.take_floats(tokens * 2 * q_width());
  }
  if (config_.gates_heads) buffers.head_gates = arena.take_floats(tokens * whole_heads());
  if (config_.qk_norm == QkNorm::kRow) {
    buffers.squares = arena.take_floats(tokens * (whole_heads() + whole_kv_heads()));
  }
  if (config_.attention_gate && has_shared_scales(out_)) {
    buffers.gated = arena.take_floats(tokens * align_up(out_width(), kQuantGroup));
  }
  const std::array<const Projection*, 1> readers = {&out_};
  buffers.out_in = LinearInput(readers, bounds.max_tokens, arena);
  // Each row that chooses a token may become a request of its own (DecodeBuckets).
  const int32_t num_reqs =
      std::min(std::max(bounds.max_seqs, bounds.max_logits), bounds.max_tokens);
  const int64_t bytes = kernels::attention_workspace_bytes(
      {.num_tokens = bounds.max_tokens,
       .num_reqs = num_reqs,
       .seq_len = bounds.max_seq_len,
       .num_heads = layer_.num_heads,
       .num_kv_heads = layer_.num_kv_heads,
       .head_dim = std::max(layer_.head_dim, layer_.value_width()),
       .num_threads = bounds.num_threads,
       .device = bounds.device});
  buffers.parts = RankParts(config_, tokens, arena);
  buffers.workspace = {arena.take_bytes(bytes), static_cast<size_t>(bytes)};
  return buffers;
}

int64_t AttentionMixer::scratch_bytes(const StepBounds& bounds) const {
  Arena arena;
  layout(bounds, arena);
  return arena.used();
}

void AttentionMixer::bind(const StepBounds& bounds, std::span<std::byte> scratch) {
  Arena arena(scratch);
  buffers_ = layout(bounds, arena);
}

void AttentionMixer::add_head_norms(const ForwardContext& context, kernels::RowSteps& steps) const {
  const bool apart = config_.qk_norm == QkNorm::kEachHead;
  if ((config_.qk_norm != QkNorm::kHead && !apart) || !layer_.norms_qk) return;
  const auto add = [&](float* x, float* out, int32_t num_heads, const DeviceFloats& weight) {
    steps.add(
        kernels::HeadNormArgs{.x = x,
                              .x_stride = qkv_stride(),
                              .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                              .num_heads = num_heads,
                              .n = layer_.head_dim,
                              .weight = weight.data(),
                              .eps = config_.norm_eps,
                              .subtracts_mean = apart && config_.norms_subtract_mean,
                              .out = out,
                              .weight_step = apart ? layer_.head_dim : 0});
  };
  add(buffers_.qkv, nullptr, layer_.num_heads, q_norm_);
  if (layer_.kv_from >= 0) return;
  float* const k = buffers_.qkv + q_width();
  float* const v = k + k_width();
  if (config_.value_norm) add(layer_.values_are_keys ? k : v, v, layer_.num_kv_heads, v_norm_);
  add(k, nullptr, layer_.num_kv_heads, k_norm_);
}

void AttentionMixer::add_squares(const ForwardContext& context, kernels::RowSteps& steps) const {
  const auto add = [&](const float* x, float* out, const Portion& own, int32_t count) {
    steps.add(
        kernels::HeadSquaresArgs{.x = x,
                                 .x_stride = qkv_stride(),
                                 .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                                 .num_heads = count,
                                 .n = layer_.head_dim,
                                 .out = out,
                                 .out_stride = whole_heads() + whole_kv_heads(),
                                 .first = own.first,
                                 .whole = static_cast<int32_t>(whole_of(own, count))});
  };
  add(buffers_.qkv, buffers_.squares, layer_.share.heads, layer_.num_heads);
  add(buffers_.qkv + q_width(),
      buffers_.squares + whole_heads(),
      layer_.share.kv_heads,
      layer_.num_kv_heads);
}

void AttentionMixer::add_row_norms(const ForwardContext& context,
                                   std::span<const float* const> squares,
                                   kernels::RowSteps& steps) const {
  const auto add = [&](float* x, int64_t column, int32_t count, const DeviceFloats& weight) {
    kernels::JoinedNormArgs args{
        .x = x,
        .x_stride = qkv_stride(),
        .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
        .num_heads = count,
        .n = layer_.head_dim,
        .parts = {},
        .num_parts = static_cast<int32_t>(squares.size()),
        .parts_stride = whole_heads() + whole_kv_heads(),
        .whole = static_cast<int32_t>(column == 0 ? whole_heads() : whole_kv_heads()),
        .weight = weight.data(),
        .eps = config_.norm_eps};
    for (size_t i = 0; i < squares.size(); ++i) args.parts[i] = squares[i] + column;
    steps.add(args);
  };
  add(buffers_.qkv, 0, layer_.num_heads, q_norm_);
  add(buffers_.qkv + q_width(), whole_heads(), layer_.num_kv_heads, k_norm_);
}

void AttentionMixer::attend(const ForwardContext& context,
                            const LayerCache& cache,
                            const kernels::RowSteps& then) const {
  const ForwardBatch& batch = context.batch;
  const auto group = static_cast<size_t>(cache.group);
  const float usual_scale = 1.0F / std::sqrt(static_cast<float>(layer_.head_dim));
  kernels::attention(context.exec,
                     {.q = buffers_.qkv,
                      .q_stride = qkv_stride(),
                      .num_heads = layer_.num_heads,
                      .kv = view_of(cache),
                      .query_start_loc = batch.query_start_loc,
                      .seq_lens = batch.seq_lens,
                      .num_tokens = static_cast<int32_t>(batch.token_ids.size()),
                      .max_seq_len = batch.max_seq_len,
                      .block_table = batch.block_tables[group].data(),
                      .block_table_stride = batch.block_table_strides[group],
                      .scale = config_.attention_scale != 0 ? config_.attention_scale : usual_scale,
                      .window = layer_.window,
                      .sees_behind = config_.is_encoder,
                      .num_seen = batch.num_seen,
                      .is_chunked = layer_.is_chunked,
                      .soft_cap = config_.attention_soft_cap,
                      .sinks = sinks_.data(),
                      .slopes = slopes_.data(),
                      .place_bias = config_.place_buckets > 0 ? place_bias_.data() + place_reach()
                                                              : nullptr,
                      .place_bias_stride = 2 * place_reach(),
                      .out = buffers_.attention,
                      .out_stride = attention_stride(),
                      .workspace = buffers_.workspace,
                      .then = &then});
}

void AttentionMixer::add_rope(const ForwardContext& context,
                              const LayerCache& cache,
                              const kernels::RopeTable* rope,
                              kernels::RowSteps& steps) const {
  const ForwardBatch& batch = context.batch;
  const int64_t stride = qkv_stride();
  const bool norms = config_.qk_norm == QkNorm::kRotatedHead && layer_.norms_qk;
  kernels::KvLayerView kv = view_of(cache);
  kv.num_kv_heads = own_kv_heads();
  steps.add(
      kernels::RopeWriteKvArgs{.q = buffers_.qkv,
                               .q_stride = stride,
                               .k = buffers_.qkv + q_width(),
                               .k_stride = stride,
                               .v = buffers_.qkv + q_width() + k_width(),
                               .v_stride = stride,
                               .num_heads = layer_.num_heads,
                               .table = rope,
                               .positions = batch.positions,
                               .slot_mapping = batch.slot_mapping[static_cast<size_t>(cache.group)],
                               .kv = kv,
                               .q_norm = norms ? q_norm_.data() : nullptr,
                               .k_norm = norms ? k_norm_.data() : nullptr,
                               .norm_eps = config_.norm_eps});
}

void AttentionMixer::add_output_rows(const LinearInput& out_in, kernels::RowSteps& steps) const {
  const bool shared_scales = has_shared_scales(out_);
  if (!config_.attention_gate) {
    if (!shared_scales) out_in.add_quantize_steps(out_, buffers_.attention, out_width(), steps);
    return;
  }
  out_in.fill_for(out_, [&](const kernels::Activations& rows) {
    steps.add(kernels::GateMulArgs{.gate = buffers_.attention + out_width(),
                                   .up = buffers_.attention,
                                   .stride = attention_stride(),
                                   .function = kernels::GateFunction::kSigmoid,
                                   .out = shared_scales ? as_floats(rows, buffers_.gated) : rows});
  });
}

void AttentionMixer::select_gates(const ForwardContext& context) const {
  const bool of_heads = config_.gates_heads;
  const auto select = [&](const DeviceInts& columns, float* to, int64_t to_stride) {
    kernels::select_columns(context.exec,
                            {.x = of_heads ? buffers_.head_gates : buffers_.gated_queries,
                             .x_stride = of_heads ? whole_heads() : 2 * q_width(),
                             .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                             .columns = columns.span(),
                             .absent = 0,
                             .out = to,
                             .out_stride = to_stride});
  };
  if (!of_heads) select(query_columns_, buffers_.qkv, qkv_stride());
  select(gate_columns_, buffers_.attention + out_width(), attention_stride());
}

bool AttentionMixer::project_qkv(const ForwardContext& context,
                                 const LayerCache& cache,
                                 const kernels::RopeTable* rope,
                                 const LinearInput& in) const {
  const int64_t stride = qkv_stride();
  float* q = buffers_.qkv;
  float* k = q + q_width();
  float* v = k + k_width();
  const bool alternate = config_.gates_with_queries;
  const std::array<ProjectionOutput, 4> qkv_out = {
      {alternate ? ProjectionOutput{buffers_.gated_queries, 2 * q_width()}
                 : ProjectionOutput{q, stride},
       {k, stride},
       {v, stride},
       config_.gates_heads  // the gate, if there is one
           ? ProjectionOutput{buffers_.head_gates, whole_heads()}
           : ProjectionOutput{buffers_.attention + out_width(), attention_stride()}}};
  const auto out = std::span(qkv_out).first(qkv_.weights().size());
  kernels::RowSteps steps;
  const bool by_row = config_.qk_norm == QkNorm::kRow;
  if (by_row) add_squares(context, steps);
  if (by_row && config_.share.size > 1) {
    project(context.exec, qkv_, in, out, kernels::Epilogue::kStore, &steps);
    const auto num_rows = static_cast<int64_t>(context.batch.token_ids.size());
    const GatheredSums squares =
        gather_sums(context, buffers_.squares, num_rows, whole_heads() + whole_kv_heads());
    if (squares.count == 0) return false;
    kernels::RowSteps norms;
    add_row_norms(context, squares.all(), norms);
    add_rope(context, cache, rope, norms);
    kernels::run_row_steps(context.exec, norms);
    return true;
  }
  const float* const own = buffers_.squares;
  if (by_row) add_row_norms(context, {&own, 1}, steps);
  add_head_norms(context, steps);
  if (config_.value_scale != 1) {
    steps.add(
        kernels::ScaleRowsArgs{.x = v,
                               .x_stride = stride,
                               .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                               .n = static_cast<int32_t>(v_width()),
                               .scale = config_.value_scale});
  }
  if (config_.qkv_limit != 0) {
    steps.add(
        kernels::ScaleRowsArgs{.x = q,
                               .x_stride = stride,
                               .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                               .n = static_cast<int32_t>(v - q + v_width()),
                               .limit = config_.qkv_limit});
  }
  add_rope(context, cache, rope, steps);
  project(context.exec, qkv_, in, out, kernels::Epilogue::kStore, alternate ? nullptr : &steps);
  if (alternate || config_.gates_heads) select_gates(context);
  if (alternate) kernels::run_row_steps(context.exec, steps);
  return true;
}

void AttentionMixer::forward(const ForwardContext& context,
                             const LayerCache& cache,
                             const kernels::RopeTable* rope,
                             const LinearInput& in,
                             const HalfOutput& out) const {
  const ForwardBatch& batch = context.batch;
  if (!project_qkv(context, cache, rope, in)) return;
  LinearInput out_in = buffers_.out_in;
  out_in.set_num_rows(static_cast<int32_t>(batch.token_ids.size()));
  kernels::RowSteps after_attention;
  add_output_rows(out_in, after_attention);
  attend(context, cache, after_attention);
  if (has_shared_scales(out_)) {
    const bool gated = config_.attention_gate;
    quantize_with_shared_scales(context,
                                out_,
                                out_in,
                                buffers_.parts,
                                gated ? buffers_.gated : buffers_.attention,
                                gated ? align_up(out_width(), kQuantGroup) : out_width());
  }
  project_to_stream(context, out_, out_in, buffers_.parts, out.rows, out.epilogue, out.then);
}

void AttentionMixer::read_ahead(const ForwardContext& context, const LayerCache& cache) const {
  const ForwardBatch& batch = context.batch;
  const auto group = static_cast<size_t>(cache.group);
  kernels::attention_ahead(context.exec,
                           {.kv = view_of(cache),
                            .num_heads = layer_.num_heads,
                            .query_start_loc = batch.query_start_loc,
                            .seq_lens = batch.seq_lens,
                            .block_table = batch.block_tables[group].data(),
                            .block_table_stride = batch.block_table_strides[group],
                            .window = layer_.window,
                            .is_chunked = layer_.is_chunked});
}

}  // namespace sluice
