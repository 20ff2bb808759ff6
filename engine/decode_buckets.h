// SPDX-License-Identifier: Apache-2.0
// Steps in which a token is chosen behind every row, padded to one of a few sizes, so that the
// layers of such a step can be recorded once for each size and replayed. Each row is a request of
// one token there: drafts are rows with the block table of their request. A padding row belongs to
// no request, has token 0 and a slot below 0: it costs its share of the products, and writes no KV.
// By the thread that runs the steps.
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
  // Rows of a bucket, ascending: those of --cuda-graph-sizes that are at most `max_rows`, which is
  // how many a token is chosen behind in a step. One size, or none for 512, is the largest, as in
  // vLLM: 1, 2, 4, then multiples of 8 up to 64 and of 64, and the lesser of it and `max_rows`.
  // None with --enforce-eager.
  static std::vector<int32_t> sizes_of(const Config& config, int32_t max_rows);

  DecodeBuckets(std::vector<int32_t> sizes, size_t num_kv_groups);

  [[nodiscard]] std::span<const int32_t> sizes() const { return sizes_; }

  // The smallest bucket for this step; none: behind some row no token is chosen, or they are more
  // than the largest bucket has rows.
  [[nodiscard]] std::optional<size_t> find(const ForwardBatch& batch) const;

  // The step with as many requests as the bucket has rows; no more rows than that to begin with.
  // Block tables of padding rows are not read. Valid until the next call.
  ForwardBatch pad(const ForwardBatch& batch, size_t bucket);

 private:
  void split(const ForwardBatch& batch, ForwardBatch& result);

  std::vector<int32_t> sizes_;
  std::vector<TokenId> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> query_start_loc_;
  std::vector<int32_t> seq_lens_;
  std::vector<int32_t> logits_indices_;
  std::vector<kernels::FollowingRow> following_;
  std::vector<std::vector<int64_t>> slot_mapping_;  // by group
  std::vector<std::span<const int64_t>> slot_mapping_views_;
  std::vector<std::vector<int32_t>> block_tables_;  // by group, of steps with drafts
  std::vector<std::span<const int32_t>> block_table_views_;
};

}  // namespace sluice
