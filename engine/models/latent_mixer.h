// SPDX-License-Identifier: Apache-2.0
// The mixer of latent attention (kernels/latent_attention.h): queries and one latent a token, the
// latent's key matrix taken into the queries, attention over latents, values of each head, output.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/models/halves.h"
#include "engine/models/rank_share.h"
#include "kernels/latent_attention.h"

namespace sluice {

class LatentMixer final : public Mixer {
 public:
  // `config` must outlive it. kUnsupported: the device has no such kernel.
  static Expected<std::unique_ptr<Mixer>> load(const ModelConfig& config,
                                               int32_t layer,
                                               int32_t activation_bits,
                                               WeightStore& weights);

  [[nodiscard]] KvGroupSpec group(DType dtype) const override;

  [[nodiscard]] const Projection& input() const override { return in_; }

  [[nodiscard]] int64_t scratch_bytes(const StepBounds& bounds) const override;
  void bind(const StepBounds& bounds, std::span<std::byte> scratch) override;
  void forward(const ForwardContext& context,
               const LayerCache& cache,
               const kernels::RopeTable* rope,
               const LinearInput& in,
               const HalfOutput& out) const override;

  void read_ahead(const ForwardContext&, const LayerCache&) const override {}

 private:
  // An indexer's rows. The choice of keys lies at the beginning of the mixers' scratch memory,
  // where layers without an indexer find what the last one has chosen.
  struct IndexBuffers {
    kernels::ChosenKeys chosen;
    float* q = nullptr;        // [tokens, heads * dim]
    float* k = nullptr;        // [tokens, dim]
    float* weights = nullptr;  // [tokens, heads]
    std::span<std::byte> workspace;
  };

  // Rows by head are [heads][places], places being the tokens up to whole activation blocks.
  struct Buffers {
    float* compressed = nullptr;  // [tokens, q_rank]
    float* q = nullptr;       // [tokens, heads * (nope + rope)]; later [tokens, heads * value]
    float* kv = nullptr;      // [tokens, kv_rank + rope]
    float* query = nullptr;   // by head, [kv_rank + rope]; later values
    float* latent = nullptr;  // by head, first the unrotated queries, later latents
    kernels::ExpertRows heads;
    LinearInput compressed_in;
    LinearInput out_in;
    IndexBuffers index;
    RankParts parts;
    std::span<std::byte> workspace;
  };

  // One matrix of each head, for linear_experts.
  struct HeadMatrices {
    Projection projection;
    std::vector<kernels::ExpertMatrix> matrices;
  };

  LatentMixer(const ModelConfig& config, const LayerConfig& layer)
      : config_(config), latent_(config.latent), layer_(layer) {}

  Expected<void> load_tensors(const std::string& prefix, int32_t bits, WeightStore& weights);
  Expected<HeadMatrices> load_heads(const std::string& stem,
                                    int32_t n,
                                    int32_t k,
                                    WeightStore& weights) const;
  Expected<void> load_index_norm(const std::string& stem, WeightStore& weights);
  Buffers layout(const StepBounds& bounds, Arena& arena) const;
  void project_queries(const ForwardContext& context, const LinearInput& in) const;
  // Runs a matrix of each head over its rows x of k, which begin `stride` floats apart.
  void run_heads(const ForwardContext& context,
                 const HeadMatrices& heads,
                 int32_t k,
                 int64_t out_stride) const;
  [[nodiscard]] IndexBuffers layout_index(const StepBounds& bounds, Arena& arena) const;
  void choose_keys(const ForwardContext& context,
                   const LayerCache& cache,
                   const kernels::RopeTable& rope) const;
  void attend(const ForwardContext& context, const LayerCache& cache) const;

  [[nodiscard]] bool has_indexer() const { return layer_.key_choice == KeyChoice::kOwn; }

  [[nodiscard]] int32_t index_width() const { return latent_.index_heads * latent_.index_dim; }

  [[nodiscard]] int64_t whole_heads() const {
    return whole_of(layer_.share.heads, layer_.num_heads);
  }

  [[nodiscard]] int64_t q_width() const { return int64_t{layer_.num_heads} * layer_.head_dim; }

  [[nodiscard]] int64_t out_width() const {
    return int64_t{layer_.num_heads} * latent_.value_dim;
  }

  // Of a row of `query`.
  [[nodiscard]] int64_t query_width() const {
    return std::max(latent_.kv_rank + latent_.rope_dim, latent_.value_dim);
  }

  static int64_t places(int64_t tokens) { return align_up(tokens, kernels::kActivationRows); }

  const ModelConfig& config_;
  const LatentConfig& latent_;
  const LayerConfig& layer_;
  // Compressed or whole queries, then the latent and the shared key; key and weights of an indexer.
  Projection in_;
  Projection compressed_q_;  // from compressed queries, and an indexer's; empty: none
  HeadMatrices keys_;        // [kv_rank, nope] of each head
  HeadMatrices values_;      // [value, kv_rank] of each head
  Projection out_;
  DeviceFloats q_norm_, kv_norm_;
  DeviceFloats index_norm_, index_norm_bias_;
  Buffers buffers_;
};

}  // namespace sluice
