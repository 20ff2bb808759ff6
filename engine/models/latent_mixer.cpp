// SPDX-License-Identifier: Apache-2.0
#include "engine/models/latent_mixer.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/norm.h"

namespace sluice {
namespace {

kernels::LatentKvView latent_view(const LayerCache& cache) {
  const KvPlaneView& latent = cache.planes[0];
  const KvPlaneView& rope = cache.planes[1];
  return {.latent = latent.data,
          .rope = rope.data,
          .dtype = latent.shape.dtype,
          .num_blocks = latent.num_blocks,
          .block_size = latent.block_size,
          .latent_dim = latent.shape.width,
          .rope_dim = rope.shape.width};
}

}  // namespace

Expected<std::unique_ptr<Mixer>> LatentMixer::load(const ModelConfig& config,
                                                   int32_t layer,
                                                   int32_t activation_bits,
                                                   WeightStore& weights) {
  SLUICE_TRY_VOID(kernels::check_latent_attention(
      weights.device(), config.latent.kv_rank, config.latent.rope_dim));
  const LayerConfig& layer_config = config.layers[static_cast<size_t>(layer)];
  if (layer_config.key_choice == KeyChoice::kOwn) {
    SLUICE_TRY_VOID(kernels::check_indexer(
        weights.device(), config.latent.index_heads, config.latent.index_dim));
  }
  std::unique_ptr<LatentMixer> mixer(new LatentMixer(config, layer_config));
  SLUICE_TRY_VOID(
      mixer->load_tensors("blk." + std::to_string(layer) + ".", activation_bits, weights));
  return mixer;
}

// Loads [n, k] of each head, of which this rank's become matrices. Their inputs stay floats:
// rounding a query or a mix of latents to 8 bits would quantize attention twice.
Expected<LatentMixer::HeadMatrices> LatentMixer::load_heads(const std::string& stem,
                                                            int32_t n,
                                                            int32_t k,
                                                            WeightStore& weights) const {
  constexpr int32_t kFloatBits = 32;
  std::vector<Projection::Part> parts;
  for (int64_t head = 0; head < whole_heads(); ++head) {
    parts.push_back({.stem = stem,
                     .n = n,
                     .slice = {head * n, whole_heads() * n},
                     .floats = true,
                     .experts = true});
  }
  HeadMatrices heads;
  SLUICE_TRY(heads.projection, Projection::load(weights, parts, k, kFloatBits));
  const auto own = heads.projection.weights().subspan(
      static_cast<size_t>(layer_.share.heads.first), static_cast<size_t>(layer_.num_heads));
  for (const PackedWeight& weight : own) {
    heads.matrices.push_back({.weight = &weight, .bias = nullptr, .column = 0});
  }
  if (heads.projection.format(0) == kernels::ActivationFormat::kFloat) return heads;
  return make_error(ErrorCode::kUnsupported,
                    weights.place_of(stem + ".weight") + ": found type " +
                        std::string(format_info(heads.projection.weight(0).format).name) +
                        ", expected one that takes unquantized inputs");
}

Expected<void> LatentMixer::load_tensors(const std::string& prefix,
                                         int32_t bits,
                                         WeightStore& weights) {
  const bool bias = config_.qkv_bias;
  const bool is_compressed = latent_.q_rank > 0;
  const Projection::Part queries = {.stem = prefix + (is_compressed ? "attn_q_b" : "attn_q"),
                                    .n = whole_heads() * layer_.head_dim,
                                    .rows = rows_of(layer_.share.heads, layer_.head_dim)};
  const Projection::Part compressed = {
      .stem = prefix + "attn_q_a", .n = latent_.q_rank, .bias = bias};
  std::vector<Projection::Part> in = {
      is_compressed ? compressed : queries,
      {.stem = prefix + "attn_kv_a_mqa", .n = latent_.kv_rank + latent_.rope_dim, .bias = bias}};
  std::vector<Projection::Part> from_compressed = {queries};
  if (has_indexer()) {
    in.push_back({.stem = prefix + "indexer_k", .n = latent_.index_dim, .floats = true});
    in.push_back({.stem = prefix + "indexer_proj", .n = latent_.index_heads, .floats = true});
    from_compressed.push_back(
        {.stem = prefix + "indexer_q_b", .n = index_width(), .floats = true});
    SLUICE_TRY_VOID(load_index_norm(prefix + "indexer_k_norm", weights));
  }
  SLUICE_TRY(in_, Projection::load(weights, in, config_.hidden, bits));
  const auto load_norm = [&](const char* name, int32_t n) -> Expected<DeviceFloats> {
    SLUICE_TRY(std::vector<float> values, weights.vector(prefix + name + ".weight", n));
    return weights.place(std::move(values));
  };
  if (is_compressed) {
    SLUICE_TRY(compressed_q_, Projection::load(weights, from_compressed, latent_.q_rank, bits));
    SLUICE_TRY(q_norm_, load_norm("attn_q_a_norm", latent_.q_rank));
  }
  SLUICE_TRY(kv_norm_, load_norm("attn_kv_a_norm", latent_.kv_rank));
  SLUICE_TRY(keys_,
             load_heads(prefix + "attn_k_b", latent_.kv_rank, latent_.nope_dim, weights));
  SLUICE_TRY(values_,
             load_heads(prefix + "attn_v_b", latent_.value_dim, latent_.kv_rank, weights));
  const std::array<Projection::Part, 1> out = {{{.stem = prefix + "attn_output",
                                                 .n = config_.hidden,
                                                 .bias = config_.attention_out_bias}}};
  const int64_t out_width = whole_heads() * latent_.value_dim;
  SLUICE_TRY(out_, Projection::load(weights, out, out_width, bits, config_.share.segments));
  return {};
}

Expected<void> LatentMixer::load_index_norm(const std::string& stem, WeightStore& weights) {
  SLUICE_TRY(std::vector<float> weight, weights.vector(stem + ".weight", latent_.index_dim));
  index_norm_ = weights.place(std::move(weight));
  SLUICE_TRY(std::vector<float> bias, weights.vector(stem + ".bias", latent_.index_dim));
  index_norm_bias_ = weights.place(std::move(bias));
  return {};
}

KvGroupSpec LatentMixer::group(DType dtype) const {
  const auto plane = [dtype](int32_t width) {
    return KvPlane{.num_heads = 1, .width = width, .dtype = dtype};
  };
  KvGroupSpec group = {.kind = KvGroupKind::kLatent,
                       .planes = {plane(latent_.kv_rank), plane(latent_.rope_dim)}};
  if (has_indexer()) group.planes.push_back(plane(latent_.index_dim));
  return group;
}

LatentMixer::IndexBuffers LatentMixer::layout_index(const StepBounds& bounds,
                                                    Arena& arena) const {
  IndexBuffers index;
  if (layer_.key_choice == KeyChoice::kAll) return index;
  const int64_t tokens = bounds.max_tokens;
  index.chosen.stride = kernels::chosen_words(bounds.max_seq_len);
  index.chosen.words = reinterpret_cast<uint64_t*>(arena.take_bytes(
      tokens * index.chosen.stride * static_cast<int64_t>(sizeof(uint64_t))));
  if (!has_indexer()) return index;
  index.q = arena.take_floats(tokens * index_width());
  index.k = arena.take_floats(tokens * latent_.index_dim);
  index.weights = arena.take_floats(tokens * latent_.index_heads);
  const int64_t bytes = kernels::choose_keys_workspace_bytes({.seq_len = bounds.max_seq_len,
                                                              .num_heads = latent_.index_heads,
                                                              .dim = latent_.index_dim,
                                                              .num_threads = bounds.num_threads,
                                                              .num_tokens = bounds.max_tokens,
                                                              .device = bounds.device});
  index.workspace = {arena.take_bytes(bytes), static_cast<size_t>(bytes)};
  return index;
}

LatentMixer::Buffers LatentMixer::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  const int64_t rows = layer_.num_heads * places(tokens);
  const int64_t nope = align_up(latent_.nope_dim, kQuantGroup);
  Buffers buffers;
  buffers.index = layout_index(bounds, arena);  // first: other layers read it there
  if (latent_.q_rank > 0) {
    buffers.compressed = arena.take_floats(tokens * latent_.q_rank);
    const std::array<const Projection*, 1> readers = {&compressed_q_};
    buffers.compressed_in = LinearInput(readers, bounds.max_tokens, arena);
  }
  buffers.q = arena.take_floats(tokens * std::max(q_width(), out_width()));
  buffers.kv = arena.take_floats(tokens * (latent_.kv_rank + latent_.rope_dim));
  buffers.query = arena.take_floats(rows * query_width());
  buffers.latent = arena.take_floats(rows * std::max<int64_t>(latent_.kv_rank, nope));
  const auto take_heads = [&](int64_t count) {
    return reinterpret_cast<int32_t*>(
        arena.take_bytes(count * static_cast<int64_t>(sizeof(int32_t))));
  };
  buffers.heads = {.num_experts = layer_.num_heads,
                   .first = take_heads(layer_.num_heads),
                   .count = take_heads(layer_.num_heads),
                   .chosen = take_heads(layer_.num_heads),
                   .num_chosen = take_heads(1)};
  const std::array<const Projection*, 1> readers = {&out_};
  buffers.out_in = LinearInput(readers, bounds.max_tokens, arena);
  const int32_t num_reqs =
      std::min(std::max(bounds.max_seqs, bounds.max_logits), bounds.max_tokens);
  const bool chooses = layer_.key_choice != KeyChoice::kAll;
  const int32_t most_keys =
      chooses ? std::min(bounds.max_seq_len, latent_.index_top_k) : bounds.max_seq_len;
  const int64_t bytes = kernels::latent_workspace_bytes({.num_tokens = bounds.max_tokens,
                                                         .num_reqs = num_reqs,
                                                         .seq_len = most_keys,
                                                         .num_heads = layer_.num_heads,
                                                         .num_kv_heads = 1,
                                                         .head_dim = latent_.kv_rank,
                                                         .num_threads = bounds.num_threads,
                                                         .device = bounds.device},
                                                        latent_.rope_dim);
  buffers.parts = RankParts(config_, tokens, arena);
  buffers.workspace = {arena.take_bytes(bytes), static_cast<size_t>(bytes)};
  return buffers;
}

