// SPDX-License-Identifier: Apache-2.0
#include "engine/models/decoder.h"

#include <algorithm>
#include <array>

#include "engine/models/attention_block.h"
#include "engine/models/blocks.h"
#include "engine/models/mlp_block.h"
#include "engine/parallel/parallel.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"
#include "kernels/rope_scaling.h"

namespace sluice {
namespace {

// The norms of one layer; norms that its placement lacks are empty.
struct LayerNorms {
  DeviceFloats before_attention;
  DeviceFloats after_attention;
  DeviceFloats before_ffn;
  DeviceFloats after_ffn;
};

// Pieces of the arena, laid out once for the largest step.
struct DecoderBuffers {
  float* x = nullptr;       // [tokens, hidden] residual stream
  float* half = nullptr;    // [tokens, padded hidden] a half's output before it is added
  float* normed = nullptr;  // [tokens, padded hidden] what experts read
  float* last = nullptr;    // [logits rows, hidden]
  LinearInput hidden_in;
  LinearInput logits_in;
  float* logits = nullptr;         // [logits rows, widest share], if ranks share the vocabulary
  int32_t* logits_rows = nullptr;  // [logits rows] 0, 1, 2, ...
  float* taps = nullptr;           // [tokens, taps * hidden], if a head reads them
  int32_t* token_rows = nullptr;   // [tokens] 0, 1, 2, ..., likewise
  AttentionBuffers attention;
  MlpBuffers mlp;
};

class DecoderModel final : public Model {
 public:
  DecoderModel(ModelConfig config, int32_t max_model_len);
  Expected<void> load(const ModelOptions& options, WeightStore& weights);

  [[nodiscard]] const ModelConfig& config() const override { return config_; }

  [[nodiscard]] std::vector<LayerGroup> layer_groups(DType dtype) const override;

  [[nodiscard]] int64_t arena_bytes(const StepBounds& bounds) const override {
    Arena arena;
    layout(bounds, arena);
    return arena.used();
  }

  void bind(const StepBounds& bounds, std::span<std::byte> buffer) override {
    Arena arena(buffer);
    buffers_ = layout(bounds, arena);
    if (buffers_.logits_rows != nullptr) {
      number_rows(*memory_, buffers_.logits_rows, bounds.max_logits);
    }
    if (buffers_.token_rows != nullptr) {
      number_rows(*memory_, buffers_.token_rows, bounds.max_tokens);
    }
  }

  void forward(const ForwardContext& context) override;
  void logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) override;
  const float* embed(const ForwardContext& context, std::span<const int32_t> rows) override;

  [[nodiscard]] const float* states() const override { return buffers_.x; }

  [[nodiscard]] const float* taps() const override { return buffers_.taps; }

  [[nodiscard]] const PackedWeight& embedding() const override { return embedding_.weight(0); }

  [[nodiscard]] const Projection& output() const override { return head_; }

 private:
  Expected<DeviceFloats> load_norm(WeightStore& weights, const std::string& name) const;
  Expected<void> load_norms(int32_t index, WeightStore& weights);
  DecoderBuffers layout(const StepBounds& bounds, Arena& arena) const;

  // A half writes directly to the residual stream unless its output is processed first.
  [[nodiscard]] bool adds_directly() const {
    return config_.norm_placement == NormPlacement::kBefore && config_.residual_scale == 1;
  }

  [[nodiscard]] int64_t padded_hidden() const { return align_up(config_.hidden, kQuantGroup); }

  [[nodiscard]] int64_t max_part_bytes(const StepBounds& bounds) const override {
    if (config_.share.size == 1) return 0;
    const int64_t rows = MlpBlock::max_rows(config_, bounds.max_tokens);
    const int64_t floats = std::max(rows * config_.hidden, bounds.max_logits * logits_width());
    return floats * static_cast<int64_t>(sizeof(float));
  }

  // Columns of logits on the rank with the most.
  [[nodiscard]] int64_t logits_width() const {
    return ceil_div(ceil_div(config_.vocab_size, kRowTile), config_.share.size) * kRowTile;
  }

  void tap(const ForwardContext& context, size_t layer) const;
  void gather_last(const ForwardContext& context, std::span<const int32_t> rows) const;
  void tap_output(const ForwardContext& context) const;
  void gather_logits(const ForwardContext& context, int32_t num_rows, float* out) const;

