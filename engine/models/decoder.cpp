// SPDX-License-Identifier: Apache-2.0
#include "engine/models/decoder.h"

#include <algorithm>
#include <array>
#include <span>

#include "engine/models/blocks.h"
#include "engine/models/halves.h"
#include "engine/models/layer_inputs.h"
#include "engine/models/load_halves.h"
#include "engine/models/output_layer.h"
#include "engine/models/rank_share.h"
#include "engine/models/rope_tables.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {
namespace {

// The norms of one layer; norms that its placement lacks are empty.
struct LayerNorms {
  StreamNorm before_mixer;  // in a layer of parallel halves, of both; in one of one half, its own
  StreamNorm after_mixer;
  StreamNorm before_ffn;
  StreamNorm after_ffn;
};

// Pieces of the arena, laid out once for the largest step.
struct DecoderBuffers {
  float* x = nullptr;       // [tokens, hidden] residual stream
  // [tokens, hidden] a half's output before it is added; first the rows of positions
  float* half = nullptr;
  float* normed = nullptr;  // [tokens, padded hidden] what experts read
  LinearInput hidden_in;
  OutputLayer::Buffers output;
  std::span<std::byte> mixers;  // scratch memory of any mixer, and of any feed-forward half
  std::span<std::byte> ffns;
  std::span<std::byte> layer_inputs;
};

class DecoderModel final : public Model {
 public:
  DecoderModel(ModelConfig config, int32_t max_model_len)
      : config_(std::move(config)),
        ropes_(rope_tables(config_, max_model_len)),
        output_(config_),
        layer_inputs_(config_) {}

  Expected<void> load(const ModelOptions& options, WeightStore& weights);

  [[nodiscard]] const ModelConfig& config() const override { return config_; }

  [[nodiscard]] std::vector<LayerGroup> layer_groups(DType dtype) const override;

  [[nodiscard]] int64_t arena_bytes(const StepBounds& bounds) const override {
    Arena arena;
    layout(bounds, arena);
    return arena.used();
  }

  void bind(const StepBounds& bounds, std::span<std::byte> buffer) override;
  void forward(const ForwardContext& context) override;

  void logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) override {
    output_.logits(context, buffers_.x, rows, out);
  }

  const float* embed(const ForwardContext& context, std::span<const int32_t> rows) override {
    return output_.embed(context, buffers_.x, rows);
  }

  [[nodiscard]] const float* states() const override { return buffers_.x; }

  [[nodiscard]] const float* taps() const override { return output_.taps(); }

  [[nodiscard]] const PackedWeight& embedding() const override { return embedding_.weight(0); }

  [[nodiscard]] const Projection& output() const override { return output_.matrix(); }

  [[nodiscard]] int64_t max_part_bytes(const StepBounds& bounds) const override;

 private:
  Expected<void> load_ends(const ModelOptions& options, WeightStore& weights);
  Expected<void> load_layer(int32_t index, int32_t bits, WeightStore& weights);
  Expected<void> load_norms(int32_t index, WeightStore& weights);
  Expected<void> load_positions(WeightStore& weights);
  DecoderBuffers layout(const StepBounds& bounds, Arena& arena) const;

  // The halves of this stage's layers.
  template <typename Halves>
  [[nodiscard]] auto own(const Halves& halves) const {
    return std::span(halves).subspan(
        static_cast<size_t>(config_.first_layer()),
        static_cast<size_t>(config_.end_layer() - config_.first_layer()));
  }

  // A half writes directly to the residual stream unless its output is processed first.
  [[nodiscard]] bool adds_directly() const {
    return config_.norm_placement == NormPlacement::kBefore && config_.residual_scale == 1 &&
           !config_.parallel_halves &&
           std::ranges::none_of(config_.layers, &LayerConfig::norms_outputs);
  }

  [[nodiscard]] int64_t padded_hidden() const { return align_up(config_.hidden, kQuantGroup); }

  [[nodiscard]] HalfOutput half_output(const kernels::RowSteps& then) const {
    const bool direct = adds_directly();
    return {{direct ? buffers_.x : buffers_.half, config_.hidden},
            direct ? kernels::Epilogue::kAdd : kernels::Epilogue::kStore,
            then};
  }

  // Whether halves of one kind follow each other on several ranks: others still read a half's part
  // while the next one runs, which must have scratch memory of its own.
  [[nodiscard]] bool alternates_scratch() const {
    const auto is_none = [](const auto& half) { return half == nullptr; };
    return config_.share.size > 1 &&
           (std::ranges::any_of(own(mixers_), is_none) || std::ranges::any_of(own(ffns_), is_none));
  }

