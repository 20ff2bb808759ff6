// SPDX-License-Identifier: Apache-2.0
#include "engine/models/decoder.h"

#include <algorithm>
#include <array>
#include <span>

#include "engine/models/layer_stack.h"
#include "engine/models/output_layer.h"
#include "engine/models/rank_share.h"
#include "engine/models/rope_tables.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {
namespace {

// Pieces of the arena, laid out once for the largest step.
struct DecoderBuffers {
  LayerStack::Buffers layers;
  OutputLayer::Buffers output;
};

class DecoderModel final : public Model {
 public:
  DecoderModel(ModelConfig config, int32_t max_model_len)
      : config_(std::move(config)), layers_(config_, max_model_len), output_(config_) {}

  Expected<void> load(const ModelOptions& options, WeightStore& weights);

  [[nodiscard]] const ModelConfig& config() const override { return config_; }

  [[nodiscard]] std::vector<LayerGroup> layer_groups(DType dtype) const override {
    return layers_.groups(dtype);
  }

  [[nodiscard]] int64_t arena_bytes(const StepBounds& bounds) const override {
    Arena arena;
    layout(bounds, arena);
    return arena.used();
  }

  void bind(const StepBounds& bounds, std::span<std::byte> buffer) override;
  void forward(const ForwardContext& context) override;

  void logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) override {
    output_.logits(context, layers_.stream(), rows, out);
  }

  const float* embed(const ForwardContext& context, std::span<const int32_t> rows) override {
    return output_.embed(context, layers_.stream(), rows);
  }

  [[nodiscard]] const float* states() const override { return layers_.stream(); }

  [[nodiscard]] const float* taps() const override { return output_.taps(); }

  [[nodiscard]] const PackedWeight& embedding() const override { return embedding_.weight(0); }

  [[nodiscard]] const Projection& output() const override { return output_.matrix(); }

  [[nodiscard]] int64_t max_part_bytes(const StepBounds& bounds) const override;

 private:
  Expected<void> load_ends(const ModelOptions& options, WeightStore& weights);
  Expected<void> load_positions(WeightStore& weights);

  DecoderBuffers layout(const StepBounds& bounds, Arena& arena) const {
    return {layers_.layout(bounds, arena), output_.layout(bounds, arena)};
  }

  void take_embeddings(const ForwardContext& context) const;
  bool cross_borders(const ForwardContext& context, int32_t first, int32_t end) const;

  ModelConfig config_;
  Projection embedding_;
  DeviceFloats positions_;     // [positions, hidden], learned; empty: none
  StreamNorm embedding_norm_;  // empty: none
  LayerStack layers_;
  OutputLayer output_;
};

// The rows that a token can have.
Expected<void> DecoderModel::load_positions(WeightStore& weights) {
  std::vector<float> table;
  for (int32_t row = config_.first_position; row < config_.num_positions; ++row) {
    SLUICE_TRY(
        const std::vector<float> place,
        weights.vector("position_embd.weight", config_.hidden, {row, config_.num_positions}));
    table.insert(table.end(), place.begin(), place.end());
  }
  if (!table.empty()) positions_ = weights.place(std::move(table));
  return {};
}

// Loads what the first stage alone has: the embedding and the output layer.
Expected<void> DecoderModel::load_ends(const ModelOptions& options, WeightStore& weights) {
  const int32_t bits = options.activation_bits;
  const std::array<Projection::Part, 1> embedding = {
      {{"token_embd", config_.vocab_size, false, {}, {}}}};
  SLUICE_TRY(embedding_, Projection::load(weights, embedding, config_.hidden, bits));
  SLUICE_TRY_VOID(load_positions(weights));
  if (config_.embedding_norm) {
    SLUICE_TRY(embedding_norm_, load_stream_norm(config_, "token_embd_norm", weights));
  }
  // A layer for scores follows the pooling (read_pooling()), or a reranker's file repeats the rows
  // of "yes" and "no" there.
  weights.leave_out("cls.output.weight");
  return output_.load(embedding_, options, weights);
}

