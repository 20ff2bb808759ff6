// SPDX-License-Identifier: Apache-2.0
#include "engine/models/eagle3.h"

#include <algorithm>
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

constexpr int32_t kNumTaps = 3;

struct HeadBuffers {
  float* both = nullptr;          // [tokens, 2 * hidden] embedding and hidden state
  float* x = nullptr;             // [tokens, hidden] residual stream
  float* last = nullptr;          // [logits rows, hidden]
  int32_t* token_rows = nullptr;  // [tokens] 0, 1, 2, ...
  LinearInput taps_in;
  LinearInput both_in;
  LinearInput mlp_in;
  LinearInput logits_in;
  AttentionBuffers attention;
  MlpBuffers mlp;
};

class Eagle3Head final : public Model {
 public:
  Eagle3Head(ModelConfig config, int32_t max_model_len)
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

  [[nodiscard]] const Projection& output() const override { return output_; }

 private:
  HeadBuffers layout(const StepBounds& bounds, Arena& arena) const;
  void take_hidden(const ForwardContext& context) const;
  void copy_to_stream(const ForwardContext& context) const;
  void norm_half(const ForwardContext& context, float* x, const DeviceFloats& weight) const;
  void add_norm_steps(const DeviceFloats& norm,
                      const float* x,
                      const Projection& next,
                      const LinearInput& out,
                      kernels::RowSteps& steps) const;

  ModelConfig config_;
  kernels::DeviceMemory* memory_ = nullptr;
  kernels::RopeTable rope_;
  Projection own_embedding_;  // empty: the target's is used
  const PackedWeight* embedding_ = nullptr;
  Projection fc_;
  Projection output_;
  DeviceFloats embedding_norm_, hidden_norm_, mlp_norm_, output_norm_;
  std::vector<AttentionBlock> attention_;  // a single one
  std::vector<MlpBlock> mlp_;              // a single one
  HeadBuffers buffers_;
};

Expected<void> Eagle3Head::load(const ModelOptions& options, WeightStore& weights) {
  const int32_t bits = options.activation_bits;
  const int64_t hidden = config_.hidden;
  memory_ = options.memory;
  SLUICE_TRY_VOID(rope_.place_on(*memory_));
  const auto matrix = [&](const char* stem, int64_t n, int64_t k) {
    const std::array<Projection::Part, 1> part = {{{stem, n, false, {}, {}}}};
    return Projection::load(weights, part, k, bits);
  };
  const auto norm = [&](const char* name) -> Expected<DeviceFloats> {
    SLUICE_TRY(std::vector<float> values, weights.vector(name, hidden));
    return weights.place(std::move(values));
  };
  if (config_.head.has_embedding) {
    SLUICE_TRY(own_embedding_, matrix("token_embd", config_.head.target_vocab, hidden));
    embedding_ = &own_embedding_.weight(0);
  } else {
    embedding_ = options.embedding;
  }
  SLUICE_TRY(fc_, matrix("fc", hidden, int64_t{kNumTaps} * config_.head.target_hidden));
  SLUICE_TRY(output_, matrix("output", config_.vocab_size, hidden));
  SLUICE_TRY(output_norm_, norm("output_norm.weight"));
  SLUICE_TRY(embedding_norm_, norm("blk.0.attn_norm.weight"));
  SLUICE_TRY(hidden_norm_, norm("blk.0.hidden_norm.weight"));
  SLUICE_TRY(mlp_norm_, norm("blk.0.post_attention_norm.weight"));
  SLUICE_TRY(AttentionBlock attention, AttentionBlock::load(config_, 0, bits, weights));
  attention_.push_back(std::move(attention));
  SLUICE_TRY(MlpBlock mlp, MlpBlock::load(config_, 0, bits, weights));
  mlp_.push_back(std::move(mlp));
  return {};
}

HeadBuffers Eagle3Head::layout(const StepBounds& bounds, Arena& arena) const {
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
  buffers.taps_in = input(fc_, bounds.max_tokens);
  buffers.both_in = input(attention_.front().input(), bounds.max_tokens);
  buffers.mlp_in = input(mlp_.front().input(), bounds.max_tokens);
  buffers.logits_in = input(output_, bounds.max_logits);
  buffers.attention = AttentionBlock::layout(config_, attention_, bounds, arena);
  buffers.mlp = MlpBlock::layout(config_, mlp_, bounds, arena);
  return buffers;
}

