// SPDX-License-Identifier: Apache-2.0
#include "engine/models/mtp.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "engine/models/attention_block.h"
#include "engine/models/blocks.h"
#include "engine/models/mlp_block.h"
#include "engine/weights/weight_store.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {
namespace {

struct MtpBuffers {
  float* both = nullptr;          // [tokens, 2 * hidden] embedding and state, in the order of fc
  float* x = nullptr;             // [tokens, hidden] residual stream
  float* normed = nullptr;        // [tokens, hidden] what the output layer reads
  float* last = nullptr;          // [logits rows, hidden]
  int32_t* token_rows = nullptr;  // [tokens] 0, 1, 2, ...
  LinearInput both_in;
  LinearInput attention_in;
  LinearInput mlp_in;
  LinearInput logits_in;
  AttentionBuffers attention;
  MlpBuffers mlp;
};

class MtpHead final : public Model {
 public:
  MtpHead(ModelConfig config, int32_t max_model_len) : config_(std::move(config)) {
    const int32_t rope = config_.layers.front().rope;
    if (rope < 0) return;
    ropes_.emplace_back(config_.ropes[static_cast<size_t>(rope)], max_model_len);
  }

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

  [[nodiscard]] const float* states() const override {
    return hands_on_normed_ ? buffers_.normed : buffers_.x;
  }

  [[nodiscard]] const float* taps() const override { return nullptr; }

  [[nodiscard]] const PackedWeight& embedding() const override { return *embedding_; }

  [[nodiscard]] const Projection& output() const override { return *output_; }

 private:
  MtpBuffers layout(const StepBounds& bounds, Arena& arena) const;
  void take_inputs(const ForwardContext& context) const;
  void norm_half(const ForwardContext& context, float* x, const DeviceFloats& weight) const;
  [[nodiscard]] kernels::RmsNormArgs norm_of(const DeviceFloats& weight,
                                             const kernels::Activations& out) const;