int64_t LatentMixer::scratch_bytes(const StepBounds& bounds) const {
  Arena arena;
  layout(bounds, arena);
  return arena.used();
}

void LatentMixer::bind(const StepBounds& bounds, std::span<std::byte> scratch) {
  Arena arena(scratch);
  buffers_ = layout(bounds, arena);
}

void LatentMixer::project_queries(const ForwardContext& context, const LinearInput& in) const {
  const bool is_compressed = latent_.q_rank > 0;
  const ProjectionOutput whole = {buffers_.q, q_width()};
  const IndexBuffers& index = buffers_.index;
  const std::array<ProjectionOutput, 4> out = {
      {is_compressed ? ProjectionOutput{buffers_.compressed, latent_.q_rank} : whole,
       {buffers_.kv, latent_.kv_rank + latent_.rope_dim},
       {index.k, latent_.index_dim},
       {index.weights, latent_.index_heads}}};
  const auto outputs = std::span(out).first(has_indexer() ? 4 : 2);
  if (!is_compressed) return project(context.exec, in_, in, outputs, kernels::Epilogue::kStore);
  LinearInput compressed_in = buffers_.compressed_in;
  compressed_in.set_num_rows(static_cast<int32_t>(context.batch.token_ids.size()));
  kernels::RowSteps norm;
  compressed_in.fill_for(compressed_q_, [&](const kernels::Activations& rows) {
    norm.add(kernels::RmsNormArgs{.x = buffers_.compressed,
                                  .x_stride = latent_.q_rank,
                                  .weight = q_norm_.data(),
                                  .eps = latent_.norm_eps,
                                  .out = rows});
  });
  project(context.exec, in_, in, outputs, kernels::Epilogue::kStore, &norm);
  const std::array<ProjectionOutput, 2> queries = {{whole, {index.q, index_width()}}};
  project(context.exec,
          compressed_q_,
          compressed_in,
          std::span(queries).first(has_indexer() ? 2 : 1),
          kernels::Epilogue::kStore);
}

