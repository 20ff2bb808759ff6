// SPDX-License-Identifier: Apache-2.0
#include "engine/models/mamba_mixer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/models/state_rows.h"
#include "kernels/elementwise.h"

namespace sluice {

namespace {

// Whether a rank's heads end within a group that has a norm.
bool splits_groups(const ModelConfig& config) {
  const int64_t inner = int64_t{config.mamba.num_heads} * config.mamba.head_dim;
  const int64_t group = inner / config.mamba.num_groups;
  for (int32_t rank = 1; rank < config.share.size; ++rank) {
    const kernels::Segments segments = {.first = rank * kernels::kSegments / config.share.size};
    if (segments.first_column(inner) % group != 0) return true;
  }
  return false;
}

}  // namespace

// --- Loading ---------------------------------------------------------------------------------

MambaMixer::MambaMixer(const ModelConfig& config, const MambaShare& share)
    : config_(config),
      mamba_(config.mamba),
      heads_(share.heads),
      groups_(share.groups),
      joins_norms_(splits_groups(config)) {}

Expected<std::unique_ptr<Mixer>> MambaMixer::load(const ModelConfig& config,
                                                  int32_t layer,
                                                  int32_t activation_bits,
                                                  WeightStore& weights) {
  SLUICE_TRY_VOID(check_lanes(weights, "state of Mamba-2 layers", config.mamba.state_dim));
  SLUICE_TRY_VOID(check_lanes(weights, "heads of Mamba-2 layers", config.mamba.head_dim));
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  SLUICE_TRY(const MambaShare share, mamba_share(config.mamba, config.share.segments));
  std::unique_ptr<MambaMixer> mixer(new MambaMixer(config, share));
  SLUICE_TRY_VOID(mixer->load_projections(prefix, activation_bits, weights));
  SLUICE_TRY_VOID(mixer->load_conv_weights(prefix, weights));
  SLUICE_TRY_VOID(mixer->load_vectors(prefix, weights));
  return mixer;
}

Expected<void> MambaMixer::load_projections(const std::string& prefix,
                                            int32_t bits,
                                            WeightStore& weights) {
  const std::string stem = prefix + "mamba_in";
  const bool bias = weights.has(stem + ".bias");
  const int64_t inner = int64_t{mamba_.num_heads} * mamba_.head_dim;
  const int64_t of_groups = int64_t{mamba_.num_groups} * mamba_.state_dim;
  const int64_t steps = 2 * (inner + of_groups);
  const int64_t total = steps + mamba_.num_heads;
  const Portion x_rows = rows_of(heads_, mamba_.head_dim);
  const Portion b_rows = rows_of(groups_, mamba_.state_dim);
  const std::array<Projection::Part, 5> in = {
      {{stem, inner, bias, {0, total}, x_rows},
       {stem, inner, bias, {inner, total}, x_rows},
       {stem, of_groups, bias, {2 * inner, total}, b_rows},
       {stem, of_groups, bias, {2 * inner + of_groups, total}, b_rows},
       {stem, mamba_.num_heads, bias, {steps, total}, {}}}};
  SLUICE_TRY(in_, Projection::load(weights, in, config_.hidden, bits));
  const std::array<Projection::Part, 1> out = {{{.stem = prefix + "mamba_out",
                                                 .n = config_.hidden,
                                                 .bias = weights.has(prefix + "mamba_out.bias")}}};
  SLUICE_TRY(out_, Projection::load(weights, out, inner, bits, config_.share.segments));
  return {};
}

Expected<void> MambaMixer::load_conv_weights(const std::string& prefix, WeightStore& weights) {
  const int32_t inner = mamba_.num_heads * mamba_.head_dim;
  const int32_t of_groups = mamba_.num_groups * mamba_.state_dim;
  const int32_t all = inner + 2 * of_groups;
  const Portion b_channels = rows_of(groups_, mamba_.state_dim);
  const std::array<std::pair<int32_t, Portion>, 3> own = {{{0, rows_of(heads_, mamba_.head_dim)},
                                                           {inner, b_channels},
                                                           {inner + of_groups, b_channels}}};
  SLUICE_TRY(const std::vector<float> conv,
             load_conv(weights, prefix + "mamba_conv.weight", all, config_.conv_taps));
  conv_ = weights.place(columns_of_rows(conv, all, own));
  if (!weights.has(prefix + "mamba_conv.bias")) return {};
  SLUICE_TRY(const std::vector<float> bias, weights.vector(prefix + "mamba_conv.bias", all));
  conv_bias_ = weights.place(columns_of_rows(bias, all, own));
  return {};
}

Expected<void> MambaMixer::load_vectors(const std::string& prefix, WeightStore& weights) {
  const int32_t heads = mamba_.num_heads;
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
  if (!mamba_.has_norm) return {};
  // GGUF has a row of the norm for each group.
  const int32_t width = heads * mamba_.head_dim;
  const std::array<std::pair<int32_t, Portion>, 1> own = {{{0, rows_of(heads_, mamba_.head_dim)}}};
  SLUICE_TRY(const std::vector<float> norm, weights.flat(prefix + "mamba_norm.weight", width));
  norm_ = weights.place(columns_of_rows(norm, width, own));
  return {};
}

// --- Memory ----------------------------------------------------------------------------------

KvGroupSpec MambaMixer::group(DType) const {
  return replayed_state_group({conv_plane(channels(), config_.conv_taps),
                               {.num_heads = heads_.count,
                                .width = mamba_.state_dim * mamba_.head_dim,
                                .dtype = DType::kF32,
                                .per = KvPlane::Per::kEntry}},
                              config_,
                              channels() + mamba_.num_heads);
}

MambaMixer::Buffers MambaMixer::layout(const StepBounds& bounds, Arena& arena) const {
  Buffers buffers;
  buffers.rows = arena.take_floats(most_state_rows(bounds, config_) * stride());
  const std::array<const Projection*, 1> readers = {&out_};
  buffers.sums = arena.take_floats(int64_t{bounds.max_tokens} * mamba_.num_heads);
  buffers.out_in = LinearInput(readers, bounds.max_tokens, arena);
  buffers.parts = RankParts(config_, bounds.max_tokens, arena);
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

void MambaMixer::project_rows(const ForwardContext& context, const LinearInput& in) const {
  std::array<ProjectionOutput, 5> outputs{};
  int64_t column = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i] = {buffers_.rows + column, stride()};
    column += in_.weight(i).n;
  }
  kernels::RowSteps then;
  add_scales(static_cast<int32_t>(context.batch.token_ids.size()), then);
  project(context.exec, in_, in, outputs, kernels::Epilogue::kStore, &then);
}

