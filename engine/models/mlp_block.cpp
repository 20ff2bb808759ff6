// SPDX-License-Identifier: Apache-2.0
#include "engine/models/mlp_block.h"

#include <algorithm>
#include <array>

#include "kernels/elementwise.h"
#include "kernels/moe.h"
#include "kernels/partial_sums.h"

namespace sluice {
namespace {

using Parts2 = std::array<Projection::Part, 2>;
using Parts1 = std::array<Projection::Part, 1>;

int32_t expert_width(const ModelConfig& config) {
  return config.moe.num_experts > 0 ? config.moe.ffn_hidden : config.ffn_hidden;
}

// Returns the same rows as plain floats.
kernels::Activations as_floats(kernels::Activations rows, float* data) {
  rows.format = kernels::ActivationFormat::kFloat;
  rows.data = data;
  rows.static_scale = 0;
  return rows;
}

}  // namespace

Expected<MlpBlock> MlpBlock::load(const ModelConfig& config,
                                  int32_t layer,
                                  int32_t activation_bits,
                                  WeightStore& weights) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const int64_t hidden = config.hidden;
  const RankShare& share = config.share;
  const int64_t ffn = whole_of(share.ffn, expert_width(config));
  MlpBlock block;
  const auto add = [&](const Parts2& gate_up, const Parts1& down) -> Expected<void> {
    Pair pair;
    SLUICE_TRY(pair.gate_up, Projection::load(weights, gate_up, hidden, activation_bits));
    SLUICE_TRY(pair.down, Projection::load(weights, down, ffn, activation_bits, share.segments));
    block.experts_.push_back(std::move(pair));
    return {};
  };
  if (config.moe.num_experts == 0) {
    const bool bias = config.mlp_bias;
    const std::string up = prefix + "ffn_up";
    const Parts2 fused = {
        {{up, ffn, false, {0, 2 * ffn}, share.ffn}, {up, ffn, false, {ffn, 2 * ffn}, share.ffn}}};
    const Parts2 apart = {
        {{prefix + "ffn_gate", ffn, bias, {}, share.ffn}, {up, ffn, bias, {}, share.ffn}}};
    SLUICE_TRY_VOID(
        add(config.fused_gate_up ? fused : apart, {{{prefix + "ffn_down", hidden, bias, {}, {}}}}));
    return block;
  }
  const int64_t count = config.moe.num_experts;
  const bool bias = config.moe.bias;
  const Parts1 router = {
      {{.stem = prefix + "ffn_gate_inp", .n = count, .bias = bias, .floats = true}}};
  SLUICE_TRY(block.router_, Projection::load(weights, router, hidden, activation_bits));
  const bool stacked = weights.has(prefix + "ffn_gate_exps.weight");
  for (int64_t e = 0; e < count; ++e) {
    const std::string suffix = stacked ? "" : "." + std::to_string(e);
    const auto part = [&](const char* stem, int64_t n, const Portion& rows) {
      return Projection::Part{
          prefix + stem + suffix, n, bias, stacked ? RowSlice{e * n, count * n} : RowSlice{}, rows};
    };
    SLUICE_TRY_VOID(
        add({{part("ffn_gate_exps", ffn, share.ffn), part("ffn_up_exps", ffn, share.ffn)}},
            {{part("ffn_down_exps", hidden, {})}}));
    const auto place_of = [&](const std::string& stem) {
      return weights.place_of(prefix + stem + suffix + ".weight");
    };
    const bool on_device = weights.device() == DeviceType::kCuda;
    if (on_device || !block.experts_.front().down.segments().are_all()) {
      SLUICE_TRY_VOID(check_like_first(block.experts_, place_of, on_device));
    }
    // All experts' input rows are quantized with the scales of the first.
    SLUICE_TRY_VOID(block.experts_.front().gate_up.share_input_scales(
        block.experts_.back().gate_up, place_of("ffn_gate_exps")));
    SLUICE_TRY_VOID(block.experts_.front().down.share_input_scales(
        block.experts_.back().down, place_of("ffn_down_exps")));
  }
  block.grouped_gate_up_ = group_experts(block.experts_, &Pair::gate_up, expert_width(config));
  block.grouped_down_ = group_experts(block.experts_, &Pair::down, hidden);
  for (const Pair& pair : block.experts_) {
    block.joined_down_.push_back({&pair.down.weight(0), pair.down.bias(0), 0});
  }
  return block;
}

