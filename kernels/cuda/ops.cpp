// SPDX-License-Identifier: Apache-2.0
// The operators by the launchers of launch.h: what follows an operator is put on the stream behind
// it, and what its kernels cannot do was refused when the model was loaded (check_weight_format).
// No GPU has run it yet.
#include "kernels/cuda/ops.h"

#include <algorithm>
#include <cstring>

#include "engine/core/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/row_steps.h"

namespace sluice::kernels::cuda {
namespace {

// The split of K over blocks, where there is room for its partial sums.
void* linear_workspace(const ExecContext& ctx, int32_t num_rows, int32_t n) {
  const int64_t bytes = linear_workspace_bytes(num_rows, n);
  const bool fits = bytes > 0 && bytes <= static_cast<int64_t>(ctx.workspace.size());
  return fits ? ctx.workspace.data() : nullptr;
}

void linear_group(const ExecContext& ctx, const LinearArgs& args, const RowGroup& group) {
  const PackedWeight& weight = *group.weight;
  void* const workspace = linear_workspace(ctx, args.x.num_rows, weight.n);
  const int64_t stride = matrix_row_stride(weight.format, weight.k);
  if (weight.format == WeightFormat::kInt8Channel) {
    const int64_t scales = matrix_scales_offset(weight.format, weight.n, weight.k);
    return launch_linear_int8(ctx.stream,
                              {.x = args.x,
                               .weight = reinterpret_cast<const int8_t*>(weight.data),
                               .weight_stride = stride,
                               .weight_scale = reinterpret_cast<const float*>(weight.data + scales),
                               .n = weight.n,
                               .bias = group.bias,
                               .epilogue = args.epilogue,
                               .out = group.out,
                               .out_stride = group.out_stride,
                               .workspace = workspace});
  }
  CHECK(weight.format == WeightFormat::kBF16 && args.x.format == ActivationFormat::kBF16);
  constexpr int64_t kElement = sizeof(uint16_t);
  launch_linear_bf16(ctx.stream,
                     {.x = static_cast<const uint16_t*>(args.x.data),
                      .x_stride = align_up(args.x.k, kQuantGroup),
                      .weight = reinterpret_cast<const uint16_t*>(weight.data),
                      .weight_stride = stride / kElement,
                      .num_rows = args.x.num_rows,
                      .n = weight.n,
                      .k = weight.k,
                      .bias = group.bias,
                      .epilogue = args.epilogue,
                      .out = group.out,
                      .out_stride = group.out_stride,
                      .workspace = workspace});
}

}  // namespace

bool has_weight_format(WeightFormat format) {
  return format == WeightFormat::kInt8Channel || format == WeightFormat::kBF16;
}

int64_t workspace_bytes(int32_t num_rows, int32_t n, int32_t num_samples) {
  int64_t most = num_samples * int64_t{sizeof(SampleRow)};
  for (int32_t rows = 1; rows <= num_rows; ++rows) {
    const int64_t bytes = linear_workspace_bytes(rows, n);
    if (bytes == 0) break;  // so many rows need no split
    most = std::max(most, bytes);
  }
  return most;
}

int64_t staging_bytes(int32_t num_samples) { return num_samples * int64_t{sizeof(SampleRow)}; }

// What steps of one token a request split over partitions need; a step that would need more, some
// rows of a prompt behind a long context, is not split.
int64_t attention_workspace_bytes(const AttentionLimits& limits) {
  int64_t most = 0;
  for (int32_t reqs = 1; reqs <= std::min(limits.num_reqs, limits.num_tokens); ++reqs) {
    AttentionLimits step = limits;
    step.num_tokens = reqs;
    step.num_reqs = reqs;
    most = std::max(most, attention_workspace_bytes(step, 0));
  }
  return most;
}

void linear(const ExecContext& ctx, const LinearArgs& args) {
  for (const RowGroup& group : args.groups) linear_group(ctx, args, group);
  if (args.then != nullptr) run_row_steps(ctx, *args.then);
}

void quantize_activations(const ExecContext& ctx, const QuantizeArgs& args) {
  launch_quantize_activations(ctx.stream, args);
}

void rms_norm(const ExecContext& ctx, const RmsNormArgs& args) {
  launch_rms_norm(ctx.stream, args);
}

void head_norm(const ExecContext& ctx, const HeadNormArgs& args) {
  launch_head_norm(ctx.stream, args);
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
  RopeRows rows;
  if (args.table != nullptr) {
    rows = {.cos = args.table->device_cos(),
            .sin = args.table->device_sin(),
            .num_pairs = args.table->num_pairs(),
            .style = args.table->style()};
    CHECK(rows.cos != nullptr);
  }
  launch_rope_write_kv(ctx.stream, args, rows);
}

void embedding(const ExecContext& ctx, const EmbeddingArgs& args) {
  launch_embedding(ctx.stream, args);
}

void gate_mul(const ExecContext& ctx, const GateMulArgs& args) {
  launch_gate_mul(ctx.stream, args);
}

void add_rows(const ExecContext& ctx, const AddRowsArgs& args) {
  launch_add_rows(ctx.stream, args);
}

void scale_rows(const ExecContext& ctx, const ScaleRowsArgs& args) {
  launch_scale_rows(ctx.stream, args);
}

void gather_rows(const ExecContext& ctx, const GatherRowsArgs& args) {
  launch_gather_rows(ctx.stream, args);
}

void moe_route(const ExecContext& ctx, const MoeRouteArgs& args) {
  launch_moe_route(ctx.stream, args);
}

// Models with experts are refused at load: which rows an expert gets is decided on the host.
void linear_experts(const ExecContext&, const LinearExpertsArgs&) {
  SLUICE_UNREACHABLE("cuda linear_experts");
}

void moe_combine(const ExecContext& ctx, const MoeCombineArgs& args) {
  launch_moe_combine(ctx.stream, args);
}

// Several ranks on a GPU are refused at load.
void join_parts(const ExecContext&, const JoinPartsArgs&) {
  SLUICE_UNREACHABLE("cuda join_parts");
}

void row_magnitudes(const ExecContext&, const RowMagnitudesArgs&) {
  SLUICE_UNREACHABLE("cuda row_magnitudes");
}

// The one operator that waits: its rows and their results are the host's, their logits and masks
// the device's.
void sample(const ExecContext& ctx, const SampleArgs& args) {
  const auto bytes = static_cast<int64_t>(args.rows.size_bytes());
  if (bytes == 0) return;
  CHECK(args.rows.size_bytes() <= ctx.staging.size());
  CHECK(args.rows.size_bytes() <= ctx.workspace.size());
  ctx.memory->wait_for_uploads();
  std::memcpy(ctx.staging.data(), args.rows.data(), args.rows.size_bytes());
  ctx.memory->upload(ctx.workspace.data(), ctx.staging.data(), bytes);
  launch_sample(ctx.stream,
                {.rows = {reinterpret_cast<SampleRow*>(ctx.workspace.data()), args.rows.size()},
                 .vocab_size = args.vocab_size,
                 .workspace = {}});
  ctx.memory->download(ctx.staging.data(), ctx.workspace.data(), bytes);
  ctx.memory->wait();
  std::memcpy(args.rows.data(), ctx.staging.data(), args.rows.size_bytes());
}

}  // namespace sluice::kernels::cuda