void MambaMixer::run_mamba(const ForwardContext& context, const LayerCache& cache) const {
  float* const x = buffers_.rows + inner();
  float* const b = x + inner();
  float* const dt = x + channels() + heads_.first;
  // All but the gates.
  replay_rows(context,
              cache,
              buffers_.rows,
              stride(),
              {{{inner(), channels()}, {inner() + channels(), mamba_.num_heads}}});
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
                   .c = b + of_groups(),
                   .row_stride = stride(),
                   .dt = dt,
                   .decay = buffers_.rows + projected(),
                   .step_stride = stride(),
                   .rate = rate_.data() + heads_.first,
                   .dt_bias = dt_bias_.data() + heads_.first,
                   .skip = skip_.data() + heads_.first,
                   .min_step = mamba_.min_step,
                   .max_step = mamba_.max_step,
                   .num_rows = num_state_rows(context.batch),
                   .num_heads = heads_.count,
                   .num_groups = groups_.count,
                   .state_dim = mamba_.state_dim,
                   .head_dim = mamba_.head_dim,
                   .out = buffers_.rows + output_column(),
                   .out_stride = stride(),
                   .state = state_table(context.batch, cache, 1)});
}

void MambaMixer::add_scales(int32_t num_rows, kernels::RowSteps& steps) const {
    const std::array<int32_t, 5> widths = {
      inner(), inner(), of_groups(), of_groups(), mamba_.num_heads};
  float* x = buffers_.rows;
  for (size_t i = 0; i < widths.size(); ++i) {
    if (mamba_.scales[i] != 1) {
      steps.add(kernels::ScaleRowsArgs{.x = x,
                                       .x_stride = stride(),
                                       .num_rows = num_rows,
                                       .n = widths[i],
                                       .scale = mamba_.scales[i]});
    }
    x += widths[i];
  }
}