  void take_embeddings(const ForwardContext& context) const;
  bool cross_borders(const ForwardContext& context, int32_t first, int32_t end) const;
  void run_layers(const ForwardContext& context) const;
  void add_half_steps(const ForwardContext& context,
                      const StreamNorm& norm,
                      kernels::RowSteps& steps) const;
  void add_layer_input_steps(const ForwardContext& context,
                             size_t index,
                             kernels::RowSteps& steps) const;
  void end_layer_steps(const ForwardContext& context, size_t index, kernels::RowSteps& steps) const;
  void add_ffn_input_steps(const ForwardContext& context,
                           size_t index,
                           kernels::RowSteps& steps) const;
  void mix(const ForwardContext& context, size_t index) const;
  void feed_forward(const ForwardContext& context, size_t index) const;

  ModelConfig config_;
  std::vector<kernels::RopeTable> ropes_;
  Projection embedding_;
  DeviceFloats positions_;  // [positions, hidden], learned; empty: none
  StreamNorm embedding_norm_;  // empty: none
  OutputLayer output_;
  LayerInputs layer_inputs_;
  std::vector<float> layer_scales_;  // by layer; empty: none
  std::vector<LayerNorms> norms_;    // by layer, as the two below, null where a layer lacks a half
  std::vector<std::unique_ptr<Mixer>> mixers_;
  std::vector<std::unique_ptr<Ffn>> ffns_;
  DecoderBuffers buffers_;
};

// --- Loading ---------------------------------------------------------------------------------

Expected<void> DecoderModel::load_norms(int32_t index, WeightStore& weights) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const auto load = [&](const char* name) {
    return load_stream_norm(config_, prefix + name, weights);
  };
  const bool is_after = config_.layers[static_cast<size_t>(index)].norms_outputs;
  const NormPlacement placement = is_after ? NormPlacement::kAfter : config_.norm_placement;
  LayerNorms norms;
  if (placement != NormPlacement::kAfter) {
    SLUICE_TRY(norms.before_mixer, load("attn_norm"));
  }
  const bool are_two = mixers_.back() != nullptr && ffns_.back() != nullptr;
  const bool share_one = config_.parallel_halves && !config_.parallel_norms;
  if (weights.has(prefix + "attn_norm_2.weight")) {  // Falcon's, beside that of the other half
    norms.before_ffn = std::move(norms.before_mixer);
    SLUICE_TRY(norms.before_mixer, load("attn_norm_2"));
  } else if (placement != NormPlacement::kAfter && !share_one && are_two) {
    SLUICE_TRY(norms.before_ffn, load("ffn_norm"));
  }
  if (placement != NormPlacement::kBefore) {
    // transformers writes all layers' names of OLMo-Hybrid as those of delta layers.
    const bool has_other_name = is_after && !weights.has(prefix + "post_attention_norm.weight");
    SLUICE_TRY(norms.after_mixer, load(has_other_name ? "ffn_norm" : "post_attention_norm"));
    SLUICE_TRY(norms.after_ffn, load("post_ffw_norm"));
  }
  norms_.push_back(std::move(norms));
  return {};
}

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
  SLUICE_TRY_VOID(output_.load(embedding_, options, weights));
  return layer_inputs_.load(bits, weights);
}

Expected<void> DecoderModel::load_layer(int32_t index, int32_t bits, WeightStore& weights) {
  SLUICE_TRY(std::unique_ptr<Mixer> mixer, load_mixer(config_, index, bits, weights));
  mixers_.push_back(std::move(mixer));
  SLUICE_TRY(std::unique_ptr<Ffn> ffn, load_ffn(config_, index, bits, weights));
  ffns_.push_back(std::move(ffn));
  SLUICE_TRY_VOID(load_norms(index, weights));
  if (!config_.layer_scales) return {};
  SLUICE_TRY(const std::vector<float> scale,
             weights.vector("blk." + std::to_string(index) + ".layer_output_scale.weight", 1));
  layer_scales_.push_back(scale.front());
  return {};
}

// Mixers of other stages are there without data: the groups of a model are those of all.
Expected<void> DecoderModel::load(const ModelOptions& options, WeightStore& weights) {
  for (kernels::RopeTable& rope : ropes_) SLUICE_TRY_VOID(rope.place_on(*options.memory));
  if (config_.stage.is_first()) SLUICE_TRY_VOID(load_ends(options, weights));
  WeightStore elsewhere = weights.without_data();
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    if (config_.has_layer(i)) {
      SLUICE_TRY_VOID(load_layer(i, options.activation_bits, weights));
      continue;
    }
    SLUICE_TRY(mixers_.emplace_back(), load_mixer(config_, i, options.activation_bits, elsewhere));
    ffns_.emplace_back();
    norms_.emplace_back();
    layer_scales_.resize(config_.layer_scales ? norms_.size() : 0);
  }
  return {};
}