// Fills the second half of each row from the target's states, or copies the head's own.
void Eagle3Head::take_hidden(const ForwardContext& context) const {
  const HiddenRows& hidden = context.hidden;
  const size_t num_tokens = context.batch.token_ids.size();
  float* const half = buffers_.both + config_.hidden;
  const int64_t stride = 2 * int64_t{config_.hidden};
  if (!hidden.is_tapped) {
    kernels::gather_rows(context.exec,
                         {.x = hidden.data,
                          .x_stride = hidden.stride,
                          .n = config_.hidden,
                          .indices = {buffers_.token_rows, num_tokens},
                          .out = half,
                          .out_stride = stride});
    return;
  }
  LinearInput taps = buffers_.taps_in;
  taps.set_num_rows(static_cast<int32_t>(num_tokens));
  taps.quantize(context.exec, fc_, hidden.data, hidden.stride);
  const ProjectionOutput out = {half, stride};
  project(context.exec, fc_, taps, {&out, 1}, kernels::Epilogue::kStore);
}

void Eagle3Head::copy_to_stream(const ForwardContext& context) const {
  kernels::gather_rows(context.exec,
                       {.x = buffers_.both + config_.hidden,
                        .x_stride = 2 * int64_t{config_.hidden},
                        .n = config_.hidden,
                        .indices = {buffers_.token_rows, context.batch.token_ids.size()},
                        .out = buffers_.x,
                        .out_stride = config_.hidden});
}

void Eagle3Head::norm_half(const ForwardContext& context,
                           float* x,
                           const DeviceFloats& weight) const {
  kernels::head_norm(context.exec,
                     {.x = x,
                      .x_stride = 2 * int64_t{config_.hidden},
                      .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                      .num_heads = 1,
                      .n = config_.hidden,
                      .weight = weight.data(),
                      .eps = config_.norm_eps});
}

void Eagle3Head::add_norm_steps(const DeviceFloats& norm,
                                const float* x,
                                const Projection& next,
                                const LinearInput& out,
                                kernels::RowSteps& steps) const {
  out.fill_for(next, [&](const kernels::Activations& rows) {
    steps.add(kernels::RmsNormArgs{.x = x,
                                   .x_stride = config_.hidden,
                                   .weight = norm.data(),
                                   .eps = config_.norm_eps,
                                   .out = rows});
  });
}

