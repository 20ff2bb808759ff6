// SPDX-License-Identifier: Apache-2.0
// Steps in which every request decodes one token, padded to one of a few sizes, so that the layers
// of such a step can be recorded once for each size and replayed. A padding row belongs to no
// request, has token 0 and a slot below 0: it costs its share of the products, and writes no KV. By
// the thread that runs the steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/config.h"
#include "engine/models/model.h"

namespace sluice {

class DecodeBuckets {
 public:
  // Rows of a bucket, ascending: those of --cuda-graph-sizes that are at most --max-num-seqs. One
  // size, or none for 512, is the largest, as in vLLM: 1, 2, 4, then multiples of 8 up to 64 and of
  // 64, and the lesser of it and --max-num-seqs. None with --enforce-eager.
  static std::vector<int32_t> sizes_of(const Config& config);

  DecodeBuckets(std::vector<int32_t> sizes, size_t num_kv_groups);

  [[nodiscard]] std::span<const int32_t> sizes() const { return sizes_; }

  // The smallest bucket for this step; none: a request has more tokens than one, or does not sample
  // after them, or they are more than the largest bucket has rows.
  [[nodiscard]] std::optional<size_t> find(const ForwardBatch& batch) const;

  // The step with as many rows as the bucket, all of which sample; no more than the bucket's to
  // begin with. Block tables stay as they are: those of padding rows are not read. Valid until the
  // next call.
  ForwardBatch pad(const ForwardBatch& batch, size_t bucket);

 private:
  std::vector<int32_t> sizes_;
  std::vector<TokenId> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> query_start_loc_;
  std::vector<int32_t> seq_lens_;
  std::vector<int32_t> logits_indices_;
  std::vector<std::vector<int64_t>> slot_mapping_;  // by group
  std::vector<std::span<const int64_t>> slot_mapping_views_;
};

}  // namespace sluice