// --- Memory ----------------------------------------------------------------------------------

std::vector<LayerGroup> DecoderModel::layer_groups(DType dtype) const {
  std::vector<LayerGroup> groups;
  const auto add = [&](const KvGroupSpec& spec, int32_t layer) {
    auto found = std::ranges::find_if(groups, [&spec](const LayerGroup& group) {
      return group.spec.kind == spec.kind && group.spec.window == spec.window &&
             group.spec.planes == spec.planes;
    });
    if (found == groups.end()) {
      groups.push_back({.spec = spec, .layers = {}});
      found = groups.end() - 1;
    }
    if (!config_.has_layer(layer % config_.num_layers)) return;
    found->layers.push_back(layer);
    ++found->spec.num_layers;
  };
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const Mixer* const mixer = mixers_[static_cast<size_t>(i)].get();
    if (mixer == nullptr || config_.layers[static_cast<size_t>(i)].kv_from >= 0) continue;
    add(mixer->group(dtype), i);
    if (mixer->beside() != nullptr) add(mixer->beside()->group(dtype), config_.num_layers + i);
  }
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const int32_t from = config_.layers[static_cast<size_t>(i)].kv_from;
    if (from < 0 || !config_.has_layer(i)) continue;
    const auto owner = std::ranges::find_if(groups, [from](const LayerGroup& group) {
      return std::ranges::find(group.layers, from) != group.layers.end();
    });
    owner->readers.emplace_back(i, from);
  }
  return groups;
}

int64_t DecoderModel::max_part_bytes(const StepBounds& bounds) const {
  if (config_.share.size == 1) return 0;
  int64_t floats = std::max(output_.max_sent_floats(bounds),
                            int64_t{bounds.max_tokens} * std::max(config_.hidden,
                                                                  config_.mamba.num_heads));
  // The first one of a stage gives the others what it has of another stage.
  if (config_.stage.count > 1) {
    floats = std::max(floats, int64_t{bounds.max_logits} * config_.hidden);
  }
  for (const std::unique_ptr<Ffn>& ffn : ffns_) {
    if (ffn == nullptr) continue;
    floats = std::max(floats, ffn->max_sent_rows(bounds.max_tokens) * config_.hidden);
  }
  for (const LayerConfig& layer : config_.layers) {  // for norms of rows
    const int64_t heads = int64_t{layer.share.heads.whole} + layer.share.kv_heads.whole;
    floats = std::max(floats, bounds.max_tokens * heads);
  }
  return floats * static_cast<int64_t>(sizeof(float));
}

DecoderBuffers DecoderModel::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  std::vector<const Projection*> from_hidden;
  for (const std::unique_ptr<Mixer>& mixer : own(mixers_)) {
    if (mixer != nullptr) from_hidden.push_back(&mixer->input());
  }
  for (const std::unique_ptr<Ffn>& ffn : own(ffns_)) {
    if (ffn != nullptr && ffn->input() != nullptr) from_hidden.push_back(ffn->input());
  }
  const bool needs_plain = std::ranges::any_of(
      own(ffns_), [](const auto& ffn) { return ffn != nullptr && ffn->reads_plain(); });
  DecoderBuffers buffers;
  buffers.x = arena.take_floats(tokens * config_.hidden);
  if (!adds_directly() || !positions_.empty()) {
    buffers.half = arena.take_floats(tokens * config_.hidden);
  }
  if (needs_plain) buffers.normed = arena.take_floats(tokens * padded_hidden());
  buffers.hidden_in = LinearInput(from_hidden, bounds.max_tokens, arena);
  buffers.output = output_.layout(bounds, arena);
  const auto take = [&arena](int64_t bytes) {
    return std::span(arena.take_bytes(bytes), static_cast<size_t>(bytes));
  };
  int64_t of_mixers = largest_scratch(own(mixers_), bounds);
  int64_t of_ffns = largest_scratch(own(ffns_), bounds);
  if (alternates_scratch()) of_mixers = of_ffns = std::max(of_mixers, of_ffns);
  buffers.mixers = take(of_mixers);
  buffers.ffns = take(of_ffns);
  buffers.layer_inputs = take(layer_inputs_.scratch_bytes(bounds));
  return buffers;
}

