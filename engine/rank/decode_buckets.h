// SPDX-License-Identifier: Apache-2.0
// Pads steps in which every row chooses a token to one of a few sizes, so that the layers of such a
// step can be recorded once per size and replayed. Each row counts as a request of one token:
// drafts are rows with the block table of their request. A padding row belongs to no request, has
// token 0 and a negative slot: it costs its share of the products and writes no KV. Drafts of a
// model with states are no rows of their own: steps with them have no bucket. Used on the thread
// that runs the steps.
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
  // Rows per bucket, ascending: the --cuda-graph-sizes up to `max_rows`, the most rows of a step
  // that choose a token. A single value gives the largest size (none: 512), as in vLLM: 1, 2, 4,
  // then multiples of 8 up to 64 and of 64, and the lesser of it and `max_rows`. Empty with
  // --enforce-eager.
  static std::vector<int32_t> sizes_of(const Config& config, int32_t max_rows);

  DecodeBuckets(std::vector<int32_t> sizes, size_t num_kv_groups, bool has_states = false);

  [[nodiscard]] std::span<const int32_t> sizes() const { return sizes_; }

  // Returns the smallest bucket for this step; none when some row chooses no token, the step has
  // more rows than the largest bucket, or states take back or again some of them.
  [[nodiscard]] std::optional<size_t> find(const ForwardBatch& batch) const;

  // Returns the step padded to the bucket's number of rows, which must be at least its own. Block
  // tables of padding rows are not read. Valid until the next call.
  ForwardBatch pad(const ForwardBatch& batch, size_t bucket);

 private:
  void split(const ForwardBatch& batch, ForwardBatch& result);

  std::vector<int32_t> sizes_;
  bool has_states_;
  std::vector<TokenId> token_ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> query_start_loc_;
  std::vector<int32_t> seq_lens_;
  std::vector<int32_t> logits_indices_;
  std::vector<kernels::FollowingRow> following_;
  std::vector<std::vector<int64_t>> slot_mapping_;  // by group
  std::vector<std::span<const int64_t>> slot_mapping_views_;
  std::vector<std::vector<int32_t>> block_tables_;  // by group; used with drafts
  std::vector<std::span<const int32_t>> block_table_views_;
};

}  // namespace sluice
