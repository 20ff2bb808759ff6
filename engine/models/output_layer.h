// SPDX-License-Identifier: Apache-2.0
// The end of a decoder: the last norm and the output layer, over chosen rows, and the rows that a
// draft head reads. With several stages the first one has it, for rows that come from the last.
#pragma once

#include <span>
#include <vector>

#include "engine/models/blocks.h"
#include "engine/models/model_spec.h"

namespace sluice {

// A norm of rows of the residual stream, as it applies.
struct StreamNorm {
  DeviceFloats weight;
  DeviceFloats bias;  // empty: none

  [[nodiscard]] bool empty() const { return weight.empty(); }
};

// The logit of tokens that are never chosen: its probability is 0, beside any other and whatever a
// request adds to it, multiplies it by or divides it by, and it is finite.
inline constexpr float kSuppressedLogit = -1e15F;

class OutputLayer {
 public:
  // `config` must outlive it.
  explicit OutputLayer(const ModelConfig& config) : config_(config) {}

  // Takes the last norm and, unless it is tied to `embedding`, the output matrix.
  Expected<void> load(const Projection& embedding,
                      const ModelOptions& options,
                      WeightStore& weights);

  [[nodiscard]] const Projection& matrix() const { return matrix_; }

  // The states that a head reads, [tokens][taps][hidden]; null: none.
  [[nodiscard]] const float* taps() const { return buffers_.taps; }

  // Lays the scratch memory out, or counts it; bind() uses what it returned.
  struct Buffers {
    float* last = nullptr;  // [logits rows, hidden]
    LinearInput in;
    float* logits = nullptr;         // [logits rows, widest share], if ranks share the vocabulary
    int32_t* logits_rows = nullptr;  // [logits rows] 0, 1, 2, ..., if anything reads them
    float* suppressed = nullptr;     // [longest run of suppressed tokens] kSuppressedLogit
    float* taps = nullptr;           // [tokens, taps * hidden], if a head reads them
    int32_t* token_rows = nullptr;   // [tokens] 0, 1, 2, ..., likewise
  };

  Buffers layout(const StepBounds& bounds, Arena& arena) const;
  void bind(const StepBounds& bounds, const Buffers& buffers);

  // Floats of the largest part that a rank sends.
  [[nodiscard]] int64_t max_sent_floats(const StepBounds& bounds) const {
    return bounds.max_logits * logits_width();
  }

  // `x`: [tokens, hidden], the layers' output. As Model::embed() and Model::logits().
  const float* embed(const ForwardContext& context,
                     const float* x,
                     std::span<const int32_t> rows) const;
  void logits(const ForwardContext& context,
              const float* x,
              std::span<const int32_t> rows,
              float* out);

  // Keep the rows of x, a layer's input or the last one's output, if a head reads them.
  void tap(const ForwardContext& context, const float* x, int32_t layer) const;
  void tap_output(const ForwardContext& context, const float* x) const;

 private:
  // Columns of logits on the rank with the most.
  [[nodiscard]] int64_t logits_width() const;
  // Whether this rank has the rows now.
  bool gather_last(const ForwardContext& context,
                   const float* x,
                   std::span<const int32_t> rows) const;
  void gather_logits(const ForwardContext& context, int32_t num_rows, float* out) const;
  void suppress(const ForwardContext& context, int32_t num_rows, float* out) const;

  const ModelConfig& config_;
  kernels::DeviceMemory* memory_ = nullptr;
  std::vector<int32_t> taps_;
  std::vector<Portion> suppressed_;  // runs of tokens
  Projection matrix_;
  StreamNorm norm_;
  Buffers buffers_;
};

// `stem`: the tensors' name without ".weight".
Expected<StreamNorm> load_stream_norm(const ModelConfig& config,
                                      const std::string& stem,
                                      WeightStore& weights);

// Returns the operators' arguments to norm rows of x [num_rows, hidden], in place or to `out`.
kernels::HeadNormArgs norm_in_place(const ModelConfig& config,
                                    const StreamNorm& norm,
                                    ProjectionOutput x,
                                    int64_t num_rows);
kernels::RmsNormArgs norm_to(const ModelConfig& config,
                             const StreamNorm& norm,
                             const float* x,
                             const kernels::Activations& out);

// Adds steps that give `next` the rows of x, normed unless `norm` is empty.
void add_normed_rows(const ModelConfig& config,
                     const StreamNorm& norm,
                     const Projection& next,
                     const float* x,
                     const LinearInput& out,
                     kernels::RowSteps& steps);

}  // namespace sluice