// On a device a layer's experts run as one product on one input with one weight format, and ranks
// join sums of one format of inputs.
Expected<void> MlpBlock::check_like_first(
    const std::vector<Pair>& experts,
    const std::function<std::string(const std::string&)>& place_of,
    bool on_device) {
  const Pair& first = experts.front();
  const Pair& last = experts.back();
  const auto check = [&](const char* stem,
                         const Projection& one,
                         const Projection& other,
                         size_t i) -> Expected<void> {
    const bool is_same = one.weight(i).format == other.weight(i).format;
    if (one.format(i) == other.format(i) && (is_same || !on_device)) return {};
    const auto name = [i](const Projection& matrices) {
      return std::string(format_info(matrices.weight(i).format).name);
    };
    return make_error(ErrorCode::kUnsupported,
                      place_of(stem) + ": found type " + name(other) + ", expected " + name(one) +
                          ", that of the layer's first expert");
  };
  SLUICE_TRY_VOID(check("ffn_gate_exps", first.gate_up, last.gate_up, 0));
  SLUICE_TRY_VOID(check("ffn_up_exps", first.gate_up, last.gate_up, 1));
  return check("ffn_down_exps", first.down, last.down, 0);
}

MlpBlock::GroupedByFormat MlpBlock::group_experts(const std::vector<Pair>& experts,
                                                  Projection Pair::*projection,
                                                  int64_t part_width) {
  GroupedByFormat grouped;
  const size_t num_parts = (experts.front().*projection).weights().size();
  for (size_t f = 0; f < grouped.size(); ++f) {
    const auto format = static_cast<kernels::ActivationFormat>(f);
    std::vector<size_t> parts;  // those of which any expert's matrix takes this format
    for (size_t i = 0; i < num_parts; ++i) {
      const auto takes_it = [&](const Pair& pair) {
        return (pair.*projection).format(i) == format;
      };
      if (std::ranges::any_of(experts, takes_it)) parts.push_back(i);
    }
    grouped[f].per_expert = static_cast<int32_t>(parts.size());
    for (const Pair& pair : experts) {
      const Projection& matrices = pair.*projection;
      for (const size_t i : parts) {
        const bool is_here = matrices.format(i) == format;
        grouped[f].matrices.push_back(
            {.weight = is_here ? &matrices.weight(i) : nullptr,
             .bias = is_here && matrices.segments().are_all() ? matrices.bias(i) : nullptr,
             .column = static_cast<int64_t>(i) * part_width});
      }
    }
  }
  return grouped;
}

int32_t MlpBlock::max_rows(const ModelConfig& config, int32_t tokens) {
  const MoeConfig& moe = config.moe;
  if (moe.num_experts == 0) return tokens;
  return kernels::max_expert_rows(tokens * moe.top_k, moe.num_experts);
}

