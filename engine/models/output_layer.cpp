// SPDX-License-Identifier: Apache-2.0
#include "engine/models/output_layer.h"

#include <algorithm>
#include <array>

#include "engine/models/rank_share.h"
#include "engine/parallel/parallel.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {
namespace {

// Returns ascending ids as runs of neighbours.
std::vector<Portion> runs_of(std::span<const TokenId> ids) {
  std::vector<Portion> runs;
  for (const TokenId id : ids) {
    if (runs.empty() || runs.back().first + runs.back().count != id) runs.push_back({.first = id});
    ++runs.back().count;
  }
  return runs;
}

int32_t longest(std::span<const Portion> runs) {
  int32_t most = 0;
  for (const Portion& run : runs) most = std::max(most, run.count);
  return most;
}

}  // namespace

Expected<StreamNorm> load_stream_norm(const ModelConfig& config,
                                      const std::string& stem,
                                      WeightStore& weights) {
  SLUICE_TRY(std::vector<float> values, weights.vector(stem + ".weight", config.hidden));
  for (float& value : values) value += config.norm_offset;
  StreamNorm norm;
  norm.weight = weights.place(std::move(values));
  if (!config.norm_bias) return norm;
  SLUICE_TRY(std::vector<float> bias, weights.vector(stem + ".bias", config.hidden));
  norm.bias = weights.place(std::move(bias));
  return norm;
}

kernels::HeadNormArgs norm_in_place(const ModelConfig& config,
                                    const StreamNorm& norm,
                                    ProjectionOutput x,
                                    int64_t num_rows) {
  return {.x = x.data,
          .x_stride = x.stride,
          .num_rows = static_cast<int32_t>(num_rows),
          .num_heads = 1,
          .n = config.hidden,
          .weight = norm.weight.data(),
          .eps = config.norm_eps,
          .subtracts_mean = config.norms_subtract_mean,
          .bias = norm.bias.data()};
}

kernels::RmsNormArgs norm_to(const ModelConfig& config,
                             const StreamNorm& norm,
                             const float* x,
                             const kernels::Activations& out) {
  return {.x = x,
          .x_stride = config.hidden,
          .weight = norm.weight.data(),
          .eps = config.norm_eps,
          .out = out,
          .subtracts_mean = config.norms_subtract_mean,
          .bias = norm.bias.data()};
}

void add_normed_rows(const ModelConfig& config,
                     const StreamNorm& norm,
                     const Projection& next,
                     const float* x,
                     const LinearInput& out,
                     kernels::RowSteps& steps) {
  if (norm.empty()) return out.add_quantize_steps(next, x, config.hidden, steps);
  out.fill_for(
      next, [&](const kernels::Activations& rows) { steps.add(norm_to(config, norm, x, rows)); });
}

Expected<void> OutputLayer::load(const Projection& embedding,
                                 const ModelOptions& options,
                                 WeightStore& weights) {
  memory_ = options.memory;
  taps_ = options.taps;
  suppressed_ = runs_of(config_.suppressed);
  const PackedWeight& table = embedding.weight(0);
  if (config_.share.size > 1 && config_.tied_embeddings && weights.device() == DeviceType::kCuda &&
      matrix_row_scales(table.format, config_.hidden) > 0) {
    return make_error(ErrorCode::kUnsupported,
                      weights.path() + ": found a tied embedding of " +
                          std::string(format_info(table.format).name) +
                          ", which several GPUs do not share; --device cpu runs it",
                      "device");
  }
  if (config_.tied_embeddings) {
    matrix_ = embedding.with_rows(config_.share.vocab);
  } else {
    const std::array<Projection::Part, 1> part = {
        {{"output", config_.vocab_size, config_.output_bias, {}, config_.share.vocab}}};
    SLUICE_TRY(matrix_, Projection::load(weights, part, config_.hidden, options.activation_bits));
  }
  SLUICE_TRY(norm_, load_stream_norm(config_, "output_norm", weights));
  return {};
}

int64_t OutputLayer::logits_width() const {
  return ceil_div(ceil_div(config_.vocab_size, kRowTile), config_.share.size) * kRowTile;
}

OutputLayer::Buffers OutputLayer::layout(const StepBounds& bounds, Arena& arena) const {
  const auto take_ints = [&arena](int64_t count) {
    return reinterpret_cast<int32_t*>(
        arena.take_bytes(count * static_cast<int64_t>(sizeof(int32_t))));
  };
  const std::array<const Projection*, 1> readers = {&matrix_};
  Buffers buffers;
  buffers.last = arena.take_floats(int64_t{bounds.max_logits} * config_.hidden);
  if (!config_.stage.is_first()) return buffers;
  buffers.in = LinearInput(readers, bounds.max_logits, arena);
  if (config_.share.size > 1) {
    buffers.logits = arena.take_floats(bounds.max_logits * logits_width());
  }
  if (config_.share.size > 1 || !suppressed_.empty()) {
    buffers.logits_rows = take_ints(bounds.max_logits);
  }
  if (!suppressed_.empty()) buffers.suppressed = arena.take_floats(longest(suppressed_));
  if (!taps_.empty()) {
    const auto width = static_cast<int64_t>(taps_.size()) * config_.hidden;
    buffers.taps = arena.take_floats(bounds.max_tokens * width);
    buffers.token_rows = take_ints(bounds.max_tokens);
  }
  return buffers;
}

