// SPDX-License-Identifier: Apache-2.0
#include "engine/models/delta_mixer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "engine/models/dense_ffn.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {

// --- Loading ---------------------------------------------------------------------------------

DeltaMixer::DeltaMixer(const ModelConfig& config, const LayerShare& share)
    : config_(config),
      delta_(config.delta),
      value_heads_(own_or_all(share.heads, config.delta.num_value_heads)),
      key_heads_(own_or_all(share.kv_heads, config.delta.num_key_heads)) {
  const int32_t group = delta_.num_value_heads / delta_.num_key_heads;
  for (int32_t i = 0; i < value_heads_.count; ++i) {
    const int32_t head = value_heads_.first + i;
    const int32_t key = delta_.has_tiled_heads ? head % delta_.num_key_heads : head / group;
    key_of_value_.push_back(key - key_heads_.first);
  }
}

Expected<std::unique_ptr<Mixer>> DeltaMixer::load(const ModelConfig& config,
                                                  int32_t layer,
                                                  int32_t activation_bits,
                                                  WeightStore& weights) {
  const DeltaConfig& delta = config.delta;
  SLUICE_TRY_VOID(check_lanes(weights, "key heads of delta layers", delta.key_dim));
  SLUICE_TRY_VOID(check_lanes(weights, "value heads of delta layers", delta.value_dim));
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  std::unique_ptr<DeltaMixer> mixer(
      new DeltaMixer(config, config.layers[static_cast<size_t>(layer)].share));
  SLUICE_TRY_VOID(mixer->load_input(prefix, activation_bits, weights));
  SLUICE_TRY_VOID(mixer->load_conv_weights(prefix, weights));
  SLUICE_TRY_VOID(mixer->load_vectors(prefix, weights));
  mixer->key_heads_read_ = weights.place(mixer->key_of_value_);
  const char* const name = delta.decays_channels() ? "attn_output" : "delta_out";
  const std::array<Projection::Part, 1> out = {{{prefix + name, config.hidden}}};
  const int64_t width = int64_t{delta.num_value_heads} * delta.value_dim;
  SLUICE_TRY(mixer->out_,
             Projection::load(weights, out, width, activation_bits, config.share.segments));
  return mixer;
}

// Files have the rows of q, k and v in one matrix or in three and those of z in another, or all in
// one, by key head; those of b and a likewise.
Expected<void> DeltaMixer::load_input(const std::string& prefix,
                                      int32_t bits,
                                      WeightStore& weights) {
  // Only files whose heads are in groups join q, k, v and z.
  const bool joins_gates = !delta_.has_tiled_heads && weights.has(prefix + "delta_qkvz.weight");
  const bool joins_betas = weights.has(prefix + "delta_ba.weight");
  const int32_t heads = delta_.num_value_heads;
  const int64_t q = int64_t{delta_.num_key_heads} * delta_.key_dim;
  const int64_t v = int64_t{heads} * delta_.value_dim;
  const int64_t all = 2 * (q + v);  // rows of q, k, v and z
  const Portion q_rows = rows_of(key_heads_, delta_.key_dim);
  const Portion v_rows = rows_of(value_heads_, delta_.value_dim);
  std::vector<Projection::Part> parts;
  if (joins_gates) {
    const auto of_key_head = static_cast<int32_t>(all / delta_.num_key_heads);
    parts.push_back({prefix + "delta_qkvz", all, false, {}, rows_of(key_heads_, of_key_head)});
  } else if (delta_.has_parts_apart) {
    const std::string stem = prefix + (delta_.decays_channels() ? "attn_" : "delta_");
    parts.push_back({stem + "q", q, false, {}, q_rows});
    parts.push_back({stem + "k", q, false, {}, q_rows});
    parts.push_back({stem + "v", v, false, {}, v_rows});
    if (!delta_.decays_channels()) {
      parts.push_back({prefix + "delta_gate", v, false, {}, v_rows});
    }
  } else {
    const std::string joined = prefix + "delta_qkv";
    parts.push_back({joined, q, false, {0, 2 * q + v}, q_rows});
    parts.push_back({joined, q, false, {q, 2 * q + v}, q_rows});
    parts.push_back({joined, v, false, {2 * q, 2 * q + v}, v_rows});
    parts.push_back({prefix + "delta_gate", v, false, {}, v_rows});
  }
  if (joins_betas) {
    parts.push_back({prefix + "delta_ba", 2 * heads});
  } else {
    parts.push_back({prefix + "delta_beta", heads});
  }
  if (delta_.decays_channels()) {
    parts.push_back({prefix + "delta_decay_a", delta_.gate_rank});
    parts.push_back({prefix + "delta_gate_a", delta_.gate_rank});
    SLUICE_TRY_VOID(load_narrow(prefix, bits, weights));
  } else if (!joins_betas) {
    parts.push_back({prefix + "delta_alpha", heads});
  }
  SLUICE_TRY(in_, Projection::load(weights, parts, config_.hidden, bits));
  for (const PackedWeight& weight : in_.weights()) stored_ += weight.n;
  if (joins_gates || joins_betas) {
    columns_ = weights.place(columns_by_key_head(joins_gates, joins_betas));
  }
  return {};
}