  ModelConfig config_;
  kernels::DeviceMemory* memory_ = nullptr;
  std::vector<kernels::RopeTable> ropes_;    // at most one
  const PackedWeight* embedding_ = nullptr;  // the target's
  Projection fc_;
  bool state_first_ = false;            // order of fc_'s input
  bool hands_on_normed_ = false;        // selects the next row's state
  const Projection* output_ = nullptr;  // the target's
  DeviceFloats embedding_norm_, hidden_norm_, attention_norm_, mlp_norm_, output_norm_;
  std::vector<AttentionBlock> attention_;  // a single one
  std::vector<MlpBlock> mlp_;              // a single one
  MtpBuffers buffers_;
};

Expected<void> MtpHead::load(const ModelOptions& options, WeightStore& weights) {
  const int32_t bits = options.activation_bits;
  const int64_t hidden = config_.hidden;
  memory_ = options.memory;
  for (kernels::RopeTable& rope : ropes_) SLUICE_TRY_VOID(rope.place_on(*memory_));
  output_ = options.output;
  CHECK(output_ != nullptr);
  embedding_ = options.embedding;
  const auto norm = [&](const char* name) -> Expected<DeviceFloats> {
    SLUICE_TRY(std::vector<float> values, weights.vector(name, hidden));
    return weights.place(std::move(values));
  };
  state_first_ = weights.has("he_proj.weight");
  const char* const fc = state_first_ ? "he_proj" : "eh_proj";
  const std::array<Projection::Part, 1> part = {{{fc, hidden, false, {}, {}}}};
  SLUICE_TRY(fc_, Projection::load(weights, part, 2 * hidden, bits));
  hands_on_normed_ = !weights.has("shared_head_norm.weight");
  SLUICE_TRY(output_norm_,
             norm(hands_on_normed_ ? "output_norm.weight" : "shared_head_norm.weight"));
  SLUICE_TRY(embedding_norm_, norm("enorm.weight"));
  SLUICE_TRY(hidden_norm_, norm("hnorm.weight"));
  SLUICE_TRY(attention_norm_, norm("blk.0.attn_norm.weight"));
  SLUICE_TRY(mlp_norm_, norm("blk.0.post_attention_norm.weight"));
  SLUICE_TRY(AttentionBlock attention, AttentionBlock::load(config_, 0, bits, weights));
  attention_.push_back(std::move(attention));
  SLUICE_TRY(MlpBlock mlp, MlpBlock::load(config_, 0, bits, weights));
  mlp_.push_back(std::move(mlp));
  return {};
}

MtpBuffers MtpHead::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  const auto input = [&](const Projection& next, int32_t rows) {
    const std::array<const Projection*, 1> readers = {&next};
    return LinearInput(readers, rows, arena);
  };
  MtpBuffers buffers;
  buffers.both = arena.take_floats(2 * tokens * config_.hidden);
  buffers.x = arena.take_floats(tokens * config_.hidden);
  buffers.normed = arena.take_floats(tokens * config_.hidden);
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

void MtpHead::norm_half(const ForwardContext& context, float* x, const DeviceFloats& weight) const {
  kernels::head_norm(context.exec,
                     {.x = x,
                      .x_stride = 2 * int64_t{config_.hidden},
                      .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                      .num_heads = 1,
                      .n = config_.hidden,
                      .weight = weight.data(),
                      .eps = config_.norm_eps});
}

// Fills each row with embedding and state, both normed. The target's states and the module's own
// have the same form.
void MtpHead::take_inputs(const ForwardContext& context) const {
  const size_t num_tokens = context.batch.token_ids.size();
  const int64_t stride = 2 * int64_t{config_.hidden};
  float* const of_token = buffers_.both + (state_first_ ? config_.hidden : 0);
  float* const of_state = buffers_.both + (state_first_ ? 0 : config_.hidden);
  kernels::embedding(context.exec,
                     {.table = embedding_,
                      .token_ids = context.batch.token_ids,
                      .out = of_token,
                      .out_stride = stride});
  kernels::gather_rows(context.exec,
                       {.x = context.hidden.data,
                        .x_stride = context.hidden.stride,
                        .n = config_.hidden,
                        .indices = {buffers_.token_rows, num_tokens},
                        .out = of_state,
                        .out_stride = stride});
  norm_half(context, of_token, embedding_norm_);
  norm_half(context, of_state, hidden_norm_);
}

kernels::RmsNormArgs MtpHead::norm_of(const DeviceFloats& weight,
                                      const kernels::Activations& out) const {
  return {.x = buffers_.x,
          .x_stride = config_.hidden,
          .weight = weight.data(),
          .eps = config_.norm_eps,
          .out = out};
}

void MtpHead::forward(const ForwardContext& context) {
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  for (kernels::RopeTable& rope : ropes_) rope.prepare(context.batch.max_seq_len);
  take_inputs(context);
  buffers_.both_in.set_num_rows(num_tokens);
  buffers_.both_in.quantize(context.exec, fc_, buffers_.both, 2 * int64_t{config_.hidden});
  const ProjectionOutput stream = {buffers_.x, config_.hidden};
  buffers_.attention_in.set_num_rows(num_tokens);
  kernels::RowSteps before;
  buffers_.attention_in.fill_for(attention_.front().input(), [&](const kernels::Activations& rows) {
    before.add(norm_of(attention_norm_, rows));
  });
  project(context.exec, fc_, buffers_.both_in, {&stream, 1}, kernels::Epilogue::kStore, &before);
  buffers_.mlp_in.set_num_rows(num_tokens);
  kernels::RowSteps between;
  buffers_.mlp_in.fill_for(mlp_.front().input(), [&](const kernels::Activations& rows) {
    between.add(norm_of(mlp_norm_, rows));
  });
  attention_.front().forward(context,
                             config_,
                             context.caches[0],
                             ropes_.empty() ? nullptr : &ropes_.front(),
                             buffers_.attention_in,
                             buffers_.attention,
                             {buffers_.x, config_.hidden},
                             kernels::Epilogue::kAdd,
                             between);
  kernels::RowSteps behind;
  behind.add(norm_of(output_norm_,
                     {.format = kernels::ActivationFormat::kFloat,
                      .num_rows = num_tokens,
                      .k = config_.hidden,
                      .data = buffers_.normed}));
  mlp_.front().forward(context,
                       config_,
                       buffers_.mlp_in,
                       buffers_.mlp,
                       {buffers_.x, config_.hidden},
                       kernels::Epilogue::kAdd,
                       behind);
}

void MtpHead::logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) {
  const auto num_rows = static_cast<int32_t>(rows.size());
  buffers_.logits_in.set_num_rows(num_rows);
  kernels::gather_rows(context.exec,
                       {.x = buffers_.normed,
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
                       .num_rows = num_rows,
                       .n = config_.vocab_size,
                       .scale = config_.logit_scale,
                       .soft_cap = config_.logit_soft_cap});
}

Expected<std::unique_ptr<Model>> build(ModelConfig config,
                                       const ModelOptions& options,
                                       WeightStore& weights) {
  auto model = std::make_unique<MtpHead>(std::move(config), options.max_model_len);
  SLUICE_TRY_VOID(model->load(options, weights));
  return model;
}

}  // namespace

const ModelSpec kMtpSpec = {
    .architecture = "", .hf_model_type = "", .configure = nullptr, .build = build, .is_head = true};

Expected<ModelConfig> mtp_config(const ModelConfig& target, const std::string& path) {
  const auto refuse = [&](const char* found) {
    return make_error(ErrorCode::kUnsupported,
                      "speculative-config: " + path + ": a module behind a model with " + found +
                          " is not supported",
                      "speculative-config");
  };
  if (target.moe.num_experts > 0) return refuse("experts");
  if (target.norm_placement != NormPlacement::kBefore || target.norm_offset != 0) {
    return refuse("norms of this kind");
  }
  if (target.residual_scale != 1) return refuse("scaled halves");
  const auto layer = std::ranges::find(target.layers, 0, &LayerConfig::window);
  if (layer == target.layers.end()) return refuse("windows in all layers");
  ModelConfig config = target;
  config.num_layers = 1;
  config.layers = {*layer};
  config.tied_embeddings = false;
  // Rows of q and k are in a directory's order, whatever the target's layout.
  for (kernels::RopeParams& rope : config.ropes) rope.style = kernels::RopeStyle::kHalves;
  config.head = {.target_hidden = target.hidden,
                 .target_vocab = target.vocab_size,
                 .taps = {target.num_layers}};
  return config;
}

}  // namespace sluice