// Chooses the keys of every token, for this layer and later ones without an indexer.
void LatentMixer::choose_keys(const ForwardContext& context,
                              const LayerCache& cache,
                              const kernels::RopeTable& rope) const {
  const ForwardBatch& batch = context.batch;
  const auto group = static_cast<size_t>(cache.group);
  const IndexBuffers& index = buffers_.index;
  const KvPlaneView& plane = cache.planes[2];
  const kernels::IndexKeyView keys = {.data = plane.data,
                                      .dtype = plane.shape.dtype,
                                      .block_size = plane.block_size,
                                      .dim = plane.shape.width};
  constexpr float kNormEps = 1e-6F;
  kernels::index_rows(context.exec,
                      {.q = index.q,
                       .q_stride = index_width(),
                       .k = index.k,
                       .k_stride = latent_.index_dim,
                       .num_heads = latent_.index_heads,
                       .norm_weight = index_norm_.data(),
                       .norm_bias = index_norm_bias_.data(),
                       .norm_eps = kNormEps,
                       .table = &rope,
                       .style = latent_.index_style,
                       .positions = batch.positions,
                       .slot_mapping = batch.slot_mapping[group],
                       .cache = keys});
  kernels::choose_keys(context.exec,
                       {.q = index.q,
                        .q_stride = index_width(),
                        .weights = index.weights,
                        .weights_stride = latent_.index_heads,
                        .num_heads = latent_.index_heads,
                        .cache = keys,
                        .query_start_loc = batch.query_start_loc,
                        .seq_lens = batch.seq_lens,
                        .num_tokens = static_cast<int32_t>(batch.token_ids.size()),
                        .max_seq_len = batch.max_seq_len,
                        .block_table = batch.block_tables[group].data(),
                        .block_table_stride = batch.block_table_strides[group],
                        .top_k = latent_.index_top_k,
                        .out = index.chosen,
                        .workspace = index.workspace});
}