void DecoderModel::bind(const StepBounds& bounds, std::span<std::byte> buffer) {
  Arena arena(buffer);
  buffers_ = layout(bounds, arena);
  output_.bind(bounds, buffers_.output);
  const std::array<std::span<std::byte>, 2> scratch = {buffers_.mixers, buffers_.ffns};
  const bool alternates = alternates_scratch();
  size_t num_halves = 0;
  const auto mixers = own(mixers_);
  const auto ffns = own(ffns_);
  for (size_t i = 0; i < mixers.size(); ++i) {
    if (mixers[i] != nullptr) mixers[i]->bind(bounds, scratch[alternates ? num_halves++ % 2 : 0]);
    if (ffns[i] != nullptr) ffns[i]->bind(bounds, scratch[alternates ? num_halves++ % 2 : 1]);
  }
  layer_inputs_.bind(bounds, buffers_.layer_inputs);
}

// --- A step ----------------------------------------------------------------------------------

// Adds a half's output, normalized if there is a norm, to the residual stream.
void DecoderModel::add_half_steps(const ForwardContext& context,
                                  const StreamNorm& norm,
                                  kernels::RowSteps& steps) const {
  if (adds_directly()) return;
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  if (!norm.empty()) {
    steps.add(norm_in_place(config_, norm, {buffers_.half, config_.hidden}, num_tokens));
  }
  steps.add(kernels::AddRowsArgs{.x = buffers_.x,
                                 .x_stride = config_.hidden,
                                 .y = buffers_.half,
                                 .y_stride = config_.hidden,
                                 .num_rows = num_tokens,
                                 .n = config_.hidden,
                                 .scale = config_.residual_scale});
}

// Prepares the input of layer `index`; nothing behind the stage's last one.
void DecoderModel::add_layer_input_steps(const ForwardContext& context,
                                         size_t index,
                                         kernels::RowSteps& steps) const {
  if (static_cast<int32_t>(index) == config_.end_layer()) return;
  if (mixers_[index] == nullptr) return add_ffn_input_steps(context, index, steps);
  add_normed_rows(config_,
                  norms_[index].before_mixer,
                  mixers_[index]->input(),
                  buffers_.x,
                  buffers_.hidden_in,
                  steps);
}

// Scales the layer's output, if it has a scale, and prepares what reads it.
void DecoderModel::end_layer_steps(const ForwardContext& context,
                                   size_t index,
                                   kernels::RowSteps& steps) const {
  if (!layer_scales_.empty()) {
    steps.add(
        kernels::ScaleRowsArgs{.x = buffers_.x,
                               .x_stride = config_.hidden,
                               .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                               .n = config_.hidden,
                               .scale = layer_scales_[index]});
  }
  add_layer_input_steps(context, index + 1, steps);
}

void DecoderModel::add_ffn_input_steps(const ForwardContext& context,
                                       size_t index,
                                       kernels::RowSteps& steps) const {
  const LayerNorms& norms = norms_[index];
  const bool has_mixers_norm =
      (config_.parallel_halves && !config_.parallel_norms) || mixers_[index] == nullptr;
  const StreamNorm& norm = has_mixers_norm ? norms.before_mixer : norms.before_ffn;
  const Ffn& ffn = *ffns_[index];
  if (const Projection* next = ffn.input(); next != nullptr) {
    add_normed_rows(config_, norm, *next, buffers_.x, buffers_.hidden_in, steps);
  }
  if (!ffn.reads_plain()) return;
  const kernels::Activations plain = {
      .format = kernels::ActivationFormat::kFloat,
      .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
      .k = config_.hidden,
      .data = buffers_.normed};
  if (norm.empty()) {
    return steps.add(
        kernels::QuantizeArgs{.x = buffers_.x, .x_stride = config_.hidden, .out = plain});
  }
  steps.add(norm_to(config_, norm, buffers_.x, plain));
}

// Reads hidden_in and leaves the input of the feed-forward half, or of the next layer.
void DecoderModel::mix(const ForwardContext& context, size_t index) const {
  const int32_t rope = config_.layers[index].rope;
  const bool is_alone = ffns_[index] == nullptr;
  kernels::RowSteps then;
  // A parallel half reads the stream before this one's output is added.
  if (config_.parallel_halves) add_ffn_input_steps(context, index, then);
  add_half_steps(context, norms_[index].after_mixer, then);
  if (is_alone) {
    end_layer_steps(context, index, then);
  } else if (!config_.parallel_halves) {
    add_ffn_input_steps(context, index, then);
  }
  mixers_[index]->forward(context,
                          context.caches[index],
                          rope < 0 ? nullptr : &ropes_[static_cast<size_t>(rope)],
                          buffers_.hidden_in,
                          half_output(then));
}

