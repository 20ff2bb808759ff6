// SPDX-License-Identifier: Apache-2.0
#include "engine/models/experts.h"

#include <algorithm>
#include <array>

#include "kernels/elementwise.h"
#include "kernels/moe.h"
#include "kernels/partial_sums.h"

namespace sluice {

// --- Loading ---------------------------------------------------------------------------------

Expected<std::unique_ptr<Experts>> Experts::load(const ModelConfig& config,
                                                 int32_t layer,
                                                 int32_t activation_bits,
                                                 WeightStore& weights) {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  std::unique_ptr<Experts> half(new Experts(config, layer));
  SLUICE_TRY_VOID(half->load_router(prefix, activation_bits, weights));
  SLUICE_TRY_VOID(half->load_experts(prefix, activation_bits, weights));
  SLUICE_TRY_VOID(half->load_latents(prefix, activation_bits, weights));
  if (half->layer_.shared_hidden > 0 && half->layer_.ffn == FfnKind::kExperts) {
    SLUICE_TRY(half->shared_, DenseFfn::load_shared(config, layer, activation_bits, weights));
    if (config.moe.gated_shared) {
      const std::array<Projection::Part, 1> gate = {
          {{.stem = prefix + "ffn_gate_inp_shexp", .n = 1, .floats = true}}};
      SLUICE_TRY(half->shared_gate_,
                 Projection::load(weights, gate, config.hidden, activation_bits));
    }
  }
  return half;
}

// Routers stay in fp32 from the file to the choice: a rounding would choose other experts.
Expected<void> Experts::load_router(const std::string& prefix, int32_t bits, WeightStore& weights) {
  const int32_t count = config_.moe.num_experts;
  const std::array<Projection::Part, 1> router = {
      {{.stem = prefix + "ffn_gate_inp", .n = count, .bias = config_.moe.bias, .floats = true}}};
  SLUICE_TRY(router_, Projection::load(weights, router, config_.hidden, bits));
  if (config_.moe.choice_bias) {
    SLUICE_TRY(std::vector<float> bias, weights.vector(prefix + "exp_probs_b.bias", count));
    choice_bias_ = weights.place(std::move(bias));
  }
  if (config_.moe.expert_scales) {
    SLUICE_TRY(std::vector<float> scales, weights.vector(prefix + "ffn_down_exps.scale", count));
    expert_scales_ = weights.place(std::move(scales));
  }
  return {};
}

Expected<void> Experts::load_experts(const std::string& prefix,
                                     int32_t bits,
                                     WeightStore& weights) {
  const int64_t count = config_.moe.num_experts;
  const int64_t hidden = expert_width();
  const Portion& columns = layer_.share.ffn;
  const int64_t width = whole_of(columns, layer_.ffn_hidden);
  const bool bias = config_.moe.bias;
  const bool is_pair = weights.has(prefix + "ffn_gate_up_exps.weight");
  const bool stacked = is_pair || weights.has(prefix + "ffn_up_exps.weight");
  for (int64_t e = 0; e < count; ++e) {
    const std::string suffix = stacked ? "" : "." + std::to_string(e);
    const auto part = [&](const char* stem, int64_t n, const Portion& rows) {
      return Projection::Part{
          prefix + stem + suffix, n, bias, stacked ? RowSlice{e * n, count * n} : RowSlice{}, rows};
    };
    // Gate rows of an expert, then its up rows.
    const auto half_of_pair = [&](int64_t which) {
      return Projection::Part{prefix + "ffn_gate_up_exps",
                              width,
                              false,
                              {(2 * e + which) * width, 2 * count * width},
                              columns};
    };
    const std::array<Projection::Part, 2> both = {
        is_pair ? half_of_pair(0) : part("ffn_gate_exps", width, columns),
        is_pair ? half_of_pair(1) : part("ffn_up_exps", width, columns)};
    const auto gate_up = std::span(both).subspan(is_gated() ? 0 : 1);
    const std::array<Projection::Part, 1> down = {part("ffn_down_exps", hidden, {})};
    Pair pair;
    SLUICE_TRY(pair.gate_up, Projection::load(weights, gate_up, hidden, bits));
    SLUICE_TRY(pair.down, Projection::load(weights, down, width, bits, config_.share.segments));
    experts_.push_back(std::move(pair));
    const auto place_of = [&](const std::string& stem) {
      return weights.place_of(prefix + stem + suffix + ".weight");
    };
    const bool on_device = weights.device() == DeviceType::kCuda;
    if (on_device || !experts_.front().down.segments().are_all()) {
      SLUICE_TRY_VOID(check_like_first(experts_, place_of, on_device));
    }
    // All experts' input rows are quantized with the scales of the first.
    const char* const first_stem = is_pair      ? "ffn_gate_up_exps"
                                   : is_gated() ? "ffn_gate_exps"
                                                : "ffn_up_exps";
    SLUICE_TRY_VOID(experts_.front().gate_up.share_input_scales(experts_.back().gate_up,
                                                                place_of(first_stem)));
    SLUICE_TRY_VOID(
        experts_.front().down.share_input_scales(experts_.back().down, place_of("ffn_down_exps")));
  }
  grouped_gate_up_ = group_experts(experts_, &Pair::gate_up, layer_.ffn_hidden);
  grouped_down_ = group_experts(experts_, &Pair::down, hidden);
  for (const Pair& pair : experts_) {
    joined_down_.push_back({&pair.down.weight(0), pair.down.bias(0), 0});
  }
  return {};
}

Expected<void> Experts::load_latents(const std::string& prefix,
                                     int32_t bits,
                                     WeightStore& weights) {
  if (config_.moe.latent == 0) return {};
  const auto load = [&](const char* name, int64_t n, int64_t k) {
    const std::string stem = prefix + name;
    const std::array<Projection::Part, 1> part = {
        {{.stem = stem, .n = n, .bias = weights.has(stem + ".bias")}}};
    return Projection::load(weights, part, k, bits);
  };
  SLUICE_TRY(latent_down_, load("ffn_latent_down", config_.moe.latent, config_.hidden));
  SLUICE_TRY(latent_up_, load("ffn_latent_up", config_.hidden, config_.moe.latent));
  return {};
}

// On a device a layer's experts run as one product on one input with one weight format, and ranks
// join sums of one format of inputs.
Expected<void> Experts::check_like_first(
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
  const size_t num_parts = first.gate_up.weights().size();
  if (num_parts == 2) SLUICE_TRY_VOID(check("ffn_gate_exps", first.gate_up, last.gate_up, 0));
  SLUICE_TRY_VOID(check("ffn_up_exps", first.gate_up, last.gate_up, num_parts - 1));
  return check("ffn_down_exps", first.down, last.down, 0);
}

Experts::GroupedByFormat Experts::group_experts(const std::vector<Pair>& experts,
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

// --- A step ----------------------------------------------------------------------------------

int32_t Experts::max_rows(int32_t tokens) const {
  return kernels::max_expert_rows(tokens * config_.moe.top_k, config_.moe.num_experts);
}

Experts::Buffers Experts::layout(const StepBounds& bounds, Arena& arena) const {
  Buffers buffers;
  const MoeConfig& moe = config_.moe;
  const int32_t tokens = bounds.max_tokens;
  const int32_t rows = max_rows(tokens);
  std::vector<const Projection*> down;
  std::vector<const Projection*> gate_up;
  for (const Pair& pair : experts_) {
    down.push_back(&pair.down);
    gate_up.push_back(&pair.gate_up);
  }
  // The shared experts' scratch is first: bind() gives it to them.
  if (shared_ != nullptr) {
    buffers.shared_bytes = shared_->scratch_bytes(bounds);
    arena.take_bytes(buffers.shared_bytes);
  }
  buffers.gate_up = arena.take_floats(rows * gate_up_stride());
  buffers.down_in = LinearInput(down, rows, arena);
  buffers.parts = RankParts(config_, rows, arena);
  if (has_shared_scales(experts_.front().down)) {
    buffers.gated = arena.take_floats(int64_t{rows} * align_up(layer_.ffn_hidden, kQuantGroup));
  }
  const int64_t pairs = int64_t{tokens} * moe.top_k;
  const auto take_ints = [&arena](int64_t count) {
    return reinterpret_cast<int32_t*>(
        arena.take_bytes(count * static_cast<int64_t>(sizeof(int32_t))));
  };
  buffers.router = arena.take_floats(int64_t{tokens} * moe.num_experts);
  buffers.weights = arena.take_floats(pairs);
  buffers.ids = take_ints(pairs);
  buffers.rows = take_ints(pairs);
  buffers.experts = {.num_experts = moe.num_experts,
                     .first = take_ints(moe.num_experts),
                     .count = take_ints(moe.num_experts),
                     .chosen = take_ints(moe.num_experts),
                     .num_chosen = take_ints(1)};
  buffers.output = arena.take_floats(int64_t{rows} * expert_width());
  if (moe.latent > 0) {
    buffers.latent = arena.take_floats(int64_t{tokens} * align_up(moe.latent, kQuantGroup));
    buffers.latent_sum = arena.take_floats(int64_t{tokens} * moe.latent);
    const std::array<const Projection*, 2> latents = {&latent_down_, &latent_up_};
    buffers.latent_down_in = LinearInput(std::span(latents).first(1), tokens, arena);
    buffers.latent_up_in = LinearInput(std::span(latents).last(1), tokens, arena);
  }
  if (!shared_gate_.weights().empty()) {
    buffers.shared = arena.take_floats(int64_t{tokens} * config_.hidden);
    buffers.shared_logits = arena.take_floats(tokens);
    const std::array<const Projection*, 1> gate = {&shared_gate_};
    buffers.shared_gate_in = LinearInput(gate, tokens, arena);
  }
  if (moe.scales_inputs) {
    buffers.scaled = arena.take_floats(int64_t{tokens} * align_up(config_.hidden, kQuantGroup));
  }
  if (moe.scales_inputs || !shared_gate_.weights().empty()) {
    buffers.one = {.weights = arena.take_floats(tokens),
                   .ids = take_ints(tokens),
                   .rows = take_ints(tokens),
                   .places = {.num_experts = 1,
                              .first = take_ints(1),
                              .count = take_ints(1),
                              .chosen = take_ints(1),
                              .num_chosen = take_ints(1)}};
  }
  const std::array<const Projection*, 1> router = {&router_};
  buffers.router_in = LinearInput(router, tokens, arena);
  buffers.expert_in = LinearInput(gate_up, rows, arena);
  return buffers;
}

int64_t Experts::scratch_bytes(const StepBounds& bounds) const {
  Arena arena;
  layout(bounds, arena);
  return arena.used();
}

void Experts::bind(const StepBounds& bounds, std::span<std::byte> scratch) {
  Arena arena(scratch);
  buffers_ = layout(bounds, arena);
  if (shared_ != nullptr) {
    shared_->bind(bounds, scratch.first(static_cast<size_t>(buffers_.shared_bytes)));
  }
}

std::span<const int32_t> Experts::route(const ForwardContext& context, const FfnInput& in) const {
  const kernels::ExecContext& exec = context.exec;
  const MoeConfig& moe = config_.moe;
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  LinearInput router_in = buffers_.router_in;
  router_in.set_num_rows(num_tokens);
  router_in.quantize(exec, router_, in.routed == nullptr ? in.plain : in.routed, in.stride);
  const ProjectionOutput router_out = {buffers_.router, moe.num_experts};
  project(exec, router_, router_in, {&router_out, 1}, kernels::Epilogue::kStore);
  kernels::moe_route(exec,
                     {.logits = buffers_.router,
                      .num_rows = num_tokens,
                      .num_experts = moe.num_experts,
                      .top_k = moe.top_k,
                      .router = moe.router,
                      .choice_bias = choice_bias_.data(),
                      .expert_scales = expert_scales_.data(),
                      .ids = buffers_.ids,
                      .weights = buffers_.weights});
  const int32_t num_pairs = num_tokens * moe.top_k;
  kernels::place_rows(exec,
                      {.ids = buffers_.ids,
                       .num_pairs = num_pairs,
                       .rows = buffers_.rows,
                       .experts = buffers_.experts});
  return {buffers_.rows, static_cast<size_t>(num_pairs)};
}

void Experts::fill_down_in(const ForwardContext& context,
                           const LinearInput& down_in,
                           std::span<const int32_t> rows) const {
  const Projection& down = experts_.front().down;
  const int64_t width = layer_.ffn_hidden;
  down_in.fill_for(down, [&](const kernels::Activations& in) {
    kernels::gate_mul(context.exec,
                      {.gate = buffers_.gate_up,
                       .up = is_gated() ? buffers_.gate_up + width : nullptr,
                       .stride = gate_up_stride(),
                       .function = config_.gate_function,
                       .limit = layer_.expert_limit,
                       .out = has_shared_scales(down) ? as_floats(in, buffers_.gated) : in,
                       .rows = rows});
  });
  if (!has_shared_scales(down)) return;
  quantize_with_shared_scales(
      context, down, down_in, buffers_.parts, buffers_.gated, align_up(width, kQuantGroup));
}

void Experts::choose_one(const ForwardContext& context,
                         const float* logits,
                         kernels::RouterScore score) const {
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  kernels::moe_route(context.exec,
                     {.logits = logits,
                      .num_rows = num_tokens,
                      .num_experts = 1,
                      .top_k = 1,
                      .router = {.score = score, .normalize = false},
                      .ids = buffers_.one.ids,
                      .weights = buffers_.one.weights});
  kernels::place_rows(context.exec,
                      {.ids = buffers_.one.ids,
                       .num_pairs = num_tokens,
                       .rows = buffers_.one.rows,
                       .experts = buffers_.one.places});
}

// A softmax over one logit is 1.
void Experts::scale_inputs(const ForwardContext& context, const FfnInput& in) const {
  choose_one(context, buffers_.router, kernels::RouterScore::kSoftmax);
  kernels::moe_combine(context.exec,
                       {.y = in.plain,
                        .y_stride = in.stride,
                        .rows = buffers_.one.rows,
                        .weights = buffers_.weights,
                        .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                        .top_k = 1,
                        .n = config_.hidden,
                        .adds = false,
                        .x = buffers_.scaled,
                        .x_stride = in.stride});
}

void Experts::narrow_inputs(const ForwardContext& context, const FfnInput& in) const {
  LinearInput rows = buffers_.latent_down_in;
  rows.set_num_rows(static_cast<int32_t>(context.batch.token_ids.size()));
  rows.quantize(context.exec, latent_down_, in.plain, in.stride);
  const ProjectionOutput latent = {buffers_.latent, align_up(config_.moe.latent, kQuantGroup)};
  project(context.exec, latent_down_, rows, {&latent, 1}, kernels::Epilogue::kStore);
}

void Experts::add_widened(const ForwardContext& context, const HalfOutput& out) const {
  LinearInput rows = buffers_.latent_up_in;
  rows.set_num_rows(static_cast<int32_t>(context.batch.token_ids.size()));
  rows.quantize(context.exec, latent_up_, buffers_.latent_sum, config_.moe.latent);
  const kernels::Epilogue epilogue = shared_ == nullptr ? out.epilogue : kernels::Epilogue::kAdd;
  project(context.exec, latent_up_, rows, {&out.rows, 1}, epilogue, &out.then);
}

// Adds or stores the shared experts' output. A gate is a router of one expert, which weighs it by
// the sigmoid of its logit.
void Experts::add_shared(const ForwardContext& context,
                         const FfnInput& in,
                         const HalfOutput& out) const {
  if (shared_gate_.weights().empty()) {
    return shared_->forward(context, in, {out.rows, out.epilogue, {}});
  }
  const kernels::ExecContext& exec = context.exec;
  const int64_t hidden = config_.hidden;
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  shared_->forward(context, in, {{buffers_.shared, hidden}, kernels::Epilogue::kStore, {}});
  LinearInput gate_in = buffers_.shared_gate_in;
  gate_in.set_num_rows(num_tokens);
  gate_in.quantize(exec, shared_gate_, in.plain, in.stride);
  const ProjectionOutput logits = {buffers_.shared_logits, 1};
  project(exec, shared_gate_, gate_in, {&logits, 1}, kernels::Epilogue::kStore);
  choose_one(context, buffers_.shared_logits, kernels::RouterScore::kSigmoid);
  kernels::moe_combine(exec,
                       {.y = buffers_.shared,
                        .y_stride = hidden,
                        .rows = buffers_.one.rows,
                        .weights = buffers_.one.weights,
                        .num_rows = num_tokens,
                        .top_k = 1,
                        .n = config_.hidden,
                        .adds = out.epilogue == kernels::Epilogue::kAdd,
                        .x = out.rows.data,
                        .x_stride = out.rows.stride});
}

void Experts::forward(const ForwardContext& context,
                      const FfnInput& in,
                      const HalfOutput& out) const {
  const kernels::ExecContext& exec = context.exec;
  const MoeConfig& moe = config_.moe;
  const int64_t width = expert_width();
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  if (shared_ != nullptr) add_shared(context, in, out);
  const std::span<const int32_t> rows = route(context, in);
  const int32_t num_rows = max_rows(num_tokens);
  const bool scaled = moe.scales_inputs;
  if (scaled) scale_inputs(context, in);
  const bool is_narrow = moe.latent > 0;
  if (is_narrow) narrow_inputs(context, in);
  const float* const x = is_narrow ? buffers_.latent : scaled ? buffers_.scaled : in.plain;
  LinearInput expert_in = buffers_.expert_in;
  expert_in.set_num_rows(num_rows);
  expert_in.fill_for(experts_.front().gate_up, [&](const kernels::Activations& each) {
    kernels::quantize_activations(exec,
                                  {.x = x,
                                   .x_stride = is_narrow ? align_up(width, kQuantGroup) : in.stride,
                                   .out = each,
                                   .rows = rows,
                                   .repeat = moe.top_k});
  });
  run_experts(exec, grouped_gate_up_, expert_in, {buffers_.gate_up, gate_up_stride()});
  const Projection& down = experts_.front().down;
  LinearInput down_in = buffers_.down_in;
  down_in.set_num_rows(num_rows);
  fill_down_in(context, down_in, rows);
  const bool whole = down.segments().are_all();
  run_experts(exec,
              grouped_down_,
              down_in,
              {whole ? buffers_.output : buffers_.parts.sums, width},
              down.segments());
  if (!whole) join_experts(context, down_in);
  const bool stores =
      is_narrow || (shared_ == nullptr && out.epilogue == kernels::Epilogue::kStore);
  kernels::moe_combine(exec,
                       {.y = buffers_.output,
                        .y_stride = width,
                        .rows = buffers_.rows,
                        .weights = scaled ? buffers_.one.weights : buffers_.weights,
                        .num_rows = num_tokens,
                        .top_k = moe.top_k,
                        .n = expert_width(),
                        .adds = !stores,
                        .x = is_narrow ? buffers_.latent_sum : out.rows.data,
                        .x_stride = is_narrow ? width : out.rows.stride});
  if (is_narrow) return add_widened(context, out);
  kernels::run_row_steps(exec, out.then);
}

void Experts::run_experts(const kernels::ExecContext& exec,
                          const GroupedByFormat& grouped,
                          const LinearInput& in,
                          ProjectionOutput out,
                          kernels::Segments segments) const {
  for (size_t i = 0; i < grouped.size(); ++i) {
    if (grouped[i].matrices.empty()) continue;
    kernels::linear_experts(exec,
                            {.x = in.in(static_cast<kernels::ActivationFormat>(i)),
                             .matrices = grouped[i].matrices,
                             .matrices_per_expert = grouped[i].per_expert,
                             .rows = buffers_.experts,
                             .out = out.data,
                             .out_stride = out.stride,
                             .segments = segments});
  }
}

// Sums the chosen experts' outputs over all ranks, for all possible rows, as the host of a device
// does not know which experts were chosen.
void Experts::join_experts(const ForwardContext& context, const LinearInput& in) const {
  const int64_t width = expert_width();
  const kernels::Activations& x = in.in(experts_.front().down.format(0));
  const GatheredSums sums = gather_sums(context, buffers_.parts.sums, x.num_rows, width);
  if (sums.count == 0) return;
  kernels::join_expert_parts(context.exec,
                             {.parts = sums.all(),
                              .x = x,
                              .matrices = joined_down_,
                              .rows = buffers_.experts,
                              .out = buffers_.output,
                              .out_stride = width});
}

}  // namespace sluice
