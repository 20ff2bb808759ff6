// SPDX-License-Identifier: Apache-2.0
// The attention half of a layer: q, k and v, their norms, rotation, the cache, scores, output.
#pragma once

#include <memory>
#include <span>

#include "engine/models/blocks.h"
#include "engine/models/halves.h"
#include "engine/models/model.h"
#include "engine/models/rank_share.h"

namespace sluice {

class AttentionMixer final : public Mixer {
 public:
  // `config` must outlive it.
  static Expected<std::unique_ptr<Mixer>> load(const ModelConfig& config,
                                               int32_t layer,
                                               int32_t activation_bits,
                                               WeightStore& weights);

  [[nodiscard]] KvGroupSpec group(DType dtype) const override {
    return attention_group(layer_, dtype);
  }

  [[nodiscard]] const Projection& input() const override { return qkv_; }

  [[nodiscard]] int64_t scratch_bytes(const StepBounds& bounds) const override;
  void bind(const StepBounds& bounds, std::span<std::byte> scratch) override;
  void forward(const ForwardContext& context,
               const LayerCache& cache,
               const kernels::RopeTable* rope,
               const LinearInput& in,
               const HalfOutput& out) const override;
  void read_ahead(const ForwardContext& context, const LayerCache& cache) const override;

 private:
  struct Buffers {
    float* gated_queries = nullptr;  // [tokens, heads * 2 * head_dim], as projected
    float* head_gates = nullptr;     // [tokens, heads of all ranks], likewise
    float* qkv = nullptr;            // [tokens, heads of q, k and v]
    float* attention = nullptr;      // [tokens, out_width()], with a gate twice as wide: it follows
    float* gated = nullptr;          // [tokens, padded out_width()] unquantized, if ranks share its
                                     // scale and there is a gate
    float* squares = nullptr;        // [tokens, heads + KV heads of all ranks], for norms of rows
    LinearInput out_in;
    RankParts parts;
    std::span<std::byte> workspace;
  };

  AttentionMixer(const ModelConfig& config, const LayerConfig& layer)
      : config_(config), layer_(layer) {}

  void separate_gates(WeightStore& weights);
  void share_gates(WeightStore& weights);
  Expected<void> load_norms(const std::string& prefix, WeightStore& weights);
  Expected<DeviceFloats> load_head_norms(const std::string& stem,
                                         int64_t heads,
                                         const Portion& own,
                                         WeightStore& weights) const;
  Expected<void> load_tensors(const std::string& prefix, int32_t bits, WeightStore& weights);
  Buffers layout(const StepBounds& bounds, Arena& arena) const;

  [[nodiscard]] int64_t q_width() const { return int64_t{layer_.num_heads} * layer_.head_dim; }

  // KV heads that it computes: none where it reads another layer's.
  [[nodiscard]] int32_t own_kv_heads() const {
    return layer_.kv_from < 0 ? layer_.num_kv_heads : 0;
  }

  [[nodiscard]] int64_t k_width() const { return int64_t{own_kv_heads()} * layer_.head_dim; }

  [[nodiscard]] int64_t v_width() const { return int64_t{own_kv_heads()} * layer_.value_width(); }

  // From one row of `qkv` to the next.
  [[nodiscard]] int64_t qkv_stride() const { return q_width() + k_width() + v_width(); }

  // Elements of attention's output.
  [[nodiscard]] int64_t out_width() const {
    return int64_t{layer_.num_heads} * layer_.value_width();
  }

  // From one row of `attention` to the next.
  [[nodiscard]] int64_t attention_stride() const {
    return (config_.attention_gate ? 2 : 1) * out_width();
  }

  [[nodiscard]] int64_t whole_heads() const {
    return whole_of(layer_.share.heads, layer_.num_heads);
  }

  [[nodiscard]] int64_t whole_kv_heads() const {
    return whole_of(layer_.share.kv_heads, layer_.num_kv_heads);
  }

  // Adds the norms of q and k's heads before rotation, if there are any.
  void add_head_norms(const ForwardContext& context, kernels::RowSteps& steps) const;
  // Adds sums of squares, or the norms that they lead to, for norms of all heads as one.
  void add_squares(const ForwardContext& context, kernels::RowSteps& steps) const;
  void add_row_norms(const ForwardContext& context,
                     std::span<const float* const> squares,
                     kernels::RowSteps& steps) const;
  // Places on either side of a row's own key that scores have a bias for.
  [[nodiscard]] int64_t place_reach() const { return align_up(config_.context_len, 16); }

  Expected<DeviceFloats> load_place_bias(WeightStore& weights) const;

  // Moves what was projected to where it is read: queries and gates, or gates alone.
  void select_gates(const ForwardContext& context) const;
  // Leaves q, normed and rotated, and writes K and V. False: a rank has failed.
  [[nodiscard]] bool project_qkv(const ForwardContext& context,
                                 const LayerCache& cache,
                                 const kernels::RopeTable* rope,
                                 const LinearInput& in) const;
  // Adds rotation, what follows it and the cache write.
  void add_rope(const ForwardContext& context,
                const LayerCache& cache,
                const kernels::RopeTable* rope,
                kernels::RowSteps& steps) const;
  void attend(const ForwardContext& context,
              const LayerCache& cache,
              const kernels::RowSteps& then) const;
  // Adds the output matrix's input, gated if there is a gate; quantized unless ranks share scales.
  void add_output_rows(const LinearInput& out_in, kernels::RowSteps& steps) const;

  const ModelConfig& config_;
  const LayerConfig& layer_;
  DeviceInts query_columns_;  // of gated_queries; empty: gates are apart or none
  DeviceInts gate_columns_;
  Projection qkv_;
  Projection out_;
  DeviceFloats q_norm_, k_norm_;
  DeviceFloats v_norm_;  // ones
  DeviceFloats sinks_;
  DeviceFloats slopes_;  // [heads], where scores fall with distance
  DeviceFloats place_bias_;  // [heads][2 * place_reach()], a row's own key in the middle
  Buffers buffers_;
};

}  // namespace sluice