  void add_input_steps(const DeviceFloats& norm,
                       const Projection& next,
                       const float* x,
                       const LinearInput& out,
                       kernels::RowSteps& steps) const;
  void add_half_steps(const ForwardContext& context,
                      const DeviceFloats& norm,
                      kernels::RowSteps& steps) const;
  void add_attention_input_steps(size_t index, kernels::RowSteps& steps) const;
  void add_ffn_input_steps(const ForwardContext& context,
                           size_t index,
                           kernels::RowSteps& steps) const;
  void attention_half(const ForwardContext& context, size_t index) const;
  void ffn_half(const ForwardContext& context, size_t index) const;

  ModelConfig config_;
  kernels::DeviceMemory* memory_ = nullptr;
  std::vector<int32_t> taps_;
  std::vector<kernels::RopeTable> ropes_;
  Projection embedding_;
  Projection head_;
  DeviceFloats output_norm_;
  std::vector<LayerNorms> norms_;
  std::vector<AttentionBlock> attention_;
  std::vector<MlpBlock> mlp_;
  DecoderBuffers buffers_;
};

DecoderModel::DecoderModel(ModelConfig config, int32_t max_model_len) : config_(std::move(config)) {
  for (kernels::RopeParams rope : config_.ropes) {
    if (const LongRope& two = config_.long_rope; two.original_context > 0) {
      rope.freq_factors =
          max_model_len > two.original_context ? two.long_factors : two.short_factors;
    }
    if (const DynamicRope& dynamic = config_.dynamic_rope; dynamic.trained_context > 0) {
      rope.freq_base = kernels::dynamic_freq_base(
          rope,
          {.factor = dynamic.factor,
           .trained_context = static_cast<double>(dynamic.trained_context),
           .served_context = static_cast<double>(max_model_len)});
    }
    ropes_.emplace_back(rope, max_model_len);
  }
}

Expected<DeviceFloats> DecoderModel::load_norm(WeightStore& weights,
                                               const std::string& name) const {
  SLUICE_TRY(std::vector<float> values, weights.vector(name, config_.hidden));
  for (float& value : values) value += config_.norm_offset;
  return weights.place(std::move(values));
}

Expected<void> DecoderModel::load_norms(int32_t index, WeightStore& weights) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  LayerNorms norms;
  if (config_.norm_placement != NormPlacement::kAfter) {
    SLUICE_TRY(norms.before_attention, load_norm(weights, prefix + "attn_norm.weight"));
    SLUICE_TRY(norms.before_ffn, load_norm(weights, prefix + "ffn_norm.weight"));
  }
  if (config_.norm_placement != NormPlacement::kBefore) {
    SLUICE_TRY(norms.after_attention, load_norm(weights, prefix + "post_attention_norm.weight"));
    SLUICE_TRY(norms.after_ffn, load_norm(weights, prefix + "post_ffw_norm.weight"));
  }
  norms_.push_back(std::move(norms));
  return {};
}

Expected<void> DecoderModel::load(const ModelOptions& options, WeightStore& weights) {
  const int32_t bits = options.activation_bits;
  memory_ = options.memory;
  taps_ = options.taps;
  for (kernels::RopeTable& rope : ropes_) SLUICE_TRY_VOID(rope.place_on(*memory_));
  const std::array<Projection::Part, 1> embedding = {
      {{"token_embd", config_.vocab_size, false, {}, {}}}};
  SLUICE_TRY(embedding_, Projection::load(weights, embedding, config_.hidden, bits));
  if (config_.share.size > 1 && config_.tied_embeddings && weights.device() == DeviceType::kCuda &&
      matrix_row_scales(embedding_.weight(0).format, config_.hidden) > 0) {
    return make_error(ErrorCode::kUnsupported,
                      weights.path() + ": found a tied embedding of " +
                          std::string(format_info(embedding_.weight(0).format).name) +
                          ", which several GPUs do not share; --device cpu runs it",
                      "device");
  }
  if (config_.tied_embeddings) head_ = embedding_.with_rows(config_.share.vocab);
  if (!config_.tied_embeddings) {
    const std::array<Projection::Part, 1> head = {
        {{"output", config_.vocab_size, false, {}, config_.share.vocab}}};
    SLUICE_TRY(head_, Projection::load(weights, head, config_.hidden, bits));
  }
  SLUICE_TRY(output_norm_, load_norm(weights, "output_norm.weight"));
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    SLUICE_TRY_VOID(load_norms(i, weights));
    SLUICE_TRY(AttentionBlock attention, AttentionBlock::load(config_, i, bits, weights));
    attention_.push_back(std::move(attention));
    SLUICE_TRY(MlpBlock mlp, MlpBlock::load(config_, i, bits, weights));
    mlp_.push_back(std::move(mlp));
  }
  return {};
}