void LatentMixer::run_heads(const ForwardContext& context,
                            const HeadMatrices& heads,
                            int32_t k,
                            int64_t out_stride) const {
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  const auto rows = static_cast<int32_t>(layer_.num_heads * places(num_tokens));
  kernels::linear_experts(context.exec,
                          {.x = {.format = kernels::ActivationFormat::kFloat,
                                 .num_rows = rows,
                                 .k = k,
                                 .data = buffers_.latent},
                           .matrices = heads.matrices,
                           .matrices_per_expert = 1,
                           .rows = buffers_.heads,
                           .out = buffers_.query,
                           .out_stride = out_stride});
}

void LatentMixer::attend(const ForwardContext& context, const LayerCache& cache) const {
  const ForwardBatch& batch = context.batch;
  const auto group = static_cast<size_t>(cache.group);
  const int64_t head_rows = places(static_cast<int64_t>(batch.token_ids.size()));
  kernels::latent_attention(
      context.exec,
      {.query = {buffers_.query, query_width(), head_rows * query_width()},
       .num_heads = layer_.num_heads,
       .cache = latent_view(cache),
       .query_start_loc = batch.query_start_loc,
       .seq_lens = batch.seq_lens,
       .num_tokens = static_cast<int32_t>(batch.token_ids.size()),
       .max_seq_len = batch.max_seq_len,
       .block_table = batch.block_tables[group].data(),
       .block_table_stride = batch.block_table_strides[group],
       .scale = config_.attention_scale,
       .chosen = buffers_.index.chosen,
       .most_chosen = latent_.index_top_k,
       .out = {buffers_.latent, latent_.kv_rank, head_rows * latent_.kv_rank},
       .workspace = buffers_.workspace});
}

void LatentMixer::forward(const ForwardContext& context,
                          const LayerCache& cache,
                          const kernels::RopeTable* rope,
                          const LinearInput& in,
                          const HalfOutput& out) const {
  const ForwardBatch& batch = context.batch;
  const auto num_tokens = static_cast<int32_t>(batch.token_ids.size());
  const int64_t head_rows = places(num_tokens);
  project_queries(context, in);
  const int64_t nope = align_up(latent_.nope_dim, kQuantGroup);
  kernels::latent_rows(context.exec,
                       {.q = buffers_.q,
                        .q_stride = q_width(),
                        .kv = buffers_.kv,
                        .kv_stride = latent_.kv_rank + latent_.rope_dim,
                        .num_heads = layer_.num_heads,
                        .nope_dim = latent_.nope_dim,
                        .norm = kv_norm_.data(),
                        .norm_eps = latent_.norm_eps,
                        .table = rope,
                        .positions = batch.positions,
                        .slot_mapping = batch.slot_mapping[static_cast<size_t>(cache.group)],
                        .cache = latent_view(cache),
                        .nope = {buffers_.latent, nope, head_rows * nope},
                        .query = {buffers_.query, query_width(), head_rows * query_width()},
                        .heads = buffers_.heads});
  if (has_indexer()) choose_keys(context, cache, *rope);
  run_heads(context, keys_, latent_.nope_dim, query_width());
  attend(context, cache);
  run_heads(context, values_, latent_.kv_rank, query_width());
  kernels::join_heads(context.exec,
                      {.rows = {buffers_.query, query_width(), head_rows * query_width()},
                       .num_tokens = num_tokens,
                       .num_heads = layer_.num_heads,
                       .width = latent_.value_dim,
                       .out = buffers_.q,
                       .out_stride = out_width()});
  LinearInput out_in = buffers_.out_in;
  out_in.set_num_rows(num_tokens);
  if (has_shared_scales(out_)) {
    quantize_with_shared_scales(
        context, out_, out_in, buffers_.parts, buffers_.q, out_width());
  } else {
    out_in.quantize(context.exec, out_, buffers_.q, out_width());
  }
  project_to_stream(context, out_, out_in, buffers_.parts, out.rows, out.epilogue, out.then);
}

}  // namespace sluice