Expected<void> DecoderModel::load(const ModelOptions& options, WeightStore& weights) {
  if (config_.stage.is_first()) SLUICE_TRY_VOID(load_ends(options, weights));
  return layers_.load(options, weights);
}

int64_t DecoderModel::max_part_bytes(const StepBounds& bounds) const {
  if (config_.share.size == 1) return 0;
  int64_t floats =
      std::max(output_.max_sent_floats(bounds), layers_.max_sent_floats(bounds));
  // The first rank of a stage gives the others what it has of another stage.
  if (config_.stage.count > 1) {
    floats = std::max(floats, int64_t{bounds.max_logits} * config_.hidden);
  }
  return floats * static_cast<int64_t>(sizeof(float));
}

void DecoderModel::bind(const StepBounds& bounds, std::span<std::byte> buffer) {
  Arena arena(buffer);
  const DecoderBuffers buffers = layout(bounds, arena);
  layers_.bind(bounds, buffers.layers);
  output_.bind(bounds, buffers.output);
}

void DecoderModel::take_embeddings(const ForwardContext& context) const {
  float* const x = layers_.stream();
  kernels::embedding(context.exec,
                     {.table = &embedding_.weight(0),
                      .token_ids = context.batch.token_ids,
                      .out = x,
                      .out_stride = config_.hidden});
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  if (config_.embedding_scale != 1) {
    kernels::scale_rows(context.exec,
                        {.x = x,
                         .x_stride = config_.hidden,
                         .num_rows = num_tokens,
                         .n = config_.hidden,
                         .scale = config_.embedding_scale});
  }
  if (!embedding_norm_.empty()) {
    const ProjectionOutput rows = {x, config_.hidden};
    kernels::head_norm(context.exec, norm_in_place(config_, embedding_norm_, rows, num_tokens));
  }
  if (positions_.empty()) return;
  kernels::gather_rows(context.exec,
                       {.x = positions_.data(),
                        .x_stride = config_.hidden,
                        .n = config_.hidden,
                        .indices = context.batch.positions,
                        .out = layers_.spare(),
                        .out_stride = config_.hidden});
  kernels::add_rows(context.exec,
                    {.x = x,
                     .x_stride = config_.hidden,
                     .y = layers_.spare(),
                     .y_stride = config_.hidden,
                     .num_rows = num_tokens,
                     .n = config_.hidden});
}

// Hands the residual stream over borders [first, end), of which border i is in front of stage i.
bool DecoderModel::cross_borders(const ForwardContext& context, int32_t first, int32_t end) const {
  const size_t floats = context.batch.token_ids.size() * static_cast<size_t>(config_.hidden);
  for (int32_t stage = first; stage < end; ++stage) {
    if (!hand_rows(context, config_, stage - 1, stage, {layers_.stream(), floats})) return false;
  }
  return true;
}

void DecoderModel::forward(const ForwardContext& context) {
  const StageShare& stage = config_.stage;
  layers_.prepare(context);
  if (stage.is_first()) take_embeddings(context);
  if (!cross_borders(context, 1, stage.stage + 1)) return;
  layers_.run(context, output_);
  if (!cross_borders(context, stage.stage + 1, stage.count)) return;
  if (!context.has_failed()) output_.tap_output(context, layers_.stream());
}

}  // namespace

Expected<std::unique_ptr<Model>> build_decoder(ModelConfig config,
                                               const ModelOptions& options,
                                               WeightStore& weights) {
  // What every stage reads counts once.
  weights.count_content(config.stage.is_first());
  SLUICE_TRY_VOID(take_rope_factors(weights, config));
  weights.count_content(true);
  auto model = std::make_unique<DecoderModel>(std::move(config), options.max_model_len);
  SLUICE_TRY_VOID(model->load(options, weights));
  return model;
}

}  // namespace sluice
