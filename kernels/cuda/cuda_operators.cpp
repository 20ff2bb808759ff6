// SPDX-License-Identifier: Apache-2.0
// The operators by the launchers of launch.h. Steps that follow an operator are queued on the
// stream after it. What kernels cannot do was refused when the model was loaded
// (check_activations).
#include "kernels/cuda/cuda_operators.h"

#include <algorithm>
#include <array>
#include <variant>

#include "engine/core/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/peer_launches.h"
#include "kernels/row_steps.h"

namespace sluice::kernels::cuda {
namespace {

// Returns the workspace that linear_workspace_bytes asks for if there is room, else null.
void* linear_workspace(const ExecContext& ctx, int32_t num_rows, int32_t n, int32_t int8_k) {
  const int64_t bytes = linear_workspace_bytes(num_rows, n, int8_k);
  const bool fits = bytes > 0 && bytes <= static_cast<int64_t>(ctx.workspace.size());
  return fits ? ctx.workspace.data() : nullptr;
}

// For weights whose kernels take one matrix a launch. `experts`: null, or the experts whose
// matrices follow that of `group`.
void linear_matrix(const ExecContext& ctx,
                   const Activations& x,
                   const RowGroup& group,
                   Epilogue epilogue,
                   Segments segments,
                   const ExpertMatrices* experts) {
  const auto launch = x.format == ActivationFormat::kInt8   ? launch_linear_blocks
                      : x.format == ActivationFormat::kBF16 ? launch_linear_blocks_half
                                                            : launch_linear_float;
  launch(ctx.stream,
         {.x = x,
          .weight = group.weight,
          .bias = group.bias,
          .epilogue = epilogue,
          .out = group.out,
          .out_stride = group.out_stride,
          .segments = segments},
         experts);
}

bool is_multiplied_alone(const Activations& x, const RowGroup& group) {
  return x.format == ActivationFormat::kFloat || !has_rows(group.weight->format);
}

LinearInt8Args int8_args(const Activations& x,
                         const RowGroup& group,
                         Epilogue epilogue,
                         Segments segments,
                         void* workspace) {
  const PackedWeight& weight = *group.weight;
  CHECK(layout_of(weight.format).has_int32_sums());
  const int64_t columns = weight.stored_columns();
  const int64_t scales = matrix_scales_offset(weight.format, weight.n, columns);
  return {.x = x,
          .weight = reinterpret_cast<const int8_t*>(first_of_k(weight)),
          .weight_stride = matrix_row_stride(weight.format, columns),
          .weight_scale = reinterpret_cast<const float*>(weight.data + scales),
          .n = weight.n,
          .k = weight.k,
          .bias = group.bias,
          .epilogue = epilogue,
          .out = group.out,
          .out_stride = group.out_stride,
          .workspace = workspace,
          .segments = segments};
}

LinearHalfArgs half_args(const Activations& x,
                         const RowGroup& group,
                         Epilogue epilogue,
                         Segments segments,
                         void* workspace) {
  const PackedWeight& weight = *group.weight;
  CHECK(x.format == activation_format(weight.format, 8, DeviceType::kCuda));
  constexpr int64_t kElement = sizeof(uint16_t);
  return {.format = x.format,
          .x = static_cast<const uint16_t*>(x.data),
          .x_stride = align_up(x.k, kQuantGroup),
          .weight = reinterpret_cast<const uint16_t*>(first_of_k(weight)),
          .weight_stride = matrix_row_stride(weight.format, weight.stored_columns()) / kElement,
          .num_rows = x.num_rows,
          .n = weight.n,
          .k = weight.k,
          .bias = group.bias,
          .epilogue = epilogue,
          .out = group.out,
          .out_stride = group.out_stride,
          .workspace = workspace,
          .segments = segments};
}

LinearFp8Args fp8_args(const Activations& x,
                       const RowGroup& group,
                       Epilogue epilogue,
                       Segments segments,
                       void* workspace) {
  const PackedWeight& weight = *group.weight;
  CHECK(x.format == activation_format(weight.format, 8, DeviceType::kCuda));
  const int64_t columns = weight.stored_columns();
  const auto* const scales = reinterpret_cast<const float*>(
      weight.data + matrix_scales_offset(weight.format, weight.n, columns));
  const int32_t per_scale = layout_of(weight.format).columns_per_scale();
  return {.x = x,
          .weight = reinterpret_cast<const uint8_t*>(first_of_k(weight)),
          .weight_stride = matrix_row_stride(weight.format, columns),
          .weight_scale = per_scale == 0 ? scales : scales - weight.first_column / per_scale,
          .weight_scale_stride = matrix_row_scales(weight.format, columns),
          .n = weight.n,
          .k = weight.k,
          .bias = group.bias,
          .epilogue = epilogue,
          .out = group.out,
          .out_stride = group.out_stride,
          .workspace = workspace,
          .segments = segments};
}

// Calls f(make, launch, launch_experts) for rows of x: the maker of a matrix's arguments, and the
// launches that take them.
template <typename F>
void with_launches(const Activations& x, F f) {
  if (x.format == ActivationFormat::kInt8Token) {
    using Launch = void (*)(Stream, std::span<const LinearInt8Args>);
    return f(int8_args, Launch{launch_linear_int8}, launch_experts_int8);
  }
  if (is_e4m3(x.format)) {
    using Launch = void (*)(Stream, std::span<const LinearFp8Args>);
    return f(fp8_args, Launch{launch_linear_fp8}, launch_experts_fp8);
  }
  using Launch = void (*)(Stream, std::span<const LinearHalfArgs>);
  f(half_args, Launch{launch_linear_half}, launch_experts_half);
}

// Runs at most kMostTogether matrices, as one launch if the device can.
void linear_together(const ExecContext& ctx,
                     const LinearArgs& args,
                     std::span<const RowGroup> groups) {
  const Activations& x = args.x;
  const bool int8 = x.format == ActivationFormat::kInt8Token;
  int32_t n = 0;
  for (const RowGroup& group : groups) n += group.weight->n;
  void* const workspace = linear_workspace(ctx, x.num_rows, n, int8 ? x.k : 0);
  with_launches(x, [&](auto make, auto launch, auto) {
    using Args = decltype(make(x, groups[0], args.epilogue, args.segments, workspace));
    std::array<Args, kMostTogether> layers;
    for (size_t i = 0; i < groups.size(); ++i) {
      layers[i] = make(x, groups[i], args.epilogue, args.segments, workspace);
    }
    launch(ctx.stream, std::span(layers).first(groups.size()));
  });
}

// Runs gate, up and the gate function that follows them as one launch, if that is what the
// arguments are and there is such a launch.
bool linear_gated(const ExecContext& ctx, const LinearArgs& args) {
  const std::span<const RowGroup> groups = args.groups;
  const bool are_half =
      args.x.format == ActivationFormat::kBF16 || args.x.format == ActivationFormat::kF16;
  if (!are_half || args.then == nullptr || args.then->all().size() != 1 || groups.size() != 2 ||
      args.epilogue != Epilogue::kStore || !args.segments.are_all() ||
      is_multiplied_alone(args.x, groups[0]) || is_multiplied_alone(args.x, groups[1])) {
    return false;
  }
  const auto* const gate = std::get_if<GateMulArgs>(&args.then->all().front());
  const auto is_put_out = [&](const float* x, const RowGroup& group) {
    return x == group.out && gate->stride == group.out_stride;
  };
  if (gate == nullptr || !is_put_out(gate->gate, groups[0]) || !is_put_out(gate->up, groups[1]) ||
      gate->out.num_rows != args.x.num_rows || !gate->rows.empty()) {
    return false;
  }
  const auto layer_of = [&](const RowGroup& group) {
    return half_args(args.x, group, args.epilogue, args.segments, nullptr);
  };
  const std::array layers = {layer_of(groups[0]), layer_of(groups[1])};
  return launch_linear_gated(ctx.stream, layers, *gate);
}

void linear_expert_matrix(const ExecContext& ctx,
                          const Activations& x,
                          const RowGroup& group,
                          Segments segments,
                          const ExpertMatrices& experts) {
  constexpr Epilogue kEpilogue = Epilogue::kStore;
  if (is_multiplied_alone(x, group)) {
    return linear_matrix(ctx, x, group, kEpilogue, segments, &experts);
  }
  with_launches(x, [&](auto make, auto, auto launch) {
    launch(ctx.stream, make(x, group, kEpilogue, segments, nullptr), experts);
  });
}

// Returns the distance, equal for all experts, from an expert's first matrix to the next expert's;
// an expert has `each` matrices.
int64_t expert_stride(std::span<const ExpertMatrix> own, size_t each) {
  if (own.size() <= each) return 0;
  const int64_t stride = own[each].weight->data - own[0].weight->data;
  for (size_t at = each; at < own.size(); at += each) {
    const ExpertMatrix& expert = own[at];
    const ExpertMatrix& before = own[at - each];
    CHECK_EQ(expert.weight->data - before.weight->data, stride);
    CHECK(expert.bias == nullptr || expert.bias == before.bias + stride / int64_t{sizeof(float)});
  }
  return stride;
}

RopeRows rows_of(const RopeTable* table) {
  if (table == nullptr) return {};
  CHECK(table->device_cos() != nullptr);
  return {.cos = table->device_cos(),
          .sin = table->device_sin(),
          .num_pairs = table->num_pairs(),
          .style = table->style(),
          .query_scales = table->device_query_scales()};
}

}  // namespace

bool has_activations(WeightFormat weight, ActivationFormat activations) {
  const PackedLayout& layout = layout_of(weight);
  if (layout.is_e4m3()) {
    return device_has_fp8() && activations == activation_format(weight, 8, DeviceType::kCuda);
  }
  if (layout.is_float()) return true;
  if (layout.has_int32_sums()) return activations == ActivationFormat::kInt8Token;
  return activations == ActivationFormat::kInt8 || activations == ActivationFormat::kBF16;
}

bool has_float_rows(WeightFormat weight) { return takes_float_rows(weight); }

int32_t most_head_dim() { return max_attention_head_dim(); }

// Returns enough for requests of few rows in any step that shares a list of work, with which other
// steps make do; without a list, for steps of one token a request with split partitions. What finds
// no room is not split.
int64_t attention_workspace_bytes(const AttentionLimits& limits) {
  int64_t most = mixed_attention_workspace_bytes(limits);
  if (most > 0) return most;
  for (int32_t reqs = 1; reqs <= std::min(limits.num_reqs, limits.num_tokens); ++reqs) {
    AttentionLimits step = limits;
    step.num_tokens = reqs;
    step.num_reqs = reqs;
    most = std::max(most, attention_workspace_bytes(step, 0));
  }
  return most;
}

void linear(const ExecContext& ctx, const LinearArgs& args) {
  if (linear_gated(ctx, args)) return;
  const std::span<const RowGroup> groups = args.groups;
  for (size_t i = 0; i < groups.size();) {
    if (is_multiplied_alone(args.x, groups[i])) {
      linear_matrix(ctx, args.x, groups[i++], args.epilogue, args.segments, nullptr);
      continue;
    }
    size_t count = 1;
    while (count < kMostTogether && i + count < groups.size() &&
           !is_multiplied_alone(args.x, groups[i + count])) {
      ++count;
    }
    linear_together(ctx, args, groups.subspan(i, count));
    i += count;
  }
  if (args.then != nullptr) run_row_steps(ctx, *args.then);
}

void attention(const ExecContext& ctx, const AttentionArgs& args) {
  const AttentionLimits limits{.num_tokens = args.num_tokens,
                               .num_reqs = static_cast<int32_t>(args.seq_lens.size()),
                               .seq_len = args.max_seq_len,
                               .num_heads = args.num_heads,
                               .num_kv_heads = args.kv.num_kv_heads,
                               .head_dim = args.kv.head_dim,
                               .num_threads = 1};
  AttentionArgs alone = args;
  alone.then = nullptr;
  launch_attention(ctx.stream, alone, limits);
  if (args.then != nullptr) run_row_steps(ctx, *args.then);
}

void rope_write_kv(const ExecContext& ctx, const RopeWriteKvArgs& args) {
  launch_rope_write_kv(ctx.stream, args, rows_of(args.table));
}

void linear_experts(const ExecContext& ctx, const LinearExpertsArgs& args) {
  for (int32_t i = 0; i < args.matrices_per_expert; ++i) {
    const ExpertMatrix& first = args.matrices[static_cast<size_t>(i)];
    const RowGroup group = {.weight = first.weight,
                            .out = args.out + first.column,
                            .out_stride = args.out_stride,
                            .bias = first.bias};
    const int64_t stride = expert_stride(args.matrices.subspan(static_cast<size_t>(i)),
                                         static_cast<size_t>(args.matrices_per_expert));
    const ExpertMatrices experts = {.rows = args.rows, .stride = stride};
    linear_expert_matrix(ctx, args.x, group, args.segments, experts);
  }
}

void join_parts(const ExecContext& ctx, const JoinPartsArgs& args) {
  launch_join_parts(ctx.stream, args);
  if (args.then != nullptr) run_row_steps(ctx, *args.then);
}

void join_expert_parts(const ExecContext& ctx, const JoinExpertPartsArgs& args) {
  const ExpertMatrix& first = args.matrices.front();
  const ExpertMatrices experts = {.rows = args.rows, .stride = expert_stride(args.matrices, 1)};
  launch_join_parts(ctx.stream,
                    {.parts = args.parts,
                     .weight = first.weight,
                     .x = args.x,
                     .bias = first.bias,
                     .out = args.out,
                     .out_stride = args.out_stride},
                    &experts);
}

void join_peer_parts(const ExecContext& ctx, const JoinPeerPartsArgs& args) {
  launch_join_peer_parts(ctx.stream, args);
  if (args.join.then != nullptr) run_row_steps(ctx, *args.join.then);
}

int64_t latent_workspace_bytes(const AttentionLimits& limits) {
  return latent_partials_bytes(limits);
}

void latent_rows(const ExecContext& ctx, const LatentRowsArgs& args) {
  launch_latent_rows(ctx.stream, args, rows_of(args.table));
}

void index_rows(const ExecContext& ctx, const IndexRowsArgs& args) {
  launch_index_rows(ctx.stream, args, rows_of(args.table));
}

int64_t choose_keys_workspace_bytes(const ChooseKeysLimits& limits) {
  return index_scores_bytes(limits);
}

// The operators that are one launch.
#define SLUICE_LAUNCHES(X)                 \
  X(quantize_activations, QuantizeArgs)    \
  X(rms_norm, RmsNormArgs)                 \
  X(head_norm, HeadNormArgs)               \
  X(head_squares, HeadSquaresArgs)         \
  X(joined_norm, JoinedNormArgs)           \
  X(embedding, EmbeddingArgs)              \
  X(gate_mul, GateMulArgs)                 \
  X(add_rows, AddRowsArgs)                 \
  X(scale_rows, ScaleRowsArgs)             \
  X(gather_rows, GatherRowsArgs)           \
  X(select_columns, SelectColumnsArgs)     \
  X(moe_route, MoeRouteArgs)               \
  X(place_rows, PlaceRowsArgs)             \
  X(moe_combine, MoeCombineArgs)           \
  X(gather_peers, GatherPeersArgs)         \
  X(row_magnitudes, RowMagnitudesArgs)     \
  X(sample, SampleArgs)                    \
  X(take_tokens, TakeTokensArgs)           \
  X(place_following, PlaceFollowingArgs)   \
  X(gather_kv_blocks, KvBlocksArgs)        \
  X(scatter_kv_blocks, KvBlocksArgs)       \
  X(replay_rows, ReplayRowsArgs)           \
  X(short_conv, ShortConvArgs)             \
  X(delta_rule, DeltaRuleArgs)             \
  X(mamba2, Mamba2Args)                    \
  X(gated_squares, GatedSquaresArgs)       \
  X(group_norm, GroupNormArgs)             \
  X(choose_keys, ChooseKeysArgs)           \
  X(latent_attention, LatentAttentionArgs) \
  X(join_heads, JoinHeadsArgs)

#define SLUICE_OPERATOR(op, Args)                                                             \
  void op(const ExecContext& ctx, const Args& args) { launch_##op(ctx.stream, args); }
SLUICE_LAUNCHES(SLUICE_OPERATOR)
#undef SLUICE_OPERATOR
#undef SLUICE_LAUNCHES

}  // namespace sluice::kernels::cuda