MlpBuffers MlpBlock::layout(const ModelConfig& config,
                            std::span<const MlpBlock> blocks,
                            const StepBounds& bounds,
                            Arena& arena) {
  MlpBuffers buffers;
  const bool dense = config.moe.num_experts == 0;
  const int32_t tokens = bounds.max_tokens;
  buffers.max_rows = max_rows(config, tokens);
  std::vector<const Projection*> down;
  std::vector<const Projection*> routers;
  std::vector<const Projection*> gate_up;
  for (const MlpBlock& block : blocks) {
    for (const Pair& pair : block.experts_) {
      down.push_back(&pair.down);
      gate_up.push_back(&pair.gate_up);
    }
    routers.push_back(&block.router_);
  }
  buffers.gate_up = arena.take_floats(int64_t{buffers.max_rows} * 2 * expert_width(config));
  buffers.down_in = LinearInput(down, buffers.max_rows, arena);
  buffers.parts = RankParts(config, buffers.max_rows, arena);
  if (std::ranges::any_of(down, [](const Projection* each) { return has_shared_scales(*each); })) {
    buffers.gated =
        arena.take_floats(int64_t{buffers.max_rows} * align_up(expert_width(config), kQuantGroup));
  }
  if (dense) return buffers;
  const int64_t pairs = int64_t{tokens} * config.moe.top_k;
  const auto take_ints = [&arena](int64_t count) {
    return reinterpret_cast<int32_t*>(
        arena.take_bytes(count * static_cast<int64_t>(sizeof(int32_t))));
  };
  buffers.router = arena.take_floats(int64_t{tokens} * config.moe.num_experts);
  buffers.weights = arena.take_floats(pairs);
  buffers.ids = take_ints(pairs);
  buffers.rows = take_ints(pairs);
  buffers.experts = {.num_experts = config.moe.num_experts,
                     .first = take_ints(config.moe.num_experts),
                     .count = take_ints(config.moe.num_experts),
                     .chosen = take_ints(config.moe.num_experts),
                     .num_chosen = take_ints(1)};
  buffers.output = arena.take_floats(int64_t{buffers.max_rows} * config.hidden);
  buffers.router_in = LinearInput(routers, tokens, arena);
  buffers.expert_in = LinearInput(gate_up, buffers.max_rows, arena);
  return buffers;
}

void MlpBlock::forward(const ForwardContext& context,
                       const ModelConfig& config,
                       const LinearInput& in,
                       const MlpBuffers& buffers,
                       ProjectionOutput out,
                       kernels::Epilogue epilogue,
                       const kernels::RowSteps& then) const {
  const int64_t ffn = config.ffn_hidden;
  const Pair& pair = experts_.front();
  float* gate = buffers.gate_up;
  float* up = gate + ffn;
  const std::array<ProjectionOutput, 2> gate_up_out = {{{gate, 2 * ffn}, {up, 2 * ffn}}};
  LinearInput down_in = buffers.down_in;
  down_in.set_num_rows(static_cast<int32_t>(context.batch.token_ids.size()));
  const bool shared_scales = has_shared_scales(pair.down);
  kernels::RowSteps after_gate_up;
  down_in.fill_for(pair.down, [&](const kernels::Activations& rows) {
    after_gate_up.add(
        kernels::GateMulArgs{.gate = gate,
                             .up = up,
                             .stride = 2 * ffn,
                             .function = config.gate_function,
                             .out = shared_scales ? as_floats(rows, buffers.gated) : rows});
  });
  project(context.exec, pair.gate_up, in, gate_up_out, kernels::Epilogue::kStore, &after_gate_up);
  if (shared_scales) {
    quantize_with_shared_scales(
        context, pair.down, down_in, buffers.parts, buffers.gated, align_up(ffn, kQuantGroup));
  }
  project_to_stream(context, pair.down, down_in, buffers.parts, out, epilogue, then);
}

std::span<const int32_t> MlpBlock::route(const ForwardContext& context,
                                         const MoeConfig& moe,
                                         const float* x,
                                         int64_t x_stride,
                                         const MlpBuffers& buffers) const {
  const kernels::ExecContext& exec = context.exec;
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  LinearInput router_in = buffers.router_in;
  router_in.set_num_rows(num_tokens);
  router_in.quantize(exec, router_, x, x_stride);
  const ProjectionOutput router_out = {buffers.router, moe.num_experts};
  project(exec, router_, router_in, {&router_out, 1}, kernels::Epilogue::kStore);
  kernels::moe_route(exec,
                     {.logits = buffers.router,
                      .num_rows = num_tokens,
                      .num_experts = moe.num_experts,
                      .top_k = moe.top_k,
                      .normalize = moe.normalize,
                      .ids = buffers.ids,
                      .weights = buffers.weights});
  const int32_t num_pairs = num_tokens * moe.top_k;
  kernels::place_rows(exec,
                      {.ids = buffers.ids,
                       .num_pairs = num_pairs,
                       .rows = buffers.rows,
                       .experts = buffers.experts});
  return {buffers.rows, static_cast<size_t>(num_pairs)};
}

