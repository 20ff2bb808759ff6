// SPDX-License-Identifier: Apache-2.0
#include "engine/models/short_conv_mixer.h"

#include <array>

#include "engine/models/state_rows.h"

namespace sluice {

Expected<std::unique_ptr<Mixer>> ShortConvMixer::load(const ModelConfig& config,
                                                      int32_t layer,
                                                      int32_t activation_bits,
                                                      WeightStore& weights) {
  SLUICE_TRY_VOID(kernels::check_recurrent(weights.device()));
  SLUICE_TRY_VOID(check_lanes(weights, "channels of short convolutions", config.hidden));
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  std::unique_ptr<ShortConvMixer> mixer(new ShortConvMixer(config));
  const bool in_bias = weights.has(prefix + "conv_in.bias");
  const std::array<Projection::Part, 1> in = {
      {{.stem = prefix + "conv_in", .n = 3 * int64_t{config.hidden}, .bias = in_bias}}};
  SLUICE_TRY(mixer->in_, Projection::load(weights, in, config.hidden, activation_bits));
  const bool out_bias = weights.has(prefix + "conv_out.bias");
  const std::array<Projection::Part, 1> out = {
      {{.stem = prefix + "conv_out", .n = config.hidden, .bias = out_bias}}};
  SLUICE_TRY(mixer->out_, Projection::load(weights, out, config.hidden, activation_bits));
  SLUICE_TRY(std::vector<float> conv,
             load_conv(weights, prefix + "conv_kernel.weight", config.hidden, config.conv_taps));
  mixer->conv_ = weights.place(std::move(conv));
  if (weights.has(prefix + "conv_kernel.bias")) {
    SLUICE_TRY(std::vector<float> bias, weights.vector(prefix + "conv_kernel.bias", config.hidden));
    mixer->bias_ = weights.place(std::move(bias));
  }
  return mixer;
}

KvGroupSpec ShortConvMixer::group(DType) const {
  return state_group({{.num_heads = 1,
                       .width = (config_.conv_taps - 1) * config_.hidden,
                       .dtype = DType::kF32,
                       .per = KvPlane::Per::kEntry}});
}

ShortConvMixer::Buffers ShortConvMixer::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  Buffers buffers;
  buffers.rows = arena.take_floats(tokens * 3 * config_.hidden);
  buffers.output = arena.take_floats(tokens * config_.hidden);
  const std::array<const Projection*, 1> readers = {&out_};
  buffers.out_in = LinearInput(readers, bounds.max_tokens, arena);
  return buffers;
}

int64_t ShortConvMixer::scratch_bytes(const StepBounds& bounds) const {
  Arena arena;
  layout(bounds, arena);
  return arena.used();
}

void ShortConvMixer::bind(const StepBounds& bounds, std::span<std::byte> scratch) {
  Arena arena(scratch);
  buffers_ = layout(bounds, arena);
}

void ShortConvMixer::forward(const ForwardContext& context,
                             const LayerCache& cache,
                             const kernels::RopeTable*,
                             const LinearInput& in,
                             const HalfOutput& out) const {
  const int64_t stride = 3 * int64_t{config_.hidden};
  const ProjectionOutput rows = {buffers_.rows, stride};
  project(context.exec, in_, in, {&rows, 1}, kernels::Epilogue::kStore);
  kernels::short_conv(context.exec,
                      {.x = buffers_.rows + 2 * config_.hidden,
                       .gate_in = buffers_.rows,
                       .gate_out = buffers_.rows + config_.hidden,
                       .x_stride = stride,
                       .out = buffers_.output,
                       .out_stride = config_.hidden,
                       .n = config_.hidden,
                       .taps = config_.conv_taps,
                       .weight = conv_.data(),
                       .bias = bias_.data(),
                       .state = state_table(context.batch, cache, 0)});
  LinearInput out_in = buffers_.out_in;
  out_in.set_num_rows(static_cast<int32_t>(context.batch.token_ids.size()));
  out_in.quantize(context.exec, out_, buffers_.output, config_.hidden);
  project(context.exec, out_, out_in, {&out.rows, 1}, out.epilogue, &out.then);
}

}  // namespace sluice