std::vector<LayerGroup> DecoderModel::layer_groups(DType dtype) const {
  std::vector<LayerGroup> layouts;
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const int32_t window = config_.layers[static_cast<size_t>(i)].window;
    auto found = std::find_if(layouts.begin(), layouts.end(), [window](const LayerGroup& layout) {
      return layout.spec.window == window;
    });
    if (found == layouts.end()) {
      layouts.push_back({.spec = attention_group(config_, dtype, window), .layers = {}});
      found = layouts.end() - 1;
    }
    found->layers.push_back(i);
    ++found->spec.num_layers;
  }
  return layouts;
}

DecoderBuffers DecoderModel::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  const bool experts = config_.moe.num_experts > 0;
  std::vector<const Projection*> from_hidden;
  for (size_t i = 0; i < attention_.size(); ++i) {
    from_hidden.push_back(&attention_[i].input());
    if (!experts) from_hidden.push_back(&mlp_[i].input());
  }
  const std::array<const Projection*, 1> from_last = {&head_};
  DecoderBuffers buffers;
  buffers.x = arena.take_floats(tokens * config_.hidden);
  if (!adds_directly()) buffers.half = arena.take_floats(tokens * config_.hidden);
  if (experts) buffers.normed = arena.take_floats(tokens * padded_hidden());
  buffers.last = arena.take_floats(int64_t{bounds.max_logits} * config_.hidden);
  buffers.hidden_in = LinearInput(from_hidden, bounds.max_tokens, arena);
  buffers.logits_in = LinearInput(from_last, bounds.max_logits, arena);
  if (config_.share.size > 1) {
    buffers.logits = arena.take_floats(bounds.max_logits * logits_width());
    buffers.logits_rows = reinterpret_cast<int32_t*>(
        arena.take_bytes(bounds.max_logits * static_cast<int64_t>(sizeof(int32_t))));
  }
  if (!taps_.empty()) {
    buffers.taps = arena.take_floats(tokens * static_cast<int64_t>(taps_.size()) * config_.hidden);
    buffers.token_rows = reinterpret_cast<int32_t*>(
        arena.take_bytes(tokens * static_cast<int64_t>(sizeof(int32_t))));
  }
  buffers.attention = AttentionBlock::layout(config_, attention_, bounds, arena);
  buffers.mlp = MlpBlock::layout(config_, mlp_, bounds, arena);
  return buffers;
}

// Adds steps that give `next` the rows of x, normalized if this model has the norm.
void DecoderModel::add_input_steps(const DeviceFloats& norm,
                                   const Projection& next,
                                   const float* x,
                                   const LinearInput& out,
                                   kernels::RowSteps& steps) const {
  if (norm.empty()) return out.add_quantize_steps(next, x, config_.hidden, steps);
  out.fill_for(next, [&](const kernels::Activations& rows) {
    steps.add(kernels::RmsNormArgs{.x = x,
                                   .x_stride = config_.hidden,
                                   .weight = norm.data(),
                                   .eps = config_.norm_eps,
                                   .out = rows});
  });
}

// Adds a half's output, normalized if there is a norm, to the residual stream.
void DecoderModel::add_half_steps(const ForwardContext& context,
                                  const DeviceFloats& norm,
                                  kernels::RowSteps& steps) const {
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  if (!norm.empty()) {
    steps.add(kernels::HeadNormArgs{.x = buffers_.half,
                                    .x_stride = config_.hidden,
                                    .num_rows = num_tokens,
                                    .num_heads = 1,
                                    .n = config_.hidden,
                                    .weight = norm.data(),
                                    .eps = config_.norm_eps});
  }
  steps.add(kernels::AddRowsArgs{.x = buffers_.x,
                                 .x_stride = config_.hidden,
                                 .y = buffers_.half,
                                 .y_stride = config_.hidden,
                                 .num_rows = num_tokens,
                                 .n = config_.hidden,
                                 .scale = config_.residual_scale});
}

// Prepares the input of attention half `index`; nothing after the last layer.
void DecoderModel::add_attention_input_steps(size_t index, kernels::RowSteps& steps) const {
  if (index == attention_.size()) return;
  add_input_steps(norms_[index].before_attention,
                  attention_[index].input(),
                  buffers_.x,
                  buffers_.hidden_in,
                  steps);
}

