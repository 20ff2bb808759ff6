// SPDX-License-Identifier: Apache-2.0
#include "engine/models/dense_beside_experts.h"

#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {

Expected<std::unique_ptr<Ffn>> DenseBesideExperts::load(const ModelConfig& config,
                                                        int32_t layer,
                                                        int32_t activation_bits,
                                                        WeightStore& weights) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  std::unique_ptr<DenseBesideExperts> half(new DenseBesideExperts(config));
  SLUICE_TRY(half->dense_, DenseFfn::load_beside(config, layer, activation_bits, weights));
  SLUICE_TRY(half->experts_, Experts::load(config, layer, activation_bits, weights));
  SLUICE_TRY(half->before_experts_, load_stream_norm(config, prefix + "pre_ffw_norm_2", weights));
  SLUICE_TRY(half->after_dense_, load_stream_norm(config, prefix + "post_ffw_norm_1", weights));
  SLUICE_TRY(half->after_experts_, load_stream_norm(config, prefix + "post_ffw_norm_2", weights));
  SLUICE_TRY(std::vector<float> scale,
             weights.vector(prefix + "ffn_gate_inp.scale", config.hidden));
  const float root = 1.0F / std::sqrt(static_cast<float>(config.hidden));
  for (float& value : scale) value *= root;
  half->before_router_.weight = weights.place(std::move(scale));
  return half;
}

DenseBesideExperts::Buffers DenseBesideExperts::layout(const StepBounds& bounds,
                                                       Arena& arena) const {
  const auto take = [&](const Half& half) {
    const int64_t bytes = half.scratch_bytes(bounds);
    return std::span(arena.take_bytes(bytes), static_cast<size_t>(bytes));
  };
  const int64_t tokens = bounds.max_tokens;
  Buffers buffers;
  buffers.dense = take(*dense_);
  buffers.experts = take(*experts_);
  buffers.normed = arena.take_floats(tokens * padded_hidden());
  buffers.routed = arena.take_floats(tokens * padded_hidden());
  buffers.output = arena.take_floats(tokens * config_.hidden);
  return buffers;
}

int64_t DenseBesideExperts::scratch_bytes(const StepBounds& bounds) const {
  Arena arena;
  layout(bounds, arena);
  return arena.used();
}

void DenseBesideExperts::bind(const StepBounds& bounds, std::span<std::byte> scratch) {
  Arena arena(scratch);
  buffers_ = layout(bounds, arena);
  dense_->bind(bounds, buffers_.dense);
  experts_->bind(bounds, buffers_.experts);
}

void DenseBesideExperts::forward(const ForwardContext& context,
                                 const FfnInput& in,
                                 const HalfOutput& out) const {
  CHECK(out.epilogue == kernels::Epilogue::kStore);
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  const auto add_norm_to = [&](const StreamNorm& norm, float* to, kernels::RowSteps& steps) {
    const kernels::Activations rows = {.format = kernels::ActivationFormat::kFloat,
                                       .num_rows = num_tokens,
                                       .k = config_.hidden,
                                       .data = to};
    steps.add(norm_to(config_, norm, in.stream, rows));
  };
  kernels::RowSteps after_dense;
  after_dense.add(norm_in_place(config_, after_dense_, out.rows, num_tokens));
  add_norm_to(before_experts_, buffers_.normed, after_dense);
  add_norm_to(before_router_, buffers_.routed, after_dense);
  dense_->forward(context, in, {out.rows, kernels::Epilogue::kStore, after_dense});

  const ProjectionOutput own = {buffers_.output, config_.hidden};
  kernels::RowSteps then;
  then.add(norm_in_place(config_, after_experts_, own, num_tokens));
  then.add(kernels::AddRowsArgs{.x = out.rows.data,
                                .x_stride = out.rows.stride,
                                .y = own.data,
                                .y_stride = own.stride,
                                .num_rows = num_tokens,
                                .n = config_.hidden});
  for (const kernels::RowStep& step : out.then.all()) then.add(step);
  const FfnInput to_experts = {.rows = in.rows,
                               .plain = buffers_.normed,
                               .stride = padded_hidden(),
                               .stream = in.stream,
                               .routed = buffers_.routed};
  experts_->forward(context, to_experts, {own, kernels::Epilogue::kStore, then});
}

}  // namespace sluice
