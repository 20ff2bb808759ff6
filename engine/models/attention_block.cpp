// SPDX-License-Identifier: Apache-2.0
#include "engine/models/attention_block.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {
namespace {

int64_t q_width(const ModelConfig& config) { return int64_t{config.num_heads} * config.head_dim; }

int64_t kv_width(const ModelConfig& config) {
  return int64_t{config.num_kv_heads} * config.head_dim;
}

Expected<DeviceFloats> load_norm(const ModelConfig& config,
                                 WeightStore& weights,
                                 const std::string& name,
                                 int64_t n) {
  SLUICE_TRY(std::vector<float> values, weights.vector(name, n));
  for (float& value : values) value += config.norm_offset;
  return weights.place(std::move(values));
}

}  // namespace

Expected<AttentionBlock> AttentionBlock::load(const ModelConfig& config,
                                              int32_t layer,
                                              int32_t activation_bits,
                                              WeightStore& weights) {
  SLUICE_TRY_VOID(kernels::check_attention(weights.device(), config.head_dim));
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const RankShare& share = config.share;
  const int64_t q = whole_of(share.heads, config.num_heads) * config.head_dim;
  const int64_t kv = whole_of(share.kv_heads, config.num_kv_heads) * config.head_dim;
  const Portion q_rows = rows_of(share.heads, config.head_dim);
  const Portion kv_rows = rows_of(share.kv_heads, config.head_dim);
  AttentionBlock block;
  block.window_ = config.layers[static_cast<size_t>(layer)].window;
  const std::string fused = prefix + "attn_qkv";
  const int64_t total = q + 2 * kv;
  const bool bias = config.qkv_bias;
  using Parts = std::array<Projection::Part, 3>;
  const Parts parts = config.fused_qkv ? Parts{{{fused, q, false, {0, total}, q_rows},
                                                {fused, kv, false, {q, total}, kv_rows},
                                                {fused, kv, false, {q + kv, total}, kv_rows}}}
                                       : Parts{{{prefix + "attn_q", q, bias, {}, q_rows},
                                                {prefix + "attn_k", kv, bias, {}, kv_rows},
                                                {prefix + "attn_v", kv, bias, {}, kv_rows}}};
  const int32_t width = config.attention_in > 0 ? config.attention_in : config.hidden;
  SLUICE_TRY(block.qkv_, Projection::load(weights, parts, width, activation_bits));
  const std::array<Projection::Part, 1> out = {
      {{prefix + "attn_output", config.hidden, config.attention_out_bias, {}, {}}}};
  SLUICE_TRY(block.out_, Projection::load(weights, out, q, activation_bits, share.segments));
  if (config.qk_norm != QkNorm::kNone) {
    const bool by_head = config.qk_norm == QkNorm::kHead;
    SLUICE_TRY(
        block.q_norm_,
        load_norm(config, weights, prefix + "attn_q_norm.weight", by_head ? config.head_dim : q));
    SLUICE_TRY(
        block.k_norm_,
        load_norm(config, weights, prefix + "attn_k_norm.weight", by_head ? config.head_dim : kv));
  }
  if (config.attention_sinks) {
    const int64_t heads = whole_of(share.heads, config.num_heads);
    SLUICE_TRY(std::vector<float> sinks, weights.vector(prefix + "attn_sinks.weight", heads));
    sinks.erase(sinks.begin(), sinks.begin() + share.heads.first);
    block.sinks_ = weights.place(std::move(sinks));
  }
  return block;
}

AttentionBuffers AttentionBlock::layout(const ModelConfig& config,
                                        std::span<const AttentionBlock> blocks,
                                        const StepBounds& bounds,
                                        Arena& arena) {
  const int64_t tokens = bounds.max_tokens;
  AttentionBuffers buffers;
  buffers.qkv = arena.take_floats(tokens * (q_width(config) + 2 * kv_width(config)));
  buffers.attention = arena.take_floats(tokens * q_width(config));
  std::vector<const Projection*> outputs;
  for (const AttentionBlock& block : blocks) outputs.push_back(&block.out_);
  buffers.out_in = LinearInput(outputs, bounds.max_tokens, arena);
  // Each row that chooses a token may become a request of its own (DecodeBuckets).
  const int32_t num_reqs =
      std::min(std::max(bounds.max_seqs, bounds.max_logits), bounds.max_tokens);
  const int64_t bytes = kernels::attention_workspace_bytes({.num_tokens = bounds.max_tokens,
                                                            .num_reqs = num_reqs,
                                                            .seq_len = bounds.max_seq_len,
                                                            .num_heads = config.num_heads,
                                                            .num_kv_heads = config.num_kv_heads,
                                                            .head_dim = config.head_dim,
                                                            .num_threads = bounds.num_threads,
                                                            .device = bounds.device});
  buffers.parts = RankParts(config, tokens, arena);
  buffers.workspace = {arena.take_bytes(bytes), static_cast<size_t>(bytes)};
  return buffers;
}

