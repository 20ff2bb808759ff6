// SPDX-License-Identifier: Apache-2.0
#include "engine/models/dense_ffn.h"

#include <array>
#include <cmath>

#include "kernels/elementwise.h"

namespace sluice {

kernels::Activations as_floats(kernels::Activations rows, float* data) {
  rows.format = kernels::ActivationFormat::kFloat;
  rows.data = data;
  rows.static_scale = 0;
  return rows;
}

namespace {

kernels::Xielu xielu_of(const XieluConfig& stored) {
  const auto softplus = [](float x) { return std::log1p(std::exp(double{x})); };
  return {.above = static_cast<float>(softplus(stored.above)),
          .below = static_cast<float>(softplus(stored.below) + double{stored.slope}),
          .slope = stored.slope};
}

}  // namespace

Expected<std::unique_ptr<DenseFfn>> DenseFfn::load(const ModelConfig& config,
                                                   int32_t layer,
                                                   int32_t activation_bits,
                                                   WeightStore& weights) {
  const LayerConfig& row = config.layers[static_cast<size_t>(layer)];
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  return load_pair(config,
                   {.gate = prefix + "ffn_gate",
                    .up = prefix + "ffn_up",
                    .down = prefix + "ffn_down",
                    .width = row.ffn_hidden,
                    .columns = row.share.ffn,
                    .has_bias = config.mlp_bias,
                    .is_fused = config.fused_gate_up,
                    .limit = row.dense_limit,
                    .xielu = xielu_of(row.xielu)},
                   activation_bits,
                   weights);
}

Expected<std::unique_ptr<DenseFfn>> DenseFfn::load_shared(const ModelConfig& config,
                                                          int32_t layer,
                                                          int32_t activation_bits,
                                                          WeightStore& weights) {
  const LayerConfig& row = config.layers[static_cast<size_t>(layer)];
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  // Directories of Granite 4 call them as dense halves.
  const bool is_named_dense = weights.has(prefix + "ffn_down.weight") &&
                              !weights.has(prefix + "ffn_down_shexp.weight");
  const char* const suffix = is_named_dense ? "" : "_shexp";
  const std::string gate = prefix + "ffn_gate" + suffix;
  const std::string up = prefix + "ffn_up" + suffix;
  return load_pair(config,
                   {.gate = gate,
                    .up = up,
                    .down = prefix + "ffn_down" + suffix,
                    .width = row.shared_hidden,
                    .columns = row.share.shared,
                    .has_bias = weights.has(up + ".bias"),
                    .is_fused = kernels::is_gated(config.gate_function) &&
                                weights.has(up + ".weight") && !weights.has(gate + ".weight"),
                    .limit = row.dense_limit},
                   activation_bits,
                   weights);
}

Expected<std::unique_ptr<DenseFfn>> DenseFfn::load_beside(const ModelConfig& config,
                                                          int32_t layer,
                                                          int32_t activation_bits,
                                                          WeightStore& weights) {
  const LayerConfig& row = config.layers[static_cast<size_t>(layer)];
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  return load_pair(config,
                   {.gate = prefix + "ffn_gate",
                    .up = prefix + "ffn_up",
                    .down = prefix + "ffn_down",
                    .width = row.shared_hidden,
                    .columns = row.share.shared,
                    .has_bias = config.mlp_bias},
                   activation_bits,
                   weights);
}

Expected<std::unique_ptr<DenseFfn>> DenseFfn::load_pair(const ModelConfig& config,
                                                        const Place& place,
                                                        int32_t activation_bits,
                                                        WeightStore& weights) {
  std::unique_ptr<DenseFfn> ffn(new DenseFfn(config, place));
  const int64_t whole = whole_of(place.columns, place.width);
  using Parts = std::array<Projection::Part, 2>;
  const bool has_bias = place.has_bias && !config.only_down_bias;
  const int64_t gate_at = config.has_up_first ? whole : 0;
  const RowSlice gate = {gate_at, 2 * whole};
  const RowSlice up = {whole - gate_at, 2 * whole};
  const Parts both = place.is_fused ? Parts{{{place.up, whole, false, gate, place.columns},
                                             {place.up, whole, false, up, place.columns}}}
                                    : Parts{{{place.gate, whole, has_bias, {}, place.columns},
                                             {place.up, whole, has_bias, {}, place.columns}}};
  const auto gate_up = ffn->is_gated() ? std::span(both) : std::span(both).subspan(1);
  SLUICE_TRY(ffn->gate_up_, Projection::load(weights, gate_up, config.hidden, activation_bits));
  const std::array<Projection::Part, 1> down = {
      {{place.down, config.hidden, place.has_bias, {}, {}}}};
  SLUICE_TRY(ffn->down_,
             Projection::load(weights, down, whole, activation_bits, config.share.segments));
  return ffn;
}

DenseFfn::Buffers DenseFfn::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  Buffers buffers;
  buffers.gate_up = arena.take_floats(tokens * gate_up_stride());
  const std::array<const Projection*, 1> readers = {&down_};
  buffers.down_in = LinearInput(readers, bounds.max_tokens, arena);
  buffers.parts = RankParts(config_, tokens, arena);
  if (has_shared_scales(down_)) {
    buffers.gated = arena.take_floats(tokens * align_up(width_, kQuantGroup));
  }
  return buffers;
}

int64_t DenseFfn::scratch_bytes(const StepBounds& bounds) const {
  Arena arena;
  layout(bounds, arena);
  return arena.used();
}

void DenseFfn::bind(const StepBounds& bounds, std::span<std::byte> scratch) {
  Arena arena(scratch);
  buffers_ = layout(bounds, arena);
}

void DenseFfn::forward(const ForwardContext& context,
                       const FfnInput& in,
                       const HalfOutput& out) const {
  const int64_t stride = gate_up_stride();
  float* gate = buffers_.gate_up;
  float* up = is_gated() ? gate + width_ : nullptr;
  const std::array<ProjectionOutput, 2> gate_up_out = {{{gate, stride}, {up, stride}}};
  LinearInput down_in = buffers_.down_in;
  down_in.set_num_rows(static_cast<int32_t>(context.batch.token_ids.size()));
  const bool shared_scales = has_shared_scales(down_);
  kernels::RowSteps after_gate_up;
  const auto scale_by = [&](float* x, float scale) {
    if (scale == 1) return;
    after_gate_up.add(kernels::ScaleRowsArgs{
        .x = x,
        .x_stride = stride,
        .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
        .n = width_,
        .scale = scale});
  };
  scale_by(gate, config_.gate_scale);
  if (up != nullptr) scale_by(up, config_.dense_scale);
  down_in.fill_for(down_, [&](const kernels::Activations& rows) {
    after_gate_up.add(
        kernels::GateMulArgs{.gate = gate,
                             .up = up,
                             .stride = stride,
                             .function = config_.gate_function,
                             .limit = limit_,
                             .xielu = xielu_,
                             .out = shared_scales ? as_floats(rows, buffers_.gated) : rows});
  });
  project(context.exec,
          gate_up_,
          in.rows,
          std::span(gate_up_out).first(gate_up_.weights().size()),
          kernels::Epilogue::kStore,
          &after_gate_up);
  if (shared_scales) {
    quantize_with_shared_scales(
        context, down_, down_in, buffers_.parts, buffers_.gated, align_up(width_, kQuantGroup));
  }
  project_to_stream(context, down_, down_in, buffers_.parts, out.rows, out.epilogue, out.then);
}

}  // namespace sluice