Expected<void> DeltaMixer::load_narrow(const std::string& prefix,
                                       int32_t bits,
                                       WeightStore& weights) {
  const int64_t heads = delta_.num_value_heads;
  const std::array<Projection::Part, 1> decays = {{{prefix + "delta_decay_b",
                                                    heads * delta_.key_dim,
                                                    false,
                                                    {},
                                                    rows_of(value_heads_, delta_.key_dim)}}};
  const std::array<Projection::Part, 1> gates = {{{prefix + "delta_gate_b",
                                                   heads * delta_.value_dim,
                                                   false,
                                                   {},
                                                   rows_of(value_heads_, delta_.value_dim)}}};
  SLUICE_TRY(decays_, Projection::load(weights, decays, delta_.gate_rank, bits));
  SLUICE_TRY(gates_, Projection::load(weights, gates, delta_.gate_rank, bits));
  return {};
}

// A joined matrix has, for each key head, its rows of q, k, v and z, or of b and a.
std::vector<int32_t> DeltaMixer::columns_by_key_head(bool joins_gates, bool joins_betas) const {
  const int32_t key = delta_.key_dim;
  const int32_t value = delta_.value_dim;
  const int32_t group = delta_.num_value_heads / delta_.num_key_heads;
  std::vector<int32_t> columns;
  const auto append = [&columns](int32_t first, int32_t width) {
    for (int32_t i = 0; i < width; ++i) columns.push_back(first + i);
  };
  if (joins_gates) {
    const int32_t of_head = 2 * (key + group * value);
    const auto append_keys = [&](int32_t first) {
      for (int32_t i = 0; i < key_heads_.count; ++i) append(i * of_head + first, key);
    };
    const auto append_values = [&](int32_t first) {
      for (int32_t i = 0; i < value_heads_.count; ++i) {
        const int32_t in_group = (value_heads_.first + i) % group;
        append(key_of_value_[static_cast<size_t>(i)] * of_head + first + in_group * value, value);
      }
    };
    append_keys(0);
    append_keys(key);
    append_values(2 * key);
    append_values(2 * key + group * value);
  } else {
    append(0, channels() + values());
  }
  const int32_t begin = stored_ - 2 * delta_.num_value_heads;
  if (joins_betas) {
    for (const int32_t first : {0, group}) {
      for (int32_t head = 0; head < delta_.num_key_heads; ++head) {
        append(begin + head * 2 * group + first, group);
      }
    }
  } else {
    append(begin, 2 * delta_.num_value_heads);
  }
  return columns;
}

// Returns [taps][channels] of the convolutions of q, k and v, which have tensors of their own.
// transformers saves all channels in three equal parts instead, of which the last may be smaller.
Expected<std::vector<float>> DeltaMixer::load_conv_parts(const std::string& prefix,
                                                         WeightStore& weights) const {
  const int32_t q = delta_.num_key_heads * delta_.key_dim;
  const int32_t v = delta_.num_value_heads * delta_.value_dim;
  const int32_t all = 2 * q + v;
  const int32_t taps = config_.conv_taps;
  const int32_t third = (all + 2) / 3;
  constexpr std::array<const char*, 3> kNames = {
      "delta_conv_q.weight", "delta_conv_k.weight", "delta_conv_v.weight"};
  const bool are_thirds =
      weights.rows_in(prefix + kNames[0]) == third && weights.rows_in(prefix + kNames[1]) == third;
  const std::array<int32_t, 3> counts =
      are_thirds ? std::array{third, third, all - 2 * third} : std::array{q, q, v};
  std::vector<float> joined(static_cast<size_t>(all) * static_cast<size_t>(taps));
  int32_t first = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    SLUICE_TRY(const std::vector<float> part,
               load_conv(weights, prefix + kNames[i], counts[i], taps));
    for (int32_t tap = 0; tap < taps; ++tap) {
      std::copy_n(part.begin() + ptrdiff_t{tap} * counts[i],
                  counts[i],
                  joined.begin() + ptrdiff_t{tap} * all + first);
    }
    first += counts[i];
  }
  return joined;
}