void OutputLayer::bind(const StepBounds& bounds, const Buffers& buffers) {
  buffers_ = buffers;
  if (buffers_.logits_rows != nullptr) {
    number_rows(*memory_, buffers_.logits_rows, bounds.max_logits);
  }
  if (buffers_.suppressed != nullptr) {
    const std::vector<float> logits(static_cast<size_t>(longest(suppressed_)), kSuppressedLogit);
    memory_->upload(reinterpret_cast<std::byte*>(buffers_.suppressed),
                    reinterpret_cast<const std::byte*>(logits.data()),
                    static_cast<int64_t>(logits.size() * sizeof(float)));
    memory_->wait();
  }
  if (buffers_.token_rows != nullptr) {
    number_rows(*memory_, buffers_.token_rows, bounds.max_tokens);
  }
}

bool OutputLayer::gather_last(const ForwardContext& context,
                              const float* x,
                              std::span<const int32_t> rows) const {
  const StageShare& stage = config_.stage;
  if (stage.is_last()) {
    kernels::gather_rows(context.exec,
                         {.x = x,
                          .x_stride = config_.hidden,
                          .n = config_.hidden,
                          .indices = rows,
                          .out = buffers_.last,
                          .out_stride = config_.hidden});
  }
  if (stage.count == 1) return true;
  const size_t floats = rows.size() * static_cast<size_t>(config_.hidden);
  return hand_rows(context, config_, stage.count - 1, 0, {buffers_.last, floats}) &&
         stage.is_first();
}

const float* OutputLayer::embed(const ForwardContext& context,
                                const float* x,
                                std::span<const int32_t> rows) const {
  if (!gather_last(context, x, rows)) return nullptr;
  const ProjectionOutput last = {buffers_.last, config_.hidden};
  kernels::head_norm(context.exec,
                     norm_in_place(config_, norm_, last, static_cast<int64_t>(rows.size())));
  return buffers_.last;
}

void OutputLayer::logits(const ForwardContext& context,
                         const float* x,
                         std::span<const int32_t> rows,
                         float* out) {
  const auto num_rows = static_cast<int32_t>(rows.size());
  if (!gather_last(context, x, rows)) return;
  buffers_.in.set_num_rows(num_rows);
  kernels::RowSteps norm;
  add_normed_rows(config_, norm_, matrix_, buffers_.last, buffers_.in, norm);
  kernels::run_row_steps(context.exec, norm);
  const bool shared = config_.share.size > 1;
  const ProjectionOutput output = {shared ? buffers_.logits : out,
                                   shared ? logits_width() : config_.vocab_size};
  project(context.exec, matrix_, buffers_.in, {&output, 1}, kernels::Epilogue::kStore);
  if (config_.logit_scale != 1 || config_.logit_soft_cap != 0) {
    kernels::scale_rows(context.exec,
                        {.x = output.data,
                         .x_stride = output.stride,
                         .num_rows = num_rows,
                         .n = matrix_.weight(0).n,
                         .scale = config_.logit_scale,
                         .soft_cap = config_.logit_soft_cap});
  }
  if (shared) gather_logits(context, num_rows, out);
  if (config_.share.rank == 0) suppress(context, num_rows, out);
}

// Every row of a run's columns gets the same values.
void OutputLayer::suppress(const ForwardContext& context, int32_t num_rows, float* out) const {
  for (const Portion& run : suppressed_) {
    kernels::gather_rows(context.exec,
                         {.x = buffers_.suppressed,
                          .x_stride = 0,
                          .n = run.count,
                          .indices = {buffers_.logits_rows, static_cast<size_t>(num_rows)},
                          .out = out + run.first,
                          .out_stride = config_.vocab_size});
  }
}

// Gathers each rank's columns into rank 0's rows.
void OutputLayer::gather_logits(const ForwardContext& context, int32_t num_rows, float* out) const {
  const RankShare& share = config_.share;
  const std::span<const float> own(buffers_.logits, static_cast<size_t>(num_rows * logits_width()));
  const auto parts = context.communicator->all_gather(std::as_bytes(own));
  if (share.rank != 0) return;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const Portion columns = vocab_share(config_.vocab_size, static_cast<int32_t>(rank), share.size);
    kernels::gather_rows(context.exec,
                         {.x = reinterpret_cast<const float*>(parts[rank]),
                          .x_stride = logits_width(),
                          .n = columns.count,
                          .indices = {buffers_.logits_rows, static_cast<size_t>(num_rows)},
                          .out = out + columns.first,
                          .out_stride = config_.vocab_size});
  }
}

void OutputLayer::tap(const ForwardContext& context, const float* x, int32_t layer) const {
  const auto found = std::ranges::find(taps_, layer);
  if (found == taps_.end()) return;
  const auto width = static_cast<int64_t>(taps_.size()) * config_.hidden;
  kernels::gather_rows(context.exec,
                       {.x = x,
                        .x_stride = config_.hidden,
                        .n = config_.hidden,
                        .indices = {buffers_.token_rows, context.batch.token_ids.size()},
                        .out = buffers_.taps + (found - taps_.begin()) * config_.hidden,
                        .out_stride = width});
}

// Norms the input of the output layer for all rows, not only for choosing ones.
void OutputLayer::tap_output(const ForwardContext& context, const float* x) const {
  tap(context, x, config_.num_layers);
  const int32_t normed = config_.num_layers + 1;
  if (taps_.empty() || taps_.back() != normed) return;
  tap(context, x, normed);
  const auto width = static_cast<int64_t>(taps_.size()) * config_.hidden;
  const ProjectionOutput rows = {buffers_.taps + width - config_.hidden, width};
  const auto num_rows = static_cast<int64_t>(context.batch.token_ids.size());
  kernels::head_norm(context.exec, norm_in_place(config_, norm_, rows, num_rows));
}

}  // namespace sluice
