// SPDX-License-Identifier: Apache-2.0
#include "engine/models/layer_stack.h"

#include <algorithm>
#include <array>
#include <ranges>

#include "engine/models/load_halves.h"
#include "engine/models/rope_tables.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {

LayerStack::LayerStack(const ModelConfig& config, int32_t max_model_len)
    : config_(config), ropes_(rope_tables(config, max_model_len)), layer_inputs_(config) {}

// Mixers of other stages are there without data: the groups of a model are those of all.
Expected<void> LayerStack::load(const ModelOptions& options, WeightStore& weights) {
  const int32_t bits = options.activation_bits;
  for (kernels::RopeTable& rope : ropes_) SLUICE_TRY_VOID(rope.place_on(*options.memory));
  if (config_.stage.is_first()) SLUICE_TRY_VOID(layer_inputs_.load(bits, weights));
  WeightStore elsewhere = weights.without_data();
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    if (config_.has_layer(i)) {
      SLUICE_TRY(layers_.emplace_back(), load_decoder_layer(config_, i, bits, weights));
    } else {
      SLUICE_TRY(layers_.emplace_back().mixer, load_mixer(config_, i, bits, elsewhere));
    }
  }
  return {};
}

// --- Memory ----------------------------------------------------------------------------------

std::vector<LayerGroup> LayerStack::groups(DType dtype) const {
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
    const Mixer* const mixer = layers_[static_cast<size_t>(i)].mixer.get();
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

int64_t LayerStack::max_sent_floats(const StepBounds& bounds) const {
  int64_t floats = int64_t{bounds.max_tokens} * std::max(config_.hidden, config_.mamba.num_heads);
  for (const DecoderLayer& layer : layers_) {
    if (layer.ffn == nullptr) continue;
    floats = std::max(floats, layer.ffn->max_sent_rows(bounds.max_tokens) * config_.hidden);
  }
  for (const LayerConfig& layer : config_.layers) {  // for norms of rows
    const int64_t heads = int64_t{layer.share.heads.whole} + layer.share.kv_heads.whole;
    floats = std::max(floats, bounds.max_tokens * heads);
  }
  return floats;
}

// Whether a half writes to the residual stream, because its output is not processed first.
bool LayerStack::adds_directly() const {
  return config_.norm_placement == NormPlacement::kBefore && config_.residual_scale == 1 &&
         !config_.parallel_halves &&
         std::ranges::none_of(config_.layers, &LayerConfig::norms_outputs);
}

// Whether halves of one kind follow each other on several ranks: others still read a half's part
// while the next one runs, which must have scratch memory of its own.
bool LayerStack::alternates_scratch() const {
  return config_.share.size > 1 && std::ranges::any_of(own(), [](const DecoderLayer& layer) {
           return layer.mixer == nullptr || layer.ffn == nullptr;
         });
}

LayerStack::Buffers LayerStack::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  const auto mixers = own() | std::views::transform(&DecoderLayer::mixer);
  const auto ffns = own() | std::views::transform(&DecoderLayer::ffn);
  std::vector<const Projection*> from_hidden;
  for (const std::unique_ptr<Mixer>& mixer : mixers) {
    if (mixer != nullptr) from_hidden.push_back(&mixer->input());
  }
  for (const std::unique_ptr<Ffn>& ffn : ffns) {
    if (ffn != nullptr && ffn->input() != nullptr) from_hidden.push_back(ffn->input());
  }
  const bool needs_plain = std::ranges::any_of(
      ffns, [](const auto& ffn) { return ffn != nullptr && ffn->reads_plain(); });
  const bool has_spare = config_.stage.is_first() && config_.num_positions > 0;
  Buffers buffers;
  buffers.x = arena.take_floats(tokens * config_.hidden);
  if (!adds_directly() || has_spare) buffers.half = arena.take_floats(tokens * config_.hidden);
  if (needs_plain) buffers.normed = arena.take_floats(tokens * padded_hidden());
  buffers.hidden_in = LinearInput(from_hidden, bounds.max_tokens, arena);
  const auto take = [&arena](int64_t bytes) {
    return std::span(arena.take_bytes(bytes), static_cast<size_t>(bytes));
  };
  int64_t of_mixers = largest_scratch(mixers, bounds);
  int64_t of_ffns = largest_scratch(ffns, bounds);
  if (alternates_scratch()) of_mixers = of_ffns = std::max(of_mixers, of_ffns);
  buffers.mixers = take(of_mixers);
  buffers.ffns = take(of_ffns);
  buffers.layer_inputs = take(layer_inputs_.scratch_bytes(bounds));
  return buffers;
}

void LayerStack::bind(const StepBounds& bounds, const Buffers& buffers) {
  buffers_ = buffers;
  const std::array<std::span<std::byte>, 2> scratch = {buffers_.mixers, buffers_.ffns};
  const bool alternates = alternates_scratch();
  size_t num_halves = 0;
  for (const DecoderLayer& layer : own()) {
    if (layer.mixer != nullptr) {
      layer.mixer->bind(bounds, scratch[alternates ? num_halves++ % 2 : 0]);
    }
    if (layer.ffn != nullptr) layer.ffn->bind(bounds, scratch[alternates ? num_halves++ % 2 : 1]);
  }
  layer_inputs_.bind(bounds, buffers_.layer_inputs);
}