// Leaves the input of the next layer.
void DecoderModel::feed_forward(const ForwardContext& context, size_t index) const {
  kernels::RowSteps then;
  add_half_steps(context, norms_[index].after_ffn, then);
  if (layer_inputs_.empty()) {
    end_layer_steps(context, index, then);
  } else {
    layer_inputs_.add_input_steps(index, buffers_.x, then);
  }
  const FfnInput in = {.rows = buffers_.hidden_in,
                       .plain = buffers_.normed,
                       .stride = padded_hidden(),
                       .stream = buffers_.x};
  ffns_[index]->forward(context, in, half_output(then));
  if (layer_inputs_.empty()) return;
  kernels::RowSteps last;
  add_half_steps(context, {}, last);
  end_layer_steps(context, index, last);
  layer_inputs_.forward(context, index, {buffers_.half, config_.hidden}, last);
}

void DecoderModel::take_embeddings(const ForwardContext& context) const {
  kernels::embedding(context.exec,
                     {.table = &embedding_.weight(0),
                      .token_ids = context.batch.token_ids,
                      .out = buffers_.x,
                      .out_stride = config_.hidden});
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  if (config_.embedding_scale != 1) {
    kernels::scale_rows(context.exec,
                        {.x = buffers_.x,
                         .x_stride = config_.hidden,
                         .num_rows = num_tokens,
                         .n = config_.hidden,
                         .scale = config_.embedding_scale});
  }
  if (!embedding_norm_.empty()) {
    const ProjectionOutput rows = {buffers_.x, config_.hidden};
    kernels::head_norm(context.exec, norm_in_place(config_, embedding_norm_, rows, num_tokens));
  }
  if (positions_.empty()) return;
  kernels::gather_rows(context.exec,
                       {.x = positions_.data(),
                        .x_stride = config_.hidden,
                        .n = config_.hidden,
                        .indices = context.batch.positions,
                        .out = buffers_.half,
                        .out_stride = config_.hidden});
  kernels::add_rows(context.exec,
                    {.x = buffers_.x,
                     .x_stride = config_.hidden,
                     .y = buffers_.half,
                     .y_stride = config_.hidden,
                     .num_rows = num_tokens,
                     .n = config_.hidden});
}

// Hands the residual stream over borders [first, end), of which border i is in front of stage i.
bool DecoderModel::cross_borders(const ForwardContext& context, int32_t first, int32_t end) const {
  const size_t floats = context.batch.token_ids.size() * static_cast<size_t>(config_.hidden);
  for (int32_t stage = first; stage < end; ++stage) {
    if (!hand_rows(context, config_, stage - 1, stage, {buffers_.x, floats})) return false;
  }
  return true;
}

void DecoderModel::forward(const ForwardContext& context) {
  for (kernels::RopeTable& rope : ropes_) rope.prepare(context.batch.max_seq_len);
  buffers_.hidden_in.set_num_rows(static_cast<int32_t>(context.batch.token_ids.size()));
  const StageShare& stage = config_.stage;
  if (stage.is_first()) take_embeddings(context);
  if (!cross_borders(context, 1, stage.stage + 1)) return;
  if (!layer_inputs_.empty()) layer_inputs_.compute(context, buffers_.x);
  run_layers(context);
  if (!cross_borders(context, stage.stage + 1, stage.count)) return;
  if (!context.has_failed()) output_.tap_output(context, buffers_.x);
}

void DecoderModel::run_layers(const ForwardContext& context) const {
  const auto begin = static_cast<size_t>(config_.first_layer());
  const auto end = static_cast<size_t>(config_.end_layer());
  kernels::RowSteps first;
  add_layer_input_steps(context, begin, first);
  kernels::run_row_steps(context.exec, first);
  // Another rank may still be reading this rank's parts from before a failure: keep them.
  for (size_t i = begin; i < end; ++i) {
    output_.tap(context, buffers_.x, static_cast<int32_t>(i));
    if (mixers_[i] != nullptr) mix(context, i);
    if (context.has_failed()) return;
    if (i + 1 < end && mixers_[i + 1] != nullptr) {
      mixers_[i + 1]->read_ahead(context, context.caches[i + 1]);
    }
    if (ffns_[i] != nullptr) feed_forward(context, i);
    if (context.has_failed()) return;
  }
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
