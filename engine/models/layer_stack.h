// SPDX-License-Identifier: Apache-2.0
// The layers of a decoder, or of one of its stages: their memory, and what each of them does to the
// residual stream in a step. A layer is a mixer and a feed-forward half, or one of both:
//
//   stream += norm(mixer(norm(stream)));  stream += norm(ffn(norm(stream)));  stream *= scale
//
// with the norms and the scale that a family has, or with both halves reading the same stream. What
// follows a half row by row, up to the input of the next one, is RowSteps that the half runs when
// it has a row.
#pragma once

#include <span>
#include <vector>

#include "engine/models/decoder_layer.h"
#include "engine/models/layer_inputs.h"
#include "engine/models/model_spec.h"
#include "kernels/row_steps.h"

namespace sluice {

class LayerStack {
 public:
  // `config` must outlive it.
  LayerStack(const ModelConfig& config, int32_t max_model_len);

  Expected<void> load(const ModelOptions& options, WeightStore& weights);

  // Returns what Model::layer_groups() does.
  [[nodiscard]] std::vector<LayerGroup> groups(DType dtype) const;

  // Floats of the largest part that a rank of a layer sends.
  [[nodiscard]] int64_t max_sent_floats(const StepBounds& bounds) const;

  // Pieces of the arena, laid out once for the largest step; bind() uses what layout() returned.
  struct Buffers {
    float* x = nullptr;       // [tokens, hidden] residual stream
    float* half = nullptr;    // [tokens, hidden] a half's output before it is added
    float* normed = nullptr;  // [tokens, padded hidden] what experts read
    LinearInput hidden_in;
    std::span<std::byte> mixers;  // scratch memory of any mixer, and of any feed-forward half
    std::span<std::byte> ffns;
    std::span<std::byte> layer_inputs;
  };

  Buffers layout(const StepBounds& bounds, Arena& arena) const;
  void bind(const StepBounds& bounds, const Buffers& buffers);

  // The residual stream, [tokens, hidden].
  [[nodiscard]] float* stream() const { return buffers_.x; }

  // Rows that are free until run(), [tokens, hidden], in a model with learned positions.
  [[nodiscard]] float* spare() const { return buffers_.half; }

  // Begins a step, in front of its first launch: tables that grow with the longest sequence are
  // copied, which a kernel that overlaps the launch in front of it does not wait for.
  void prepare(const ForwardContext& context);

  // Runs the layers over the stream, once prepare() has been called. `output` keeps the inputs that
  // a head reads.
  void run(const ForwardContext& context, const OutputLayer& output);

 private:
  // This stage's layers.
  [[nodiscard]] std::span<const DecoderLayer> own() const {
    return std::span(layers_).subspan(
        static_cast<size_t>(config_.first_layer()),
        static_cast<size_t>(config_.end_layer() - config_.first_layer()));
  }

  [[nodiscard]] bool adds_directly() const;
  [[nodiscard]] bool alternates_scratch() const;

  [[nodiscard]] int64_t padded_hidden() const { return align_up(config_.hidden, kQuantGroup); }

  [[nodiscard]] HalfOutput half_output(const kernels::RowSteps& then) const;
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

  const ModelConfig& config_;
  std::vector<kernels::RopeTable> ropes_;
  LayerInputs layer_inputs_;
  std::vector<DecoderLayer> layers_;  // of other stages mixers alone, without data
  Buffers buffers_;
};

}  // namespace sluice
