// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism inside a layer. Matrices that read the residual stream are shared out by rows:
// whole heads, the same columns of gate and up, whole tiles of the vocabulary. Those that write it
// are shared out by columns of the 8 segments (kernels/gemm.h), and their parts join to the bits of
// the whole layer. So the heads and the feed-forward columns of a rank are those of its segments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/status.h"
#include "engine/models/blocks.h"
#include "engine/models/model.h"

namespace sluice {

// The model that rank `rank` of `size` runs. kUnsupported: what does not divide, and norms of whole
// rows of q and k, which there is no sharing for.
Expected<ModelConfig> share_of(const ModelConfig& whole, int32_t rank, int32_t size);

// Rows of the output layer: whole tiles.
Portion vocab_share(int32_t vocab_size, int32_t rank, int32_t size);

// The rows of things that have `width` each.
Portion rows_of(const Portion& portion, int32_t width);

// The length of the whole, of which a rank has `own`.
inline int64_t whole_of(const Portion& portion, int32_t own) {
  return portion.whole > 0 ? portion.whole : own;
}

// What a rank gives the others at the end of a half layer. Two halves in turn have one each.
struct RankParts {
  RankParts() = default;
  RankParts(const ModelConfig& config, int64_t max_rows, Arena& arena);

  float* sums = nullptr;          // [rows, hidden]
  int32_t* magnitudes = nullptr;  // [rows]
};

// The same rows of every rank's sums; none where a rank failed.
struct GatheredSums {
  std::array<const float*, kernels::kSegments> parts{};
  size_t count = 0;

  [[nodiscard]] std::span<const float* const> all() const { return std::span(parts).first(count); }
};

// Of the first `num_rows` rows of this rank's sums.
GatheredSums gather_sums(const ForwardContext& context,
                         const RankParts& parts,
                         int64_t num_rows,
                         int64_t width);

// As project(), for one that may be shared out by columns: of its only part.
void project_to_stream(const ForwardContext& context,
                       const Projection& projection,
                       const LinearInput& input,
                       const RankParts& parts,
                       ProjectionOutput output,
                       kernels::Epilogue epilogue,
                       const kernels::RowSteps& then);

// Whether rows must meet those of the other ranks before they are quantized for `projection`: their
// scale is that of all columns.
bool has_shared_scales(const Projection& projection);

// Quantizes rows of such a projection.
void quantize_with_shared_scales(const ForwardContext& context,
                                 const Projection& projection,
                                 const LinearInput& input,
                                 const RankParts& parts,
                                 const float* x,
                                 int64_t x_stride);

}  // namespace sluice