void DecoderModel::add_ffn_input_steps(const ForwardContext& context,
                                       size_t index,
                                       kernels::RowSteps& steps) const {
  const DeviceFloats& norm = norms_[index].before_ffn;
  if (mlp_[index].is_dense()) {
    add_input_steps(norm, mlp_[index].input(), buffers_.x, buffers_.hidden_in, steps);
    return;
  }
  steps.add(
      kernels::RmsNormArgs{.x = buffers_.x,
                           .x_stride = config_.hidden,
                           .weight = norm.data(),
                           .eps = config_.norm_eps,
                           .out = {.format = kernels::ActivationFormat::kFloat,
                                   .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                                   .k = config_.hidden,
                                   .data = buffers_.normed}});
}

// Reads hidden_in and leaves the input of the feed-forward half.
void DecoderModel::attention_half(const ForwardContext& context, size_t index) const {
  const int32_t rope = config_.layers[index].rope;
  const bool direct = adds_directly();
  kernels::RowSteps then;
  if (!direct) add_half_steps(context, norms_[index].after_attention, then);
  add_ffn_input_steps(context, index, then);
  attention_[index].forward(context,
                            config_,
                            context.caches[index],
                            rope < 0 ? nullptr : &ropes_[static_cast<size_t>(rope)],
                            buffers_.hidden_in,
                            buffers_.attention,
                            {direct ? buffers_.x : buffers_.half, config_.hidden},
                            direct ? kernels::Epilogue::kAdd : kernels::Epilogue::kStore,
                            then);
}

// Leaves the input of the next layer's attention half.
void DecoderModel::ffn_half(const ForwardContext& context, size_t index) const {
  const MlpBlock& block = mlp_[index];
  kernels::RowSteps then;
  if (!block.is_dense()) {
    block.forward_experts(context,
                          config_,
                          buffers_.normed,
                          padded_hidden(),
                          buffers_.mlp,
                          config_.residual_scale,
                          {buffers_.x, config_.hidden});
    add_attention_input_steps(index + 1, then);
    kernels::run_row_steps(context.exec, then);
    return;
  }
  const bool direct = adds_directly();
  if (!direct) add_half_steps(context, norms_[index].after_ffn, then);
  add_attention_input_steps(index + 1, then);
  block.forward(context,
                config_,
                buffers_.hidden_in,
                buffers_.mlp,
                {direct ? buffers_.x : buffers_.half, config_.hidden},
                direct ? kernels::Epilogue::kAdd : kernels::Epilogue::kStore,
                then);
}

// Gathers the layers' output of some rows.
void DecoderModel::gather_last(const ForwardContext& context, std::span<const int32_t> rows) const {
  kernels::gather_rows(context.exec,
                       {.x = buffers_.x,
                        .x_stride = config_.hidden,
                        .n = config_.hidden,
                        .indices = rows,
                        .out = buffers_.last,
                        .out_stride = config_.hidden});
}

const float* DecoderModel::embed(const ForwardContext& context, std::span<const int32_t> rows) {
  gather_last(context, rows);
  kernels::head_norm(context.exec,
                     {.x = buffers_.last,
                      .x_stride = config_.hidden,
                      .num_rows = static_cast<int32_t>(rows.size()),
                      .num_heads = 1,
                      .n = config_.hidden,
                      .weight = output_norm_.data(),
                      .eps = config_.norm_eps});
  return buffers_.last;
}

void DecoderModel::logits(const ForwardContext& context,
                          std::span<const int32_t> rows,
                          float* out) {
  const auto num_rows = static_cast<int32_t>(rows.size());
  buffers_.logits_in.set_num_rows(num_rows);
  gather_last(context, rows);
  kernels::RowSteps norm;
  add_input_steps(output_norm_, head_, buffers_.last, buffers_.logits_in, norm);
  kernels::run_row_steps(context.exec, norm);
  const bool shared = config_.share.size > 1;
  const ProjectionOutput output = {shared ? buffers_.logits : out,
                                   shared ? logits_width() : config_.vocab_size};
  project(context.exec, head_, buffers_.logits_in, {&output, 1}, kernels::Epilogue::kStore);
  if (config_.logit_scale != 1 || config_.logit_soft_cap != 0) {
    kernels::scale_rows(context.exec,
                        {.x = output.data,
                         .x_stride = output.stride,
                         .num_rows = num_rows,
                         .n = head_.weight(0).n,
                         .scale = config_.logit_scale,
                         .soft_cap = config_.logit_soft_cap});
  }
  if (shared) gather_logits(context, num_rows, out);
}

