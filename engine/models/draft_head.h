// SPDX-License-Identifier: Apache-2.0
// What the draft heads of one decoder layer share (eagle.h, eagle3.h, mtp.h): a row is the next
// token's embedding beside a state of the previous token.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/models/blocks.h"
#include "engine/models/halves.h"
#include "engine/models/model_spec.h"
#include "engine/weights/weight_store.h"
#include "kernels/row_steps.h"

namespace sluice {

// Pieces of the arena, laid out once for the largest step.
struct HeadBuffers {
  float* both = nullptr;          // [tokens, 2 * hidden] embedding and state
  float* x = nullptr;             // [tokens, hidden] residual stream
  float* normed = nullptr;        // [tokens, hidden] what the output layer reads, if that is not x
  float* last = nullptr;          // [logits rows, hidden]
  int32_t* token_rows = nullptr;  // [tokens] 0, 1, 2, ...
  LinearInput fc_in;
  LinearInput attention_in;
  LinearInput mlp_in;
  float* plain = nullptr;  // [tokens, hidden up to a multiple of 32] what experts read beside it
  LinearInput logits_in;
  std::span<std::byte> mixer;  // scratch memory of the halves
  std::span<std::byte> ffn;
};

class DraftHead : public Model {
 public:
  DraftHead(ModelConfig config, int32_t max_model_len);

  [[nodiscard]] const ModelConfig& config() const final { return config_; }

  [[nodiscard]] std::vector<LayerGroup> layer_groups(DType dtype) const final;
  [[nodiscard]] int64_t arena_bytes(const StepBounds& bounds) const final;

  [[nodiscard]] int64_t max_part_bytes(const StepBounds&) const final { return 0; }

  void bind(const StepBounds& bounds, std::span<std::byte> buffer) final;

  [[nodiscard]] const float* states() const override { return buffers_.x; }

  [[nodiscard]] const float* taps() const final { return nullptr; }

  [[nodiscard]] const PackedWeight& embedding() const final { return *embedding_; }

  [[nodiscard]] const Projection& output() const final { return *output_; }

 protected:
  // Sets memory, rope, the embedding, and the target's output layer.
  Expected<void> load_ends(const ModelOptions& options, WeightStore& weights);
  // Takes the decoder layer but the norm of its attention half.
  Expected<void> load_layer(const ModelOptions& options, WeightStore& weights);
  [[nodiscard]] Expected<DeviceFloats> load_norm(const char* name, WeightStore& weights) const;

  virtual HeadBuffers layout(const StepBounds& bounds, Arena& arena) const;

  // Write a half of each row of `both`, which begins at `half`: tokens' embeddings, the states that
  // the context has, the half's own norm.
  void take_embedding(const ForwardContext& context, float* half);
  void take_state(const ForwardContext& context, float* half) const;
  void norm_half(const ForwardContext& context, const DeviceFloats& norm, float* half) const;

  [[nodiscard]] kernels::RmsNormArgs norm_of(const float* x,
                                             const DeviceFloats& norm,
                                             const kernels::Activations& out) const;
  // Adds the norm of x in each format that `next` needs.
  void add_norm_steps(const float* x,
                      const DeviceFloats& norm,
                      const Projection& next,
                      const LinearInput& out,
                      kernels::RowSteps& steps) const;

  // Runs the layer on attention_in, then `then` for each row of x.
  void run_layer(const ForwardContext& context, const kernels::RowSteps& then);

  // Copies these rows of x to `last`.
  void take_last(const ForwardContext& context, const float* x, std::span<const int32_t> rows);
  // Computes logits from logits_in.
  void write_logits(const ForwardContext& context, size_t num_rows, float* out) const;

  [[nodiscard]] int64_t padded_hidden() const { return align_up(config_.hidden, kQuantGroup); }

  [[nodiscard]] int64_t width_of_both() const { return 2 * int64_t{config_.hidden}; }

  [[nodiscard]] const Projection& attention_input() const { return mixer_->input(); }

  ModelConfig config_;
  Projection fc_;
  const Projection* output_ = nullptr;
  HeadBuffers buffers_;

 private:
  kernels::DeviceMemory* memory_ = nullptr;
  std::vector<kernels::RopeTable> ropes_;  // at most one
  Projection own_embedding_;               // empty: the target's is used
  const PackedWeight* embedding_ = nullptr;
  DeviceFloats mlp_norm_;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Ffn> ffn_;
};

// Loads a projection of one part.
Expected<Projection> load_matrix(const Projection::Part& part,
                                 int64_t k,
                                 const ModelOptions& options,
                                 WeightStore& weights);

// ModelSpec::configure of a head with a checkpoint of its own. kDataLoss: not one layer.
Expected<void> configure_head(const Checkpoint& checkpoint, ModelConfig& config);

// ModelSpec::build of a head.
template <typename Head>
Expected<std::unique_ptr<Model>> build_head(ModelConfig config,
                                            const ModelOptions& options,
                                            WeightStore& weights) {
  auto model = std::make_unique<Head>(std::move(config), options.max_model_len);
  SLUICE_TRY_VOID(model->load(options, weights));
  return model;
}

}  // namespace sluice