void MlpBlock::forward_experts(const ForwardContext& context,
                               const ModelConfig& config,
                               const float* x,
                               int64_t x_stride,
                               const MlpBuffers& buffers,
                               float scale,
                               ProjectionOutput out) const {
  const kernels::ExecContext& exec = context.exec;
  const MoeConfig& moe = config.moe;
  const int64_t hidden = config.hidden;
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  const std::span<const int32_t> rows = route(context, moe, x, x_stride, buffers);
  const int32_t num_rows = max_rows(config, num_tokens);
  LinearInput expert_in = buffers.expert_in;
  expert_in.set_num_rows(num_rows);
  expert_in.fill_for(experts_.front().gate_up, [&](const kernels::Activations& in) {
    kernels::quantize_activations(
        exec, {.x = x, .x_stride = x_stride, .out = in, .rows = rows, .repeat = moe.top_k});
  });
  const int64_t ffn = moe.ffn_hidden;
  run_experts(exec, grouped_gate_up_, expert_in, buffers, {buffers.gate_up, 2 * ffn});
  const Projection& down = experts_.front().down;
  LinearInput down_in = buffers.down_in;
  down_in.set_num_rows(num_rows);
  down_in.fill_for(down, [&](const kernels::Activations& in) {
    kernels::gate_mul(exec,
                      {.gate = buffers.gate_up,
                       .up = buffers.gate_up + ffn,
                       .stride = 2 * ffn,
                       .function = config.gate_function,
                       .out = has_shared_scales(down) ? as_floats(in, buffers.gated) : in,
                       .rows = rows});
  });
  if (has_shared_scales(down)) {
    quantize_with_shared_scales(
        context, down, down_in, buffers.parts, buffers.gated, align_up(ffn, kQuantGroup));
  }
  const bool whole = down.segments().are_all();
  run_experts(exec,
              grouped_down_,
              down_in,
              buffers,
              {whole ? buffers.output : buffers.parts.sums, hidden},
              down.segments());
  if (!whole) join_experts(context, down_in, buffers, hidden);
  kernels::moe_combine(exec,
                       {.y = buffers.output,
                        .y_stride = hidden,
                        .rows = buffers.rows,
                        .weights = buffers.weights,
                        .num_rows = num_tokens,
                        .top_k = moe.top_k,
                        .n = config.hidden,
                        .scale = scale,
                        .x = out.data,
                        .x_stride = out.stride});
}

void MlpBlock::run_experts(const kernels::ExecContext& exec,
                           const GroupedByFormat& grouped,
                           const LinearInput& in,
                           const MlpBuffers& buffers,
                           ProjectionOutput out,
                           kernels::Segments segments) {
  for (size_t i = 0; i < grouped.size(); ++i) {
    if (grouped[i].matrices.empty()) continue;
    kernels::linear_experts(exec,
                            {.x = in.in(static_cast<kernels::ActivationFormat>(i)),
                             .matrices = grouped[i].matrices,
                             .matrices_per_expert = grouped[i].per_expert,
                             .rows = buffers.experts,
                             .out = out.data,
                             .out_stride = out.stride,
                             .segments = segments});
  }
}

// Sums the chosen experts' outputs over all ranks, for all possible rows, as the host of a device
// does not know which experts were chosen.
void MlpBlock::join_experts(const ForwardContext& context,
                            const LinearInput& in,
                            const MlpBuffers& buffers,
                            int64_t hidden) const {
  const kernels::Activations& x = in.in(experts_.front().down.format(0));
  const GatheredSums sums = gather_sums(context, buffers.parts, x.num_rows, hidden);
  if (sums.count == 0) return;
  kernels::join_expert_parts(context.exec,
                             {.parts = sums.all(),
                              .x = x,
                              .matrices = joined_down_,
                              .rows = buffers.experts,
                              .out = buffers.output,
                              .out_stride = hidden});
}

}  // namespace sluice
