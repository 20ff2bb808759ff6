// SPDX-License-Identifier: Apache-2.0
#include "engine/models/eagle.h"

#include <array>
#include <utility>

#include "engine/models/attention_block.h"
#include "engine/models/blocks.h"
#include "engine/models/config_reader.h"
#include "engine/models/mlp_block.h"
#include "engine/weights/checkpoint.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {
namespace {

struct HeadBuffers {
  float* both = nullptr;          // [tokens, 2 * hidden] embedding and state
  float* x = nullptr;             // [tokens, hidden] residual stream
  float* last = nullptr;          // [logits rows, hidden]
  int32_t* token_rows = nullptr;  // [tokens] 0, 1, 2, ...
  LinearInput both_in;
  LinearInput attention_in;
  LinearInput mlp_in;
  LinearInput logits_in;
  AttentionBuffers attention;
  MlpBuffers mlp;
};

class EagleHead final : public Model {
 public:
  EagleHead(ModelConfig config, int32_t max_model_len)
      : config_(std::move(config)), rope_(config_.ropes.front(), max_model_len) {}

  Expected<void> load(const ModelOptions& options, WeightStore& weights);

  [[nodiscard]] const ModelConfig& config() const override { return config_; }

  [[nodiscard]] std::vector<LayerGroup> layer_groups(DType dtype) const override {
    LayerGroup layout = {.spec = attention_group(config_, dtype), .layers = {0}};
    layout.spec.num_layers = 1;
    return {layout};
  }

  [[nodiscard]] int64_t arena_bytes(const StepBounds& bounds) const override {
    Arena arena;
    layout(bounds, arena);
    return arena.used();
  }

  [[nodiscard]] int64_t max_part_bytes(const StepBounds&) const override { return 0; }

  void bind(const StepBounds& bounds, std::span<std::byte> buffer) override {
    Arena arena(buffer);
    buffers_ = layout(bounds, arena);
    number_rows(*memory_, buffers_.token_rows, bounds.max_tokens);
  }

  void forward(const ForwardContext& context) override;
  void logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) override;

  [[nodiscard]] const float* states() const override { return buffers_.x; }

  [[nodiscard]] const float* taps() const override { return nullptr; }

  [[nodiscard]] const PackedWeight& embedding() const override { return *embedding_; }

  [[nodiscard]] const Projection& output() const override { return *output_; }

 private:
  HeadBuffers layout(const StepBounds& bounds, Arena& arena) const;

  ModelConfig config_;
  kernels::DeviceMemory* memory_ = nullptr;
  kernels::RopeTable rope_;
  Projection own_embedding_;  // empty: the target's is used
  const PackedWeight* embedding_ = nullptr;
  Projection fc_;
  const Projection* output_ = nullptr;  // the target's
  DeviceFloats mlp_norm_;
  std::vector<AttentionBlock> attention_;  // a single one
  std::vector<MlpBlock> mlp_;              // a single one
  HeadBuffers buffers_;
};

Expected<void> EagleHead::load(const ModelOptions& options, WeightStore& weights) {
  const int32_t bits = options.activation_bits;
  const int64_t hidden = config_.hidden;
  memory_ = options.memory;
  SLUICE_TRY_VOID(rope_.place_on(*memory_));
  output_ = options.output;
  CHECK(output_ != nullptr);
  if (config_.head.has_embedding) {
    const std::array<Projection::Part, 1> part = {
        {{"token_embd", config_.head.target_vocab, false, {}, {}}}};
    SLUICE_TRY(own_embedding_, Projection::load(weights, part, hidden, bits));
    embedding_ = &own_embedding_.weight(0);
  } else {
    embedding_ = options.embedding;
  }
  const std::array<Projection::Part, 1> fc = {{{"fc", hidden, weights.has("fc.bias"), {}, {}}}};
  SLUICE_TRY(fc_, Projection::load(weights, fc, 2 * hidden, bits));
  SLUICE_TRY(std::vector<float> norm, weights.vector("blk.0.post_attention_norm.weight", hidden));
  mlp_norm_ = weights.place(std::move(norm));
  SLUICE_TRY(AttentionBlock attention, AttentionBlock::load(config_, 0, bits, weights));
  attention_.push_back(std::move(attention));
  SLUICE_TRY(MlpBlock mlp, MlpBlock::load(config_, 0, bits, weights));
  mlp_.push_back(std::move(mlp));
  return {};
}

