// SPDX-License-Identifier: Apache-2.0
#include "engine/models/layer_inputs.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {

Expected<void> LayerInputs::load(int32_t activation_bits, WeightStore& weights) {
  if (width() == 0) return {};
  const auto matrix = [&](std::string stem, int64_t n, int64_t k) {
    const std::array<Projection::Part, 1> part = {{{.stem = std::move(stem), .n = n}}};
    return Projection::load(weights, part, k, activation_bits);
  };
  SLUICE_TRY(table_, matrix("per_layer_token_embd", config_.layer_input_vocab, all_widths()));
  SLUICE_TRY(projection_, matrix("per_layer_model_proj", all_widths(), config_.hidden));
  SLUICE_TRY(std::vector<float> norm, weights.vector("per_layer_proj_norm.weight", width()));
  norm_ = weights.place(std::move(norm));
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    Layer layer;
    SLUICE_TRY(layer.gate, matrix(prefix + "inp_gate", width(), config_.hidden));
    SLUICE_TRY(layer.projection, matrix(prefix + "proj", config_.hidden, width()));
    SLUICE_TRY(layer.norm, load_stream_norm(config_, prefix + "post_norm", weights));
    layers_.push_back(std::move(layer));
  }
  return {};
}

LayerInputs::Buffers LayerInputs::layout(const StepBounds& bounds, Arena& arena) const {
  Buffers buffers;
  if (empty()) return buffers;
  const int64_t tokens = bounds.max_tokens;
  buffers.inputs = arena.take_floats(tokens * stride());
  buffers.table_rows = arena.take_floats(std::min<int64_t>(tokens, kPiece) * all_widths());
  const std::array<const Projection*, 1> embedding = {&projection_};
  buffers.embedding_in = LinearInput(embedding, bounds.max_tokens, arena);
  std::vector<const Projection*> gates;
  std::vector<const Projection*> projections;
  for (const Layer& layer : layers_) {
    gates.push_back(&layer.gate);
    projections.push_back(&layer.projection);
  }
  buffers.gate_in = LinearInput(gates, bounds.max_tokens, arena);
  buffers.gated = LinearInput(projections, bounds.max_tokens, arena);
  return buffers;
}

int64_t LayerInputs::scratch_bytes(const StepBounds& bounds) const {
  Arena arena;
  layout(bounds, arena);
  return arena.used();
}

void LayerInputs::bind(const StepBounds& bounds, std::span<std::byte> scratch) {
  Arena arena(scratch);
  buffers_ = layout(bounds, arena);
}

// Each row of the table is scaled by the root of its width.
void LayerInputs::add_table_rows(const ForwardContext& context) const {
  const std::span<const TokenId> ids = context.batch.token_ids;
  for (size_t first = 0; first < ids.size(); first += kPiece) {
    const std::span<const TokenId> piece =
        ids.subspan(first, std::min<size_t>(kPiece, ids.size() - first));
    kernels::embedding(context.exec,
                       {.table = &table_.weight(0),
                        .token_ids = piece,
                        .out = buffers_.table_rows,
                        .out_stride = all_widths()});
    kernels::add_rows(context.exec,
                      {.x = buffers_.inputs + static_cast<int64_t>(first) * stride(),
                       .x_stride = stride(),
                       .y = buffers_.table_rows,
                       .y_stride = all_widths(),
                       .num_rows = static_cast<int32_t>(piece.size()),
                       .n = static_cast<int32_t>(all_widths()),
                       .scale = std::sqrt(static_cast<float>(width()))});
  }
}

void LayerInputs::compute(const ForwardContext& context, const float* x) {
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  for (LinearInput* in : {&buffers_.embedding_in, &buffers_.gate_in, &buffers_.gated}) {
    in->set_num_rows(num_tokens);
  }
  buffers_.embedding_in.quantize(context.exec, projection_, x, config_.hidden);
  kernels::ScaleRowsArgs all = {.x = buffers_.inputs,
                                .x_stride = stride(),
                                .num_rows = num_tokens,
                                .n = static_cast<int32_t>(all_widths()),
                                .scale = 1.0F / std::sqrt(static_cast<float>(config_.hidden))};
  kernels::RowSteps then;
  then.add(all);
  then.add(kernels::HeadNormArgs{.x = buffers_.inputs,
                                 .x_stride = stride(),
                                 .num_rows = num_tokens,
                                 .num_heads = config_.num_layers,
                                 .n = config_.layer_input_width,
                                 .weight = norm_.data(),
                                 .eps = config_.norm_eps});
  const ProjectionOutput out = {buffers_.inputs, stride()};
  project(context.exec,
          projection_,
          buffers_.embedding_in,
          {&out, 1},
          kernels::Epilogue::kStore,
          &then);
  add_table_rows(context);
  all.scale = std::sqrt(0.5F);
  kernels::scale_rows(context.exec, all);
}

void LayerInputs::add_input_steps(size_t index, const float* x, kernels::RowSteps& steps) const {
  add_normed_rows(config_, {}, layers_[index].gate, x, buffers_.gate_in, steps);
}

void LayerInputs::forward(const ForwardContext& context,
                          size_t index,
                          ProjectionOutput out,
                          const kernels::RowSteps& then) const {
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  const Layer& layer = layers_[index];
  float* const gate = buffers_.inputs + all_widths();
  kernels::RowSteps after_gate;
  buffers_.gated.fill_for(layer.projection, [&](const kernels::Activations& rows) {
    after_gate.add(
        kernels::GateMulArgs{.gate = gate,
                             .up = buffers_.inputs + static_cast<int64_t>(index) * width(),
                             .stride = stride(),
                             .function = config_.gate_function,
                             .out = rows});
  });
  const ProjectionOutput gate_out = {gate, stride()};
  project(context.exec,
          layer.gate,
          buffers_.gate_in,
          {&gate_out, 1},
          kernels::Epilogue::kStore,
          &after_gate);
  kernels::RowSteps after;
  after.add(norm_in_place(config_, layer.norm, out, num_tokens));
  for (const kernels::RowStep& step : then.all()) after.add(step);
  project(
      context.exec, layer.projection, buffers_.gated, {&out, 1}, kernels::Epilogue::kStore, &after);
}

}  // namespace sluice
