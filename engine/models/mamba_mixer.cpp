// SPDX-License-Identifier: Apache-2.0
#include "engine/models/mamba_mixer.h"

#include <array>
#include <cmath>

#include "engine/models/state_rows.h"
#include "kernels/elementwise.h"

namespace sluice {

// --- Loading ---------------------------------------------------------------------------------

Expected<std::unique_ptr<Mixer>> MambaMixer::load(const ModelConfig& config,
                                                  int32_t layer,
                                                  int32_t activation_bits,
                                                  WeightStore& weights) {
  SLUICE_TRY_VOID(kernels::check_recurrent(weights.device()));
  SLUICE_TRY_VOID(check_lanes(weights, "state of Mamba-2 layers", config.mamba.state_dim));
  SLUICE_TRY_VOID(check_lanes(weights, "heads of Mamba-2 layers", config.mamba.head_dim));
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  std::unique_ptr<MambaMixer> mixer(new MambaMixer(config));
  const std::array<Projection::Part, 1> in = {{{.stem = prefix + "mamba_in",
                                                .n = mixer->projected(),
                                                .bias = weights.has(prefix + "mamba_in.bias")}}};
  SLUICE_TRY(mixer->in_, Projection::load(weights, in, config.hidden, activation_bits));
  SLUICE_TRY_VOID(mixer->load_vectors(prefix, weights));
  const std::array<Projection::Part, 1> out = {{{.stem = prefix + "mamba_out",
                                                 .n = config.hidden,
                                                 .bias = weights.has(prefix + "mamba_out.bias")}}};
  SLUICE_TRY(mixer->out_, Projection::load(weights, out, mixer->inner(), activation_bits));
  return mixer;
}

Expected<void> MambaMixer::load_vectors(const std::string& prefix, WeightStore& weights) {
  const int32_t heads = mamba_.num_heads;
  SLUICE_TRY(std::vector<float> conv,
             load_conv(weights, prefix + "mamba_conv.weight", channels(), config_.conv_taps));
  conv_ = weights.place(std::move(conv));
  if (weights.has(prefix + "mamba_conv.bias")) {
    SLUICE_TRY(std::vector<float> bias, weights.vector(prefix + "mamba_conv.bias", channels()));
    conv_bias_ = weights.place(std::move(bias));
  }
  // GGUF has the rate itself.
  const bool has_rate = weights.has(prefix + "mamba_rate");
  const std::string rate_name = prefix + (has_rate ? "mamba_rate" : "mamba_log_rate.weight");
  SLUICE_TRY(std::vector<float> rate, weights.flat(rate_name, heads));
  for (float& value : rate) {
    if (!has_rate) value = static_cast<float>(-std::exp(static_cast<double>(value)));
  }
  rate_ = weights.place(std::move(rate));
  SLUICE_TRY(std::vector<float> dt_bias, weights.vector(prefix + "mamba_dt.bias", heads));
  dt_bias_ = weights.place(std::move(dt_bias));
  SLUICE_TRY(std::vector<float> skip, weights.flat(prefix + "mamba_skip.weight", heads));
  skip_ = weights.place(std::move(skip));
  // GGUF has a row of the norm for each group.
  SLUICE_TRY(std::vector<float> norm, weights.flat(prefix + "mamba_norm.weight", inner()));
  norm_ = weights.place(std::move(norm));
  return {};
}

// --- Memory ----------------------------------------------------------------------------------

KvGroupSpec MambaMixer::group(DType) const {
  return state_group({{.num_heads = 1,
                       .width = (config_.conv_taps - 1) * channels(),
                       .dtype = DType::kF32,
                       .per = KvPlane::Per::kEntry},
                      {.num_heads = mamba_.num_heads,
                       .width = mamba_.state_dim * mamba_.head_dim,
                       .dtype = DType::kF32,
                       .per = KvPlane::Per::kEntry}});
}

MambaMixer::Buffers MambaMixer::layout(const StepBounds& bounds, Arena& arena) const {
  Buffers buffers;
  buffers.rows = arena.take_floats(bounds.max_tokens * stride());
  const std::array<const Projection*, 1> readers = {&out_};
  buffers.out_in = LinearInput(readers, bounds.max_tokens, arena);
  return buffers;
}

int64_t MambaMixer::scratch_bytes(const StepBounds& bounds) const {
  Arena arena;
  layout(bounds, arena);
  return arena.used();
}

void MambaMixer::bind(const StepBounds& bounds, std::span<std::byte> scratch) {
  Arena arena(scratch);
  buffers_ = layout(bounds, arena);
}

// --- A step ----------------------------------------------------------------------------------

void MambaMixer::run_mamba(const ForwardContext& context, const LayerCache& cache) const {
  float* const x = buffers_.rows + inner();
  float* const b = x + inner();
  float* const dt = x + channels();
  kernels::short_conv(context.exec,
                      {.x = x,
                       .x_stride = stride(),
                       .out = x,
                       .out_stride = stride(),
                       .n = channels(),
                       .taps = config_.conv_taps,
                       .weight = conv_.data(),
                       .bias = conv_bias_.data(),
                       .silu = true,
                       .state = state_table(context.batch, cache, 0)});
  kernels::mamba2(context.exec,
                  {.x = x,
                   .b = b,
                   .c = b + mamba_.num_groups * mamba_.state_dim,
                   .row_stride = stride(),
                   .dt = dt,
                   .decay = dt + mamba_.num_heads,
                   .step_stride = stride(),
                   .rate = rate_.data(),
                   .dt_bias = dt_bias_.data(),
                   .skip = skip_.data(),
                   .min_step = mamba_.min_step,
                   .max_step = mamba_.max_step,
                   .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                   .num_heads = mamba_.num_heads,
                   .num_groups = mamba_.num_groups,
                   .state_dim = mamba_.state_dim,
                   .head_dim = mamba_.head_dim,
                   .out = buffers_.rows + output_column(),
                   .out_stride = stride(),
                   .state = state_table(context.batch, cache, 1)});
}

void MambaMixer::forward(const ForwardContext& context,
                         const LayerCache& cache,
                         const kernels::RopeTable*,
                         const LinearInput& in,
                         const HalfOutput& out) const {
  const auto num_rows = static_cast<int32_t>(context.batch.token_ids.size());
  const ProjectionOutput rows = {buffers_.rows, stride()};
  project(context.exec, in_, in, {&rows, 1}, kernels::Epilogue::kStore);
  run_mamba(context, cache);
  LinearInput out_in = buffers_.out_in;
  out_in.set_num_rows(num_rows);
  float* const output = buffers_.rows + output_column();
  kernels::RowSteps steps;
  steps.add(kernels::GatedNormArgs{.x = output,
                                   .x_stride = stride(),
                                   .gate = buffers_.rows,
                                   .gate_stride = stride(),
                                   .num_rows = num_rows,
                                   .num_groups = mamba_.num_groups,
                                   .n = inner() / mamba_.num_groups,
                                   .weight = norm_.data(),
                                   .eps = config_.norm_eps});
  out_in.add_quantize_steps(out_, output, stride(), steps);
  kernels::run_row_steps(context.exec, steps);
  project(context.exec, out_, out_in, {&out.rows, 1}, out.epilogue, &out.then);
}

}  // namespace sluice
