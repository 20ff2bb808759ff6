// SPDX-License-Identifier: Apache-2.0
#include "engine/models/delta_mixer.h"

#include <array>
#include <cmath>

#include "engine/models/state_rows.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {

// --- Loading ---------------------------------------------------------------------------------

Expected<std::unique_ptr<Mixer>> DeltaMixer::load(const ModelConfig& config,
                                                  int32_t layer,
                                                  int32_t activation_bits,
                                                  WeightStore& weights) {
  const DeltaConfig& delta = config.delta;
  SLUICE_TRY_VOID(kernels::check_recurrent(weights.device()));
  SLUICE_TRY_VOID(check_lanes(weights, "key heads of delta layers", delta.key_dim));
  SLUICE_TRY_VOID(check_lanes(weights, "value heads of delta layers", delta.value_dim));
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  std::unique_ptr<DeltaMixer> mixer(new DeltaMixer(config));
  SLUICE_TRY_VOID(mixer->load_input(prefix, activation_bits, weights));
  SLUICE_TRY_VOID(mixer->load_vectors(prefix, weights));
  const std::array<Projection::Part, 1> out = {{{prefix + "delta_out", config.hidden}}};
  SLUICE_TRY(mixer->out_, Projection::load(weights, out, mixer->values(), activation_bits));
  const int32_t group = delta.num_value_heads / delta.num_key_heads;
  for (int32_t head = 0; head < delta.num_value_heads; ++head) {
    mixer->key_heads_.push_back(delta.has_tiled_heads ? head % delta.num_key_heads : head / group);
  }
  return mixer;
}

// Files have the rows of q, k and v in one matrix and those of z in another, or all in one, by key
// head; those of b and a likewise.
Expected<void> DeltaMixer::load_input(const std::string& prefix,
                                      int32_t bits,
                                      WeightStore& weights) {
  const bool joins_gates = weights.has(prefix + "delta_qkvz.weight");
  const bool joins_betas = weights.has(prefix + "delta_ba.weight");
  const int32_t heads = delta_.num_value_heads;
  std::vector<Projection::Part> parts;
  if (joins_gates) {
    parts.push_back({prefix + "delta_qkvz", channels() + values()});
  } else {
    parts.push_back({prefix + "delta_qkv", channels()});
    parts.push_back({prefix + "delta_gate", values()});
  }
  if (joins_betas) {
    parts.push_back({prefix + "delta_ba", 2 * heads});
  } else {
    parts.push_back({prefix + "delta_beta", heads});
    parts.push_back({prefix + "delta_alpha", heads});
  }
  if (joins_gates || joins_betas) add_columns_by_key_head(joins_gates, joins_betas);
  SLUICE_TRY(in_, Projection::load(weights, parts, config_.hidden, bits));
  return {};
}

// A joined matrix has, for each key head, its rows of q, k, v and z, or of b and a.
void DeltaMixer::add_columns_by_key_head(bool joins_gates, bool joins_betas) {
  const int32_t key = delta_.key_dim;
  const int32_t group = delta_.num_value_heads / delta_.num_key_heads;
  const int32_t value = group * delta_.value_dim;
  // Appends `width` columns of each key head from `first` on, of `of_head` in all, behind `begin`.
  const auto append = [this](int32_t begin, int32_t of_head, int32_t first, int32_t width) {
    for (int32_t head = 0; head < delta_.num_key_heads; ++head) {
      for (int32_t i = 0; i < width; ++i) {
        columns_.push_back(begin + head * of_head + first + i);
      }
    }
  };
  if (joins_gates) {
    const int32_t of_head = 2 * (key + value);
    append(0, of_head, 0, key);
    append(0, of_head, key, key);
    append(0, of_head, 2 * key, value);
    append(0, of_head, 2 * key + value, value);
  } else {
    for (int32_t i = 0; i < channels() + values(); ++i) columns_.push_back(i);
  }
  const int32_t begin = channels() + values();
  if (joins_betas) {
    append(begin, 2 * group, 0, group);
    append(begin, 2 * group, group, group);
  } else {
    for (int32_t i = begin; i < projected(); ++i) columns_.push_back(i);
  }
}

Expected<void> DeltaMixer::load_vectors(const std::string& prefix, WeightStore& weights) {
  const int32_t heads = delta_.num_value_heads;
  SLUICE_TRY(std::vector<float> conv,
             load_conv(weights, prefix + "delta_conv.weight", channels(), config_.conv_taps));
  conv_ = weights.place(std::move(conv));
  // GGUF has the rate itself.
  const std::string stored = prefix + "delta_rate";
  if (weights.has(stored)) {
    SLUICE_TRY(std::vector<float> rate, weights.vector(stored, heads));
    rate_ = weights.place(std::move(rate));
  } else {
    SLUICE_TRY(std::vector<float> rate, weights.vector(prefix + "delta_log_rate.weight", heads));
    for (float& value : rate) value = static_cast<float>(-std::exp(static_cast<double>(value)));
    rate_ = weights.place(std::move(rate));
  }
  SLUICE_TRY(std::vector<float> dt_bias, weights.vector(prefix + "delta_dt.bias", heads));
  dt_bias_ = weights.place(std::move(dt_bias));
  SLUICE_TRY(std::vector<float> norm,
             weights.vector(prefix + "delta_norm.weight", delta_.value_dim));
  norm_ = weights.place(std::move(norm));  // without ModelConfig::norm_offset
  return {};
}

