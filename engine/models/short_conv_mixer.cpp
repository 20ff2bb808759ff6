// SPDX-License-Identifier: Apache-2.0
#include "engine/models/short_conv_mixer.h"

#include <array>
#include <utility>
#include <vector>

#include "engine/models/state_rows.h"

namespace sluice {

Expected<std::unique_ptr<Mixer>> ShortConvMixer::load(const ModelConfig& config,
                                                      int32_t layer,
                                                      int32_t activation_bits,
                                                      WeightStore& weights) {
  SLUICE_TRY_VOID(check_lanes(weights, "channels of short convolutions", config.hidden));
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  std::unique_ptr<ShortConvMixer> mixer(
      new ShortConvMixer(config, config.layers[static_cast<size_t>(layer)].share));
  const bool in_bias = weights.has(prefix + "conv_in.bias");
  const int64_t n = config.hidden;
  const std::string in_stem = prefix + "conv_in";
  const Portion& own = mixer->channels_;
  const std::array<Projection::Part, 3> in = {{{in_stem, n, in_bias, {0, 3 * n}, own},
                                               {in_stem, n, in_bias, {n, 3 * n}, own},
                                               {in_stem, n, in_bias, {2 * n, 3 * n}, own}}};
  SLUICE_TRY(mixer->in_, Projection::load(weights, in, n, activation_bits));
  const bool out_bias = weights.has(prefix + "conv_out.bias");
  const std::array<Projection::Part, 1> out = {
      {{.stem = prefix + "conv_out", .n = n, .bias = out_bias}}};
  SLUICE_TRY(mixer->out_,
             Projection::load(weights, out, n, activation_bits, config.share.segments));
  SLUICE_TRY_VOID(mixer->load_conv_weights(prefix, weights));
  return mixer;
}

Expected<void> ShortConvMixer::load_conv_weights(const std::string& prefix, WeightStore& weights) {
  const int32_t n = config_.hidden;
  const std::array<std::pair<int32_t, Portion>, 1> own = {{{0, channels_}}};
  SLUICE_TRY(const std::vector<float> conv,
             load_conv(weights, prefix + "conv_kernel.weight", n, config_.conv_taps));
  conv_ = weights.place(columns_of_rows(conv, n, own));
  if (!weights.has(prefix + "conv_kernel.bias")) return {};
  SLUICE_TRY(const std::vector<float> bias, weights.vector(prefix + "conv_kernel.bias", n));
  bias_ = weights.place(columns_of_rows(bias, n, own));
  return {};
}

KvGroupSpec ShortConvMixer::group(DType) const {
  return replayed_state_group(
      {conv_plane(channels_.count, config_.conv_taps)}, config_, 2 * channels_.count);
}

ShortConvMixer::Buffers ShortConvMixer::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  Buffers buffers;
  buffers.rows = arena.take_floats(most_state_rows(bounds, config_) * 3 * channels_.count);
  buffers.output = arena.take_floats(most_state_rows(bounds, config_) * channels_.count);
  const std::array<const Projection*, 1> readers = {&out_};
  buffers.out_in = LinearInput(readers, bounds.max_tokens, arena);
  buffers.parts = RankParts(config_, tokens, arena);
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
  const int32_t n = channels_.count;
  const int64_t stride = 3 * int64_t{n};
  const std::array<ProjectionOutput, 3> rows = {
      {{buffers_.rows, stride}, {buffers_.rows + n, stride}, {buffers_.rows + 2 * n, stride}}};
  project(context.exec, in_, in, rows, kernels::Epilogue::kStore);
  // The values and the gate before, which the convolution reads.
  replay_rows(context, cache, buffers_.rows, stride, {{{0, n}, {2 * n, n}}});
  kernels::short_conv(context.exec,
                      {.x = buffers_.rows + 2 * n,
                       .gate_in = buffers_.rows,
                       .gate_out = buffers_.rows + n,
                       .x_stride = stride,
                       .out = buffers_.output,
                       .out_stride = n,
                       .n = n,
                       .taps = config_.conv_taps,
                       .weight = conv_.data(),
                       .bias = bias_.data(),
                       .state = state_table(context.batch, cache, 0)});
  LinearInput out_in = buffers_.out_in;
  out_in.set_num_rows(static_cast<int32_t>(context.batch.token_ids.size()));
  if (has_shared_scales(out_)) {
    quantize_with_shared_scales(context, out_, out_in, buffers_.parts, buffers_.output, n);
  } else {
    out_in.quantize(context.exec, out_, buffers_.output, n);
  }
  project_to_stream(context, out_, out_in, buffers_.parts, out.rows, out.epilogue, out.then);
}

}  // namespace sluice