// --- A step ----------------------------------------------------------------------------------

void LayerStack::prepare(const ForwardContext& context) {
  for (kernels::RopeTable& rope : ropes_) rope.prepare(context.batch.max_seq_len);
}

void LayerStack::run(const ForwardContext& context, const OutputLayer& output) {
  buffers_.hidden_in.set_num_rows(static_cast<int32_t>(context.batch.token_ids.size()));
  if (!layer_inputs_.empty()) layer_inputs_.compute(context, buffers_.x);
  const auto begin = static_cast<size_t>(config_.first_layer());
  const auto end = static_cast<size_t>(config_.end_layer());
  kernels::RowSteps first;
  add_layer_input_steps(context, begin, first);
  kernels::run_row_steps(context.exec, first);
  // Another rank may still be reading this rank's parts from before a failure: keep them.
  for (size_t i = begin; i < end; ++i) {
    output.tap(context, buffers_.x, static_cast<int32_t>(i));
    if (layers_[i].mixer != nullptr) mix(context, i);
    if (context.has_failed()) return;
    if (i + 1 < end && layers_[i + 1].mixer != nullptr) {
      layers_[i + 1].mixer->read_ahead(context, context.caches[i + 1]);
    }
    if (layers_[i].ffn != nullptr) feed_forward(context, i);
    if (context.has_failed()) return;
  }
}

HalfOutput LayerStack::half_output(const kernels::RowSteps& then) const {
  const bool direct = adds_directly();
  return {{direct ? buffers_.x : buffers_.half, config_.hidden},
          direct ? kernels::Epilogue::kAdd : kernels::Epilogue::kStore,
          then};
}

// Reads hidden_in and leaves the input of the feed-forward half, or of the next layer.
void LayerStack::mix(const ForwardContext& context, size_t index) const {
  const int32_t rope = config_.layers[index].rope;
  const bool is_alone = layers_[index].ffn == nullptr;
  kernels::RowSteps then;
  // A parallel half reads the stream before this one's output is added.
  if (config_.parallel_halves) add_ffn_input_steps(context, index, then);
  add_half_steps(context, layers_[index].after_mixer, then);
  if (is_alone) {
    end_layer_steps(context, index, then);
  } else if (!config_.parallel_halves) {
    add_ffn_input_steps(context, index, then);
  }
  layers_[index].mixer->forward(context,
                                context.caches[index],
                                rope < 0 ? nullptr : &ropes_[static_cast<size_t>(rope)],
                                buffers_.hidden_in,
                                half_output(then));
}

// Leaves the input of the next layer.
void LayerStack::feed_forward(const ForwardContext& context, size_t index) const {
  kernels::RowSteps then;
  add_half_steps(context, layers_[index].after_ffn, then);
  if (layer_inputs_.empty()) {
    end_layer_steps(context, index, then);
  } else {
    layer_inputs_.add_input_steps(index, buffers_.x, then);
  }
  const FfnInput in = {.rows = buffers_.hidden_in,
                       .plain = buffers_.normed,
                       .stride = padded_hidden(),
                       .stream = buffers_.x};
  layers_[index].ffn->forward(context, in, half_output(then));
  if (layer_inputs_.empty()) return;
  kernels::RowSteps last;
  add_half_steps(context, {}, last);
  end_layer_steps(context, index, last);
  layer_inputs_.forward(context, index, {buffers_.half, config_.hidden}, last);
}

// Adds a half's output, normalized if there is a norm, to the residual stream.
void LayerStack::add_half_steps(const ForwardContext& context,
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
void LayerStack::add_layer_input_steps(const ForwardContext& context,
                                       size_t index,
                                       kernels::RowSteps& steps) const {
  if (static_cast<int32_t>(index) == config_.end_layer()) return;
  if (layers_[index].mixer == nullptr) return add_ffn_input_steps(context, index, steps);
  add_normed_rows(config_,
                  layers_[index].before_mixer,
                  layers_[index].mixer->input(),
                  buffers_.x,
                  buffers_.hidden_in,
                  steps);
}

// Scales the layer's output, if it has a scale, and prepares what reads it.
void LayerStack::end_layer_steps(const ForwardContext& context,
                                 size_t index,
                                 kernels::RowSteps& steps) const {
  if (config_.layer_scales) {
    steps.add(
        kernels::ScaleRowsArgs{.x = buffers_.x,
                               .x_stride = config_.hidden,
                               .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                               .n = config_.hidden,
                               .scale = layers_[index].scale});
  }
  add_layer_input_steps(context, index + 1, steps);
}

void LayerStack::add_ffn_input_steps(const ForwardContext& context,
                                     size_t index,
                                     kernels::RowSteps& steps) const {
  const DecoderLayer& layer = layers_[index];
  const bool has_mixers_norm =
      (config_.parallel_halves && !config_.parallel_norms) || layer.mixer == nullptr;
  const StreamNorm& norm = has_mixers_norm ? layer.before_mixer : layer.before_ffn;
  const Ffn& ffn = *layer.ffn;
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

}  // namespace sluice