// --- Memory ----------------------------------------------------------------------------------

KvGroupSpec DeltaMixer::group(DType) const {
  return state_group({{.num_heads = 1,
                       .width = (config_.conv_taps - 1) * channels(),
                       .dtype = DType::kF32,
                       .per = KvPlane::Per::kEntry},
                      {.num_heads = delta_.num_value_heads,
                       .width = delta_.key_dim * delta_.value_dim,
                       .dtype = DType::kF32,
                       .per = KvPlane::Per::kEntry}});
}

DeltaMixer::Buffers DeltaMixer::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  Buffers buffers;
  buffers.rows = arena.take_floats(tokens * stride());
  if (!columns_.empty()) buffers.stored = arena.take_floats(tokens * projected());
  const std::array<const Projection*, 1> readers = {&out_};
  buffers.out_in = LinearInput(readers, bounds.max_tokens, arena);
  return buffers;
}

int64_t DeltaMixer::scratch_bytes(const StepBounds& bounds) const {
  Arena arena;
  layout(bounds, arena);
  return arena.used();
}

void DeltaMixer::bind(const StepBounds& bounds, std::span<std::byte> scratch) {
  Arena arena(scratch);
  buffers_ = layout(bounds, arena);
}

// --- A step ----------------------------------------------------------------------------------

void DeltaMixer::project_rows(const ForwardContext& context, const LinearInput& in) const {
  float* const first = columns_.empty() ? buffers_.rows : buffers_.stored;
  const int64_t row_stride = columns_.empty() ? stride() : projected();
  std::array<ProjectionOutput, 4> outputs{};
  const size_t num_parts = in_.weights().size();
  int64_t column = 0;
  for (size_t i = 0; i < num_parts; ++i) {
    outputs[i] = {first + column, row_stride};
    column += in_.weight(i).n;
  }
  project(context.exec,
          in_,
          in,
          std::span(outputs).first(num_parts),
          kernels::Epilogue::kStore);
  if (columns_.empty()) return;
  kernels::select_columns(context.exec,
                          {.x = buffers_.stored,
                           .x_stride = projected(),
                           .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                           .columns = columns_,
                           .absent = 0,
                           .out = buffers_.rows,
                           .out_stride = stride()});
}

void DeltaMixer::run_delta(const ForwardContext& context, const LayerCache& cache) const {
  float* const q = buffers_.rows;
  float* const b = q + channels() + values();
  kernels::short_conv(context.exec,
                      {.x = q,
                       .x_stride = stride(),
                       .out = q,
                       .out_stride = stride(),
                       .n = channels(),
                       .taps = config_.conv_taps,
                       .weight = conv_.data(),
                       .silu = true,
                       .state = state_table(context.batch, cache, 0)});
  kernels::delta_rule(context.exec,
                      {.q = q,
                       .k = q + keys(),
                       .v = q + 2 * keys(),
                       .qkv_stride = stride(),
                       .b = b,
                       .a = b + delta_.num_value_heads,
                       .gate_stride = stride(),
                       .rate = rate_.data(),
                       .dt_bias = dt_bias_.data(),
                       .key_heads = key_heads_,
                       .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                       .num_key_heads = delta_.num_key_heads,
                       .key_dim = delta_.key_dim,
                       .value_dim = delta_.value_dim,
                       .scale = 1.0F / std::sqrt(static_cast<float>(delta_.key_dim)),
                       .out = q + projected(),
                       .out_stride = stride(),
                       .state = state_table(context.batch, cache, 1)});
}

void DeltaMixer::forward(const ForwardContext& context,
                         const LayerCache& cache,
                         const kernels::RopeTable*,
                         const LinearInput& in,
                         const HalfOutput& out) const {
  const auto num_rows = static_cast<int32_t>(context.batch.token_ids.size());
  project_rows(context, in);
  run_delta(context, cache);
  LinearInput out_in = buffers_.out_in;
  out_in.set_num_rows(num_rows);
  float* const output = buffers_.rows + projected();
  kernels::RowSteps steps;
  steps.add(kernels::HeadNormArgs{.x = output,
                                  .x_stride = stride(),
                                  .num_rows = num_rows,
                                  .num_heads = delta_.num_value_heads,
                                  .n = delta_.value_dim,
                                  .weight = norm_.data(),
                                  .eps = config_.norm_eps});
  out_in.fill_for(out_, [&](const kernels::Activations& rows) {
    steps.add(kernels::GateMulArgs{
        .gate = buffers_.rows + channels(), .up = output, .stride = stride(), .out = rows});
  });
  kernels::run_row_steps(context.exec, steps);
  project(context.exec, out_, out_in, {&out.rows, 1}, out.epilogue, &out.then);
}

}  // namespace sluice
