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
