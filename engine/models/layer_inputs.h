// SPDX-License-Identifier: Apache-2.0
// What each layer adds to the stream from a table of its own: for each token and layer a row,
// joined with a product of the token's embedding before the first layer, and after the layer's
// halves gated by a value that reads the stream (Gemma 4).
#pragma once

#include <vector>

#include "engine/models/blocks.h"
#include "engine/models/output_layer.h"

namespace sluice {

class LayerInputs {
 public:
  // `config` must outlive it.
  explicit LayerInputs(const ModelConfig& config) : config_(config) {}

  // Takes its tensors; nothing where the model has none.
  Expected<void> load(int32_t activation_bits, WeightStore& weights);

  [[nodiscard]] bool empty() const { return layers_.empty(); }

  [[nodiscard]] int64_t scratch_bytes(const StepBounds& bounds) const;
  void bind(const StepBounds& bounds, std::span<std::byte> scratch);

  // Begins a step: computes the inputs of all layers; `x`: [tokens, hidden], the scaled embeddings.
  void compute(const ForwardContext& context, const float* x);

  // Adds the steps that give layer `index` its rows of the stream, which forward() reads.
  void add_input_steps(size_t index, const float* x, kernels::RowSteps& steps) const;

  // Stores what the layer adds, normed, then `then` for each row.
  void forward(const ForwardContext& context,
               size_t index,
               ProjectionOutput out,
               const kernels::RowSteps& then) const;

 private:
  struct Layer {
    Projection gate;        // [width, hidden]
    Projection projection;  // [hidden, width]
    StreamNorm norm;
  };

  struct Buffers {
    float* inputs = nullptr;      // [tokens, (layers + 1) * width] of all layers, then a gate
    float* table_rows = nullptr;  // [kPiece, layers * width]
    LinearInput embedding_in;
    LinearInput gate_in;
    LinearInput gated;
  };

  // Tokens whose rows of the table are read at once: they are wide.
  static constexpr int32_t kPiece = 256;

  Buffers layout(const StepBounds& bounds, Arena& arena) const;
  void add_table_rows(const ForwardContext& context) const;

  [[nodiscard]] int64_t width() const { return config_.layer_input_width; }

  [[nodiscard]] int64_t all_widths() const { return width() * config_.num_layers; }

  [[nodiscard]] int64_t stride() const { return all_widths() + width(); }

  const ModelConfig& config_;
  Projection table_;       // [vocabulary, layers * width]
  Projection projection_;  // [layers * width, hidden]
  DeviceFloats norm_;      // [width], of each layer's product
  std::vector<Layer> layers_;
  Buffers buffers_;
};

}  // namespace sluice
