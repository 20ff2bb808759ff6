// SPDX-License-Identifier: Apache-2.0
// The attention half of a layer: q, k and v, their norms, rotation, the cache, scores, output.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/models/blocks.h"
#include "engine/models/model.h"
#include "engine/models/rank_share.h"

namespace sluice {

// Scratch memory that the attention halves of all layers share.
struct AttentionBuffers {
  float* qkv = nullptr;        // [tokens, (heads + 2 kv_heads) * head_dim]
  float* attention = nullptr;  // [tokens, heads * head_dim]
  LinearInput out_in;
  RankParts parts;
  std::span<std::byte> workspace;
};

class AttentionBlock {
 public:
  static Expected<AttentionBlock> load(const ModelConfig& config,
                                       int32_t layer,
                                       int32_t activation_bits,
                                       WeightStore& weights);
  static AttentionBuffers layout(const ModelConfig& config,
                                 std::span<const AttentionBlock> blocks,
                                 const StepBounds& bounds,
                                 Arena& arena);

  [[nodiscard]] const Projection& input() const { return qkv_; }

  // Computes out (+)= attention(input rows), then runs `then` for each row.
  void forward(const ForwardContext& context,
               const ModelConfig& config,
               const LayerCache& cache,
               const kernels::RopeTable* rope,
               const LinearInput& in,
               const AttentionBuffers& buffers,
               ProjectionOutput out,
               kernels::Epilogue epilogue,
               const kernels::RowSteps& then) const;

  // Makes linear layers before forward() prefetch what its attention reads.
  void read_ahead(const ForwardContext& context,
                  const ModelConfig& config,
                  const LayerCache& cache) const;

 private:
  // Adds the norms of q and k, if there are any.
  void add_norms(const ForwardContext& context,
                 const ModelConfig& config,
                 float* qkv,
                 kernels::RowSteps& steps) const;

  int32_t window_ = 0;
  Projection qkv_;
  Projection out_;
  DeviceFloats q_norm_, k_norm_;
  DeviceFloats sinks_;
};

}  // namespace sluice
