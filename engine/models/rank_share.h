// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism inside a layer. Matrices that read the residual stream are split by rows:
// whole heads, the same columns of gate and up, whole tiles of the vocabulary. Matrices that write
// it are split by columns of the 8 segments (kernels/gemm.h), and their parts add up to the bits of
// the whole layer. A rank's segments therefore determine its heads and feed-forward columns.
//
// Pipeline stages: each has the layers of a range, and rows of the residual stream go from stage to
// stage as they are. The first stage has the output layer beside the embedding, and gets from the
// last one only the rows that choose tokens, are scored or embedded. So rank 0 stays the one that
// listens, decides and chooses, with its paths of errors, a tied embedding is there once, and no
// logits cross a border. Stages that are processes work on several steps at a time: each runs them
// in order, and hands on their rows, or the last one those rows, without waiting for another stage.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/status.h"
#include "engine/models/blocks.h"
#include "engine/models/model.h"
#include "kvcache/kv_heads.h"

namespace sluice {

// Returns the model that rank `rank` of `size` runs. kUnsupported: sizes that do not divide.
Expected<ModelConfig> share_of(const ModelConfig& whole, int32_t rank, int32_t size);

// Gives a model, before share_of(), one stage's layers: as many as make the stages' matrices equal,
// of which the first one also has the output layer's. kUnsupported: fewer layers than stages, or
// layers that must be on one stage are not.
Expected<void> take_stage(ModelConfig& model, int32_t stage, int32_t count);

// Bytes of the largest piece that a stage passes to another one.
int64_t max_stage_part_bytes(const ModelConfig& config, const StepBounds& bounds);

// Hands rows of the stream from stage `from`, whose ranks compare them if they compare states, to
// stage `to`, whose ranks all have them then. All call it with as many. False: a rank has failed.
bool hand_rows(const ForwardContext& context,
               const ModelConfig& config,
               int32_t from,
               int32_t to,
               std::span<float> rows);

// A rank's heads of Mamba-2 layers, and the groups that they read.
struct MambaShare {
  Portion heads;
  Portion groups;
};

// Returns the share of a rank with these segments, which may be all. kUnsupported: sizes that do
// not divide.
Expected<MambaShare> mamba_share(const MambaConfig& mamba, const kernels::Segments& segments);

// Where a rank's heads of the copied planes (kv_group.h) of a layer's group lie among those of the
// model. `model` is the rank's own, of several.
std::vector<KvPlaneShare> plane_shares(const ModelConfig& model, const LayerGroup& group);

// A rank's rows of the output layer: whole tiles.
Portion vocab_share(int32_t vocab_size, int32_t rank, int32_t size);

// Converts a portion of things with `width` rows each to rows.
Portion rows_of(const Portion& portion, int32_t width);

// The whole length of which a rank has `own`.
inline int64_t whole_of(const Portion& portion, int32_t own) {
  return portion.whole > 0 ? portion.whole : own;
}

// A rank's portion, which without other ranks is all of `count` things.
inline Portion own_or_all(const Portion& portion, int32_t count) {
  return portion.whole > 0 ? portion : Portion{.first = 0, .count = count, .whole = count};
}

// A rank's contribution at the end of a half layer; consecutive halves use different ones.
struct RankParts {
  RankParts() = default;
  RankParts(const ModelConfig& config, int64_t max_rows, Arena& arena);

  float* sums = nullptr;          // [rows, hidden]
  int32_t* magnitudes = nullptr;  // [rows]
};

// Equal rows of all ranks' sums; none if a rank failed.
struct GatheredSums {
  std::array<const float*, kernels::kSegments> parts{};
  size_t count = 0;

  [[nodiscard]] std::span<const float* const> all() const { return std::span(parts).first(count); }
};

// Gathers the first `num_rows` rows of every rank's sums, of which `own` are this one's.
GatheredSums gather_sums(const ForwardContext& context,
                         const float* own,
                         int64_t num_rows,
                         int64_t width);

// Works like project() on the only part of a projection, which may be split by columns.
void project_to_stream(const ForwardContext& context,
                       const Projection& projection,
                       const LinearInput& input,
                       const RankParts& parts,
                       ProjectionOutput output,
                       kernels::Epilogue epilogue,
                       const kernels::RowSteps& then);

// Whether rows need a scale over all ranks' columns before they are quantized for `projection`.
bool has_shared_scales(const Projection& projection);

// Quantizes rows for such a projection.
void quantize_with_shared_scales(const ForwardContext& context,
                                 const Projection& projection,
                                 const LinearInput& input,
                                 const RankParts& parts,
                                 const float* x,
                                 int64_t x_stride);

}  // namespace sluice