// Multiplies the output by its gate and quantizes it: of a layer without a norm, on one rank.
void MambaMixer::run_gate(const ForwardContext& context, const LinearInput& out_in) const {
  float* const output = buffers_.rows + output_column();
  kernels::RowSteps steps;
  if (mamba_.output_scale != 1) {
    steps.add(kernels::ScaleRowsArgs{
        .x = output,
        .x_stride = stride(),
        .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
        .n = inner(),
        .scale = mamba_.output_scale});
  }
  out_in.fill_for(out_, [&](const kernels::Activations& rows) {
    steps.add(kernels::GateMulArgs{
        .gate = buffers_.rows, .up = output, .stride = stride(), .out = rows});
  });
  kernels::run_row_steps(context.exec, steps);
}

// Norms the output behind its gate and quantizes it. False: a rank has failed.
bool MambaMixer::run_norm(const ForwardContext& context, const LinearInput& out_in) const {
  const auto num_rows = static_cast<int32_t>(context.batch.token_ids.size());
  float* const output = buffers_.rows + output_column();
  kernels::RowSteps before;
  before.add(kernels::GatedSquaresArgs{.x = output,
                                       .x_stride = stride(),
                                       .gate = buffers_.rows,
                                       .gate_stride = stride(),
                                       .num_rows = num_rows,
                                       .num_heads = heads_.count,
                                       .n = mamba_.head_dim,
                                       .sums = buffers_.sums,
                                       .first = heads_.first,
                                       .whole = mamba_.num_heads});
  kernels::GroupNormArgs norm = {.x = output,
                                 .x_stride = stride(),
                                 .num_rows = num_rows,
                                 .num_heads = heads_.count,
                                 .n = mamba_.head_dim,
                                 .parts = {buffers_.sums},
                                 .num_parts = 1,
                                 .first = heads_.first,
                                 .whole = mamba_.num_heads,
                                 .num_groups = mamba_.num_groups,
                                 .weight = norm_.data(),
                                 .eps = config_.norm_eps};
  kernels::RowSteps after;
  if (joins_norms_) {
    kernels::run_row_steps(context.exec, before);
    const GatheredSums sums = gather_sums(context, buffers_.sums, num_rows, mamba_.num_heads);
    if (sums.count == 0) return false;
    std::ranges::copy(sums.all(), norm.parts);
    norm.num_parts = static_cast<int32_t>(sums.count);
  } else {
    after = before;
  }
  after.add(norm);
  if (mamba_.output_scale != 1) {
    after.add(kernels::ScaleRowsArgs{.x = output,
                                     .x_stride = stride(),
                                     .num_rows = num_rows,
                                     .n = inner(),
                                     .scale = mamba_.output_scale});
  }
  const bool shared_scales = has_shared_scales(out_);
  if (!shared_scales) out_in.add_quantize_steps(out_, output, stride(), after);
  kernels::run_row_steps(context.exec, after);
  if (shared_scales) {
    quantize_with_shared_scales(context, out_, out_in, buffers_.parts, output, stride());
  }
  return true;
}

void MambaMixer::forward(const ForwardContext& context,
                         const LayerCache& cache,
                         const kernels::RopeTable*,
                         const LinearInput& in,
                         const HalfOutput& out) const {
  project_rows(context, in);
  run_mamba(context, cache);
  LinearInput out_in = buffers_.out_in;
  out_in.set_num_rows(static_cast<int32_t>(context.batch.token_ids.size()));
  if (!mamba_.has_norm) {
    run_gate(context, out_in);
  } else if (!run_norm(context, out_in)) {
    return;
  }
  project_to_stream(context, out_, out_in, buffers_.parts, out.rows, out.epilogue, out.then);
}

}  // namespace sluice