void Eagle3Head::forward(const ForwardContext& context) {
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  const int64_t stride = 2 * int64_t{config_.hidden};
  rope_.prepare(context.batch.max_seq_len);
  take_hidden(context);
  kernels::embedding(context.exec,
                     {.table = embedding_,
                      .token_ids = context.batch.token_ids,
                      .out = buffers_.both,
                      .out_stride = stride});
  if (!config_.head.norm_before_residual) copy_to_stream(context);
  norm_half(context, buffers_.both, embedding_norm_);
  norm_half(context, buffers_.both + config_.hidden, hidden_norm_);
  if (config_.head.norm_before_residual) copy_to_stream(context);
  buffers_.both_in.set_num_rows(num_tokens);
  buffers_.both_in.quantize(context.exec, attention_.front().input(), buffers_.both, stride);
  buffers_.mlp_in.set_num_rows(num_tokens);
  kernels::RowSteps then;
  add_norm_steps(mlp_norm_, buffers_.x, mlp_.front().input(), buffers_.mlp_in, then);
  attention_.front().forward(context,
                             config_,
                             context.caches[0],
                             &rope_,
                             buffers_.both_in,
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

void Eagle3Head::logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) {
  const auto num_rows = static_cast<int32_t>(rows.size());
  buffers_.logits_in.set_num_rows(num_rows);
  kernels::gather_rows(context.exec,
                       {.x = buffers_.x,
                        .x_stride = config_.hidden,
                        .n = config_.hidden,
                        .indices = rows,
                        .out = buffers_.last,
                        .out_stride = config_.hidden});
  kernels::RowSteps norm;
  add_norm_steps(output_norm_, buffers_.last, output_, buffers_.logits_in, norm);
  kernels::run_row_steps(context.exec, norm);
  const ProjectionOutput output = {out, config_.vocab_size};
  project(context.exec, output_, buffers_.logits_in, {&output, 1}, kernels::Epilogue::kStore);
  if (config_.logit_scale == 1) return;
  kernels::scale_rows(context.exec,
                      {.x = out,
                       .x_stride = config_.vocab_size,
                       .num_rows = num_rows,
                       .n = config_.vocab_size,
                       .scale = config_.logit_scale,
                       .soft_cap = 0});
}

Expected<void> read_taps(const Metadata& metadata, HeadConfig& head) {
  if (!metadata.has("head.layers")) return {};
  SLUICE_TRY(const std::vector<double> layers, metadata.get_numbers("head.layers"));
  for (const double layer : layers) {
    const bool is_next = head.taps.empty() || layer > head.taps.back();
    if (!(layer >= 0 && layer < 1024) || !is_next) {
      return metadata.wrong("head.layers", std::to_string(layer), "layers, ascending");
    }
    head.taps.push_back(static_cast<int32_t>(layer));
  }
  if (head.taps.size() == kNumTaps) return {};
  return metadata.wrong(
      "head.layers", std::to_string(layers.size()) + " elements", std::to_string(kNumTaps));
}

Expected<void> configure(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  if (config.num_layers != 1) {
    return metadata.wrong("block_count", std::to_string(config.num_layers), "1, of a head");
  }
  HeadConfig& head = config.head;
  head.has_embedding = checkpoint.has("token_embd.weight");
  head.target_vocab = config.vocab_size;
  SLUICE_TRY(head.target_hidden,
             metadata.get_count_or("head.target_hidden_size", 1 << 20, config.hidden));
  SLUICE_TRY(head.norm_before_residual, metadata.get_bool_or("head.norm_before_residual", false));
  SLUICE_TRY_VOID(read_taps(metadata, head));
  SLUICE_TRY(const double scale, metadata.get_positive_or("head.logit_scale", 1));
  config.logit_scale = static_cast<float>(scale);
  SLUICE_TRY(config.vocab_size,
             metadata.get_count_or(
                 "head.vocab_size", static_cast<uint64_t>(head.target_vocab), head.target_vocab));
  config.tied_embeddings = false;
  config.attention_in = 2 * config.hidden;
  const std::span<const int64_t> offsets = checkpoint.id_offsets();
  const bool fits = offsets.empty() ? config.vocab_size == head.target_vocab
                                    : offsets.size() == static_cast<size_t>(config.vocab_size);
  if (!fits) {
    return make_error(ErrorCode::kDataLoss,
                      checkpoint.path() + ": tensor d2t: found " + std::to_string(offsets.size()) +
                          " elements, expected " + std::to_string(config.vocab_size));
  }
  for (size_t i = 0; i < offsets.size(); ++i) {
    const int64_t most = head.target_vocab - static_cast<int64_t>(i) - 1;
    if (offsets[i] >= -static_cast<int64_t>(i) && offsets[i] <= most) continue;
    return make_error(ErrorCode::kDataLoss,
                      checkpoint.path() + ": tensor d2t: found " + std::to_string(offsets[i]) +
                          " at " + std::to_string(i) + ", expected an id of the " +
                          std::to_string(head.target_vocab) + " tokens");
  }
  return {};
}

Expected<std::unique_ptr<Model>> build(ModelConfig config,
                                       const ModelOptions& options,
                                       WeightStore& weights) {
  auto model = std::make_unique<Eagle3Head>(std::move(config), options.max_model_len);
  SLUICE_TRY_VOID(model->load(options, weights));
  return model;
}

}  // namespace

const ModelSpec kEagle3Spec = {.architecture = "",
                               .hf_model_type = "",
                               .configure = configure,
                               .build = build,
                               .is_head = true};

Expected<std::vector<int32_t>> usual_taps(int32_t num_target_layers) {
  if (num_target_layers < 7) {
    return make_error(ErrorCode::kUnsupported,
                      "speculative-config: a head that names no layers needs a target of at least "
                      "7, found " +
                          std::to_string(num_target_layers),
                      "speculative-config");
  }
  return std::vector<int32_t>{2, num_target_layers / 2, num_target_layers - 3};
}

}  // namespace sluice