// Keeps the residual stream at the layer's input if a head reads it.
void DecoderModel::tap(const ForwardContext& context, size_t layer) const {
  const auto found = std::ranges::find(taps_, static_cast<int32_t>(layer));
  if (found == taps_.end()) return;
  const auto width = static_cast<int64_t>(taps_.size()) * config_.hidden;
  kernels::gather_rows(context.exec,
                       {.x = buffers_.x,
                        .x_stride = config_.hidden,
                        .n = config_.hidden,
                        .indices = {buffers_.token_rows, context.batch.token_ids.size()},
                        .out = buffers_.taps + (found - taps_.begin()) * config_.hidden,
                        .out_stride = width});
}

// Norms the input of the output layer for all rows, not only for choosing ones.
void DecoderModel::tap_output(const ForwardContext& context) const {
  if (taps_.empty() || taps_.back() != config_.num_layers) return;
  tap(context, attention_.size());
  const auto width = static_cast<int64_t>(taps_.size()) * config_.hidden;
  kernels::head_norm(context.exec,
                     {.x = buffers_.taps + width - config_.hidden,
                      .x_stride = width,
                      .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                      .num_heads = 1,
                      .n = config_.hidden,
                      .weight = output_norm_.data(),
                      .eps = config_.norm_eps});
}

// Gathers each rank's columns into rank 0's rows.
void DecoderModel::gather_logits(const ForwardContext& context,
                                 int32_t num_rows,
                                 float* out) const {
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

void DecoderModel::forward(const ForwardContext& context) {
  const ForwardBatch& batch = context.batch;
  const auto num_tokens = static_cast<int32_t>(batch.token_ids.size());
  for (kernels::RopeTable& rope : ropes_) rope.prepare(batch.max_seq_len);
  buffers_.hidden_in.set_num_rows(num_tokens);
  kernels::embedding(context.exec,
                     {.table = &embedding_.weight(0),
                      .token_ids = batch.token_ids,
                      .out = buffers_.x,
                      .out_stride = config_.hidden});
  if (config_.embedding_scale != 1) {
    kernels::scale_rows(context.exec,
                        {.x = buffers_.x,
                         .x_stride = config_.hidden,
                         .num_rows = num_tokens,
                         .n = config_.hidden,
                         .scale = config_.embedding_scale});
  }
  kernels::RowSteps first;
  add_attention_input_steps(0, first);
  kernels::run_row_steps(context.exec, first);
  // Another rank may still be reading this rank's parts from before a failure: keep them.
  const auto has_failed = [&context] {
    return context.communicator != nullptr && context.communicator->has_failed();
  };
  for (size_t i = 0; i < attention_.size(); ++i) {
    tap(context, i);
    attention_half(context, i);
    if (has_failed()) return;
    if (i + 1 < attention_.size()) {
      attention_[i + 1].read_ahead(context, config_, context.caches[i + 1]);
    }
    ffn_half(context, i);
    if (has_failed()) return;
  }
  tap_output(context);
}

}  // namespace

namespace {

Expected<void> check_factors(const std::string& name, const std::vector<float>& factors) {
  for (const float factor : factors) {
    if (factor >= 0.01F && factor <= 1e5F) continue;
    return make_error(ErrorCode::kDataLoss,
                      "rotary factors " + name + ": found " + std::to_string(factor) +
                          ", expected 0.01 to 100000");
  }
  return {};
}

}  // namespace

Expected<std::unique_ptr<Model>> build_decoder(ModelConfig config,
                                               const ModelOptions& options,
                                               WeightStore& weights) {
  // GGUF has Llama 3's factors as a tensor.
  if (weights.has("rope_freqs.weight")) {
    for (kernels::RopeParams& rope : config.ropes) {
      SLUICE_TRY(rope.freq_factors, weights.vector("rope_freqs.weight", rope.rotary_dim / 2));
    }
  }
  if (config.long_rope.original_context > 0 && weights.has("rope_factors_long.weight")) {
    const int64_t pairs = config.ropes.front().rotary_dim / 2;
    SLUICE_TRY(config.long_rope.long_factors, weights.vector("rope_factors_long.weight", pairs));
    SLUICE_TRY(config.long_rope.short_factors, weights.vector("rope_factors_short.weight", pairs));
  }
  for (const kernels::RopeParams& rope : config.ropes) {
    SLUICE_TRY_VOID(check_factors("of the frequencies", rope.freq_factors));
  }
  SLUICE_TRY_VOID(check_factors("for long contexts", config.long_rope.long_factors));
  SLUICE_TRY_VOID(check_factors("for short contexts", config.long_rope.short_factors));
  auto model = std::make_unique<DecoderModel>(std::move(config), options.max_model_len);
  SLUICE_TRY_VOID(model->load(options, weights));
  return model;
}

}  // namespace sluice