Expected<void> DeltaMixer::load_conv_weights(const std::string& prefix, WeightStore& weights) {
  const int32_t q = delta_.num_key_heads * delta_.key_dim;
  const int32_t v = delta_.num_value_heads * delta_.value_dim;
  const Portion q_rows = rows_of(key_heads_, delta_.key_dim);
  const Portion v_rows = rows_of(value_heads_, delta_.value_dim);
  SLUICE_TRY(const std::vector<float> whole,
             delta_.has_parts_apart
                 ? load_conv_parts(prefix, weights)
                 : load_conv(weights, prefix + "delta_conv.weight", 2 * q + v, config_.conv_taps));
  const std::array<std::pair<int32_t, Portion>, 3> parts = {
      {{0, q_rows}, {q, q_rows}, {2 * q, v_rows}}};
  conv_ = weights.place(columns_of_rows(whole, 2 * q + v, parts));
  return {};
}

Expected<void> DeltaMixer::load_vectors(const std::string& prefix, WeightStore& weights) {
  const int32_t heads = delta_.num_value_heads;
  // GGUF has the rate itself.
  const bool has_rate = weights.has(prefix + "delta_rate");
  const std::string rate_name = prefix + (has_rate ? "delta_rate" : "delta_log_rate.weight");
  SLUICE_TRY(std::vector<float> rate, weights.flat(rate_name, heads));
  for (float& value : rate) {
    if (!has_rate) value = static_cast<float>(-std::exp(static_cast<double>(value)));
  }
  rate_ = weights.place(std::move(rate));
  const int32_t of_head = delta_.decays_channels() ? delta_.key_dim : 1;
  SLUICE_TRY(std::vector<float> dt_bias, weights.vector(prefix + "delta_dt.bias", heads * of_head));
  dt_bias_ = weights.place(std::move(dt_bias));
  SLUICE_TRY(std::vector<float> norm,
             weights.vector(prefix + "delta_norm.weight", delta_.value_dim));
  norm_ = weights.place(std::move(norm));  // without ModelConfig::norm_offset
  return {};
}

// --- Memory ----------------------------------------------------------------------------------

KvGroupSpec DeltaMixer::group(DType) const {
  const auto& [convolved, gates] = replayed_columns();
  return replayed_state_group({conv_plane(channels(), config_.conv_taps),
                               {.num_heads = value_heads_.count,
                                .width = delta_.key_dim * delta_.value_dim,
                                .dtype = DType::kF32,
                                .per = KvPlane::Per::kEntry}},
                              config_,
                              convolved.count + gates.count);
}

DeltaMixer::Buffers DeltaMixer::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  Buffers buffers;
  buffers.rows = arena.take_floats(most_state_rows(bounds, config_) * stride());
  if (!columns_.empty()) buffers.stored = arena.take_floats(tokens * stored_);
  if (has_shared_scales(out_)) {
    buffers.gated = arena.take_floats(tokens * align_up(values(), kQuantGroup));
  }
  if (delta_.decays_channels()) {
    buffers.narrow = arena.take_floats(tokens * 2 * delta_.gate_rank);
    const std::array<const Projection*, 2> narrow = {&decays_, &gates_};
    buffers.narrow_in = LinearInput(narrow, bounds.max_tokens, arena);
  }
  const std::array<const Projection*, 1> readers = {&out_};
  buffers.out_in = LinearInput(readers, bounds.max_tokens, arena);
  buffers.parts = RankParts(config_, tokens, arena);
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

// Two narrow products stand for those of gates and decays, which two more make of them.
void DeltaMixer::project_narrow(const ForwardContext& context, const LinearInput& in) const {
  float* const row = buffers_.rows;
  const int64_t rank = delta_.gate_rank;
  float* const b = row + channels() + values();
  const std::array<ProjectionOutput, 6> outputs = {{{row, stride()},
                                                    {row + keys(), stride()},
                                                    {row + 2 * keys(), stride()},
                                                    {b, stride()},
                                                    {buffers_.narrow, 2 * rank},
                                                    {buffers_.narrow + rank, 2 * rank}}};
  project(context.exec, in_, in, outputs, kernels::Epilogue::kStore);
  const auto expand = [&](const Projection& projection, const float* from, float* to) {
    LinearInput narrow_in = buffers_.narrow_in;
    narrow_in.set_num_rows(static_cast<int32_t>(context.batch.token_ids.size()));
    narrow_in.quantize(context.exec, projection, from, 2 * rank);
    const ProjectionOutput out = {to, stride()};
    project(context.exec, projection, narrow_in, {&out, 1}, kernels::Epilogue::kStore);
  };
  expand(decays_, buffers_.narrow, b + delta_.num_value_heads);
  expand(gates_, buffers_.narrow + rank, row + channels());
}