HeadBuffers EagleHead::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  const auto input = [&](const Projection& next, int32_t rows) {
    const std::array<const Projection*, 1> readers = {&next};
    return LinearInput(readers, rows, arena);
  };
  HeadBuffers buffers;
  buffers.both = arena.take_floats(2 * tokens * config_.hidden);
  buffers.x = arena.take_floats(tokens * config_.hidden);
  buffers.last = arena.take_floats(int64_t{bounds.max_logits} * config_.hidden);
  buffers.token_rows =
      reinterpret_cast<int32_t*>(arena.take_bytes(tokens * static_cast<int64_t>(sizeof(int32_t))));
  buffers.both_in = input(fc_, bounds.max_tokens);
  buffers.attention_in = input(attention_.front().input(), bounds.max_tokens);
  buffers.mlp_in = input(mlp_.front().input(), bounds.max_tokens);
  buffers.logits_in = input(*output_, bounds.max_logits);
  buffers.attention = AttentionBlock::layout(config_, attention_, bounds, arena);
  buffers.mlp = MlpBlock::layout(config_, mlp_, bounds, arena);
  return buffers;
}

// The target's states and the head's own have the same form.
void EagleHead::forward(const ForwardContext& context) {
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  const int64_t stride = 2 * int64_t{config_.hidden};
  rope_.prepare(context.batch.max_seq_len);
  kernels::embedding(context.exec,
                     {.table = embedding_,
                      .token_ids = context.batch.token_ids,
                      .out = buffers_.both,
                      .out_stride = stride});
  kernels::gather_rows(context.exec,
                       {.x = context.hidden.data,
                        .x_stride = context.hidden.stride,
                        .n = config_.hidden,
                        .indices = {buffers_.token_rows, static_cast<size_t>(num_tokens)},
                        .out = buffers_.both + config_.hidden,
                        .out_stride = stride});
  buffers_.both_in.set_num_rows(num_tokens);
  buffers_.both_in.quantize(context.exec, fc_, buffers_.both, stride);
  const ProjectionOutput stream = {buffers_.x, config_.hidden};
  project(context.exec, fc_, buffers_.both_in, {&stream, 1}, kernels::Epilogue::kStore);
  buffers_.attention_in.set_num_rows(num_tokens);
  buffers_.attention_in.quantize(
      context.exec, attention_.front().input(), buffers_.x, config_.hidden);
  buffers_.mlp_in.set_num_rows(num_tokens);
  kernels::RowSteps then;
  buffers_.mlp_in.fill_for(mlp_.front().input(), [&](const kernels::Activations& rows) {
    then.add(kernels::RmsNormArgs{.x = buffers_.x,
                                  .x_stride = config_.hidden,
                                  .weight = mlp_norm_.data(),
                                  .eps = config_.norm_eps,
                                  .out = rows});
  });
  attention_.front().forward(context,
                             config_,
                             context.caches[0],
                             &rope_,
                             buffers_.attention_in,
                             buffers_.attention,
                             {buffers_.x, config_.hidden},
                             kernels::Epilogue::kAdd,
                             then);
  mlp_.front().forward(context,
                       config_,
                       buffers_.mlp_in,
                       buffers_.mlp,
                       {buffers_.x, config_.hidden},
                       kernels::Epilogue::kAdd,
                       {});
}

void EagleHead::logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) {
  buffers_.logits_in.set_num_rows(static_cast<int32_t>(rows.size()));
  kernels::gather_rows(context.exec,
                       {.x = buffers_.x,
                        .x_stride = config_.hidden,
                        .n = config_.hidden,
                        .indices = rows,
                        .out = buffers_.last,
                        .out_stride = config_.hidden});
  buffers_.logits_in.quantize(context.exec, *output_, buffers_.last, config_.hidden);
  const ProjectionOutput output = {out, config_.vocab_size};
  project(context.exec, *output_, buffers_.logits_in, {&output, 1}, kernels::Epilogue::kStore);
  if (config_.logit_scale == 1 && config_.logit_soft_cap == 0) return;
  kernels::scale_rows(context.exec,
                      {.x = out,
                       .x_stride = config_.vocab_size,
                       .num_rows = static_cast<int32_t>(rows.size()),
                       .n = config_.vocab_size,
                       .scale = config_.logit_scale,
                       .soft_cap = config_.logit_soft_cap});
}

Expected<void> configure(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  if (config.num_layers != 1) {
    return metadata.wrong("block_count", std::to_string(config.num_layers), "1, of a head");
  }
  HeadConfig& head = config.head;
  head.has_embedding = checkpoint.has("token_embd.weight");
  head.target_vocab = config.vocab_size;
  head.target_hidden = config.hidden;
  config.tied_embeddings = false;
  return {};
}

Expected<std::unique_ptr<Model>> build(ModelConfig config,
                                       const ModelOptions& options,
                                       WeightStore& weights) {
  auto model = std::make_unique<EagleHead>(std::move(config), options.max_model_len);
  SLUICE_TRY_VOID(model->load(options, weights));
  return model;
}

}  // namespace

const ModelSpec kEagleSpec = {.architecture = "",
                              .hf_model_type = "",
                              .configure = configure,
                              .build = build,
                              .is_head = true};

}  // namespace sluice