void AttentionBlock::add_norms(const ForwardContext& context,
                               const ModelConfig& config,
                               float* qkv,
                               kernels::RowSteps& steps) const {
  if (config.qk_norm == QkNorm::kNone) return;
  const int64_t stride = q_width(config) + 2 * kv_width(config);
  const auto num_rows = static_cast<int32_t>(context.batch.token_ids.size());
  const bool by_head = config.qk_norm == QkNorm::kHead;
  const auto add = [&](float* x, int32_t num_heads, const DeviceFloats& weight) {
    steps.add(kernels::HeadNormArgs{.x = x,
                                    .x_stride = stride,
                                    .num_rows = num_rows,
                                    .num_heads = by_head ? num_heads : 1,
                                    .n = static_cast<int32_t>(weight.size()),
                                    .weight = weight.data(),
                                    .eps = config.norm_eps});
  };
  add(qkv, config.num_heads, q_norm_);
  add(qkv + q_width(config), config.num_kv_heads, k_norm_);
}

void AttentionBlock::forward(const ForwardContext& context,
                             const ModelConfig& config,
                             const LayerCache& cache,
                             const kernels::RopeTable* rope,
                             const LinearInput& in,
                             const AttentionBuffers& buffers,
                             ProjectionOutput out,
                             kernels::Epilogue epilogue,
                             const kernels::RowSteps& then) const {
  const ForwardBatch& batch = context.batch;
  const int64_t stride = q_width(config) + 2 * kv_width(config);
  float* q = buffers.qkv;
  float* k = q + q_width(config);
  float* v = k + kv_width(config);
  const auto group = static_cast<size_t>(cache.group);
  kernels::RowSteps after_qkv;
  add_norms(context, config, q, after_qkv);
  after_qkv.add(kernels::RopeWriteKvArgs{.q = q,
                                         .q_stride = stride,
                                         .k = k,
                                         .k_stride = stride,
                                         .v = v,
                                         .v_stride = stride,
                                         .num_heads = config.num_heads,
                                         .table = rope,
                                         .positions = batch.positions,
                                         .slot_mapping = batch.slot_mapping[group],
                                         .kv = cache.view});
  const std::array<ProjectionOutput, 3> qkv_out = {{{q, stride}, {k, stride}, {v, stride}}};
  project(context.exec, qkv_, in, qkv_out, kernels::Epilogue::kStore, &after_qkv);
  LinearInput out_in = buffers.out_in;
  out_in.set_num_rows(static_cast<int32_t>(batch.token_ids.size()));
  kernels::RowSteps after_attention;
  if (!has_shared_scales(out_)) {
    out_in.add_quantize_steps(out_, buffers.attention, q_width(config), after_attention);
  }
  const float usual_scale = 1.0F / std::sqrt(static_cast<float>(config.head_dim));
  kernels::attention(context.exec,
                     {.q = q,
                      .q_stride = stride,
                      .num_heads = config.num_heads,
                      .kv = cache.view,
                      .query_start_loc = batch.query_start_loc,
                      .seq_lens = batch.seq_lens,
                      .num_tokens = static_cast<int32_t>(batch.token_ids.size()),
                      .max_seq_len = batch.max_seq_len,
                      .block_table = batch.block_tables[group].data(),
                      .block_table_stride = batch.block_table_strides[group],
                      .scale = config.attention_scale != 0 ? config.attention_scale : usual_scale,
                      .window = window_,
                      .soft_cap = config.attention_soft_cap,
                      .sinks = sinks_.data(),
                      .out = buffers.attention,
                      .out_stride = q_width(config),
                      .workspace = buffers.workspace,
                      .then = &after_attention});
  if (has_shared_scales(out_)) {
    quantize_with_shared_scales(
        context, out_, out_in, buffers.parts, buffers.attention, q_width(config));
  }
  project_to_stream(context, out_, out_in, buffers.parts, out, epilogue, then);
}

void AttentionBlock::read_ahead(const ForwardContext& context,
                                const ModelConfig& config,
                                const LayerCache& cache) const {
  const ForwardBatch& batch = context.batch;
  const auto group = static_cast<size_t>(cache.group);
  kernels::attention_ahead(
      context.exec,
      {.kv = cache.view,
       .num_heads = config.num_heads,
       .query_start_loc = batch.query_start_loc,
       .seq_lens = batch.seq_lens,
       .block_table = batch.block_tables[group].data(),
       .block_table_stride = batch.block_table_strides[group],
       .window = window_});
}

}  // namespace sluice