void DeltaMixer::project_rows(const ForwardContext& context, const LinearInput& in) const {
  if (delta_.decays_channels()) return project_narrow(context, in);
  float* const first = columns_.empty() ? buffers_.rows : buffers_.stored;
  const int64_t row_stride = columns_.empty() ? stride() : stored_;
  std::array<ProjectionOutput, 6> outputs{};
  const size_t num_parts = in_.weights().size();
  int64_t column = 0;
  for (size_t i = 0; i < num_parts; ++i) {
    outputs[i] = {first + column, row_stride};
    column += in_.weight(i).n;
  }
  project(context.exec, in_, in, std::span(outputs).first(num_parts), kernels::Epilogue::kStore);
  if (columns_.empty()) return;
  kernels::select_columns(context.exec,
                          {.x = buffers_.stored,
                           .x_stride = stored_,
                           .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                           .columns = columns_.span(),
                           .absent = 0,
                           .out = buffers_.rows,
                           .out_stride = stride()});
}

void DeltaMixer::run_delta(const ForwardContext& context, const LayerCache& cache) const {
  float* const q = buffers_.rows;
  float* const b = q + channels() + values();
  const int32_t first = value_heads_.first;
  // A rank has channels of its own heads alone.
  const int32_t first_decay = delta_.decays_channels() ? 0 : first;
  const int32_t first_bias = delta_.decays_channels() ? first * delta_.key_dim : first;
  replay_rows(context, cache, q, stride(), replayed_columns());
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
                       .b = b + first,
                       .a = b + delta_.num_value_heads + first_decay,
                       .gate_stride = stride(),
                       .rate = rate_.data() + first,
                       .dt_bias = dt_bias_.data() + first_bias,
                       .decays_channels = delta_.decays_channels(),
                       .key_heads = key_heads_read_.span(),
                       .num_rows = num_state_rows(context.batch),
                       .num_key_heads = key_heads_.count,
                       .key_dim = delta_.key_dim,
                       .value_dim = delta_.value_dim,
                       .scale = 1.0F / std::sqrt(static_cast<float>(delta_.key_dim)),
                       .beta_scale = delta_.beta_scale,
                       .out = q + projected(),
                       .out_stride = stride(),
                       .state = state_table(context.batch, cache, 1)});
}

void DeltaMixer::run_output(const ForwardContext& context, const HalfOutput& out) const {
  const auto num_rows = static_cast<int32_t>(context.batch.token_ids.size());
  LinearInput out_in = buffers_.out_in;
  out_in.set_num_rows(num_rows);
  float* const output = buffers_.rows + projected();
  kernels::RowSteps steps;
  steps.add(kernels::HeadNormArgs{.x = output,
                                  .x_stride = stride(),
                                  .num_rows = num_rows,
                                  .num_heads = value_heads_.count,
                                  .n = delta_.value_dim,
                                  .weight = norm_.data(),
                                  .eps = delta_.norm_eps > 0 ? delta_.norm_eps : config_.norm_eps});
  const bool shared_scales = has_shared_scales(out_);
  out_in.fill_for(out_, [&](const kernels::Activations& rows) {
    steps.add(kernels::GateMulArgs{.gate = buffers_.rows + channels(),
                                   .up = output,
                                   .stride = stride(),
                                   .function = delta_.gate_function,
                                   .out = shared_scales ? as_floats(rows, buffers_.gated) : rows});
  });
  kernels::run_row_steps(context.exec, steps);
  if (shared_scales) {
    const int64_t width = align_up(values(), kQuantGroup);
    quantize_with_shared_scales(context, out_, out_in, buffers_.parts, buffers_.gated, width);
  }
  project_to_stream(context, out_, out_in, buffers_.parts, out.rows, out.epilogue, out.then);
}

void DeltaMixer::forward(const ForwardContext& context,
                         const LayerCache& cache,
                         const kernels::RopeTable*,
                         const LinearInput& in,
                         const HalfOutput& out) const {
  project_rows(context, in);
  run_delta(context, cache);
  run_output(context, out);
}

}  // namespace sluice
