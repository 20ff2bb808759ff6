// SPDX-License-Identifier: Apache-2.0
// Presents the caches of a worker's ranks as one cache to other workers: a block has all heads of
// the model, and its bytes are in the order of kv_piece.h whichever rank has which head. So workers
// with different numbers of ranks exchange whole blocks, and neither asks how the other divides its
// heads. Where several ranks have the same head, the lowest rank's copy is sent, and an arriving
// one is written to each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/kv_heads.h"
#include "kvcache/store/kv_storage.h"

namespace sluice {

// Used by one thread at a time, ordered with the steps of any rank that use the same blocks.
class KvRanks {
 public:
  struct Rank {
    KvStorage* storage = nullptr;
    // By group, then by copied plane: the heads of the storage's planes.
    std::vector<std::vector<KvPlaneShare>> shares = {};
  };

  // One rank with all heads. The storages must outlive this object.
  explicit KvRanks(KvStorage& only);
  // Several ranks in host memory that share block ids and together have all heads of each plane.
  explicit KvRanks(std::vector<Rank> ranks);

  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(ranks_.size()); }

  // The groups with the copied planes of the whole model.
  [[nodiscard]] std::span<const KvGroupSpec> groups() const { return groups_; }

  // The most KV heads that a rank has in any group.
  [[nodiscard]] int32_t max_heads_of_rank() const;

  // The bytes of one block of a group: all layers, copied planes and heads.
  [[nodiscard]] int64_t block_bytes(int32_t group) const {
    return block_bytes_[static_cast<size_t>(group)];
  }

  // Appends the spans of a whole block, like KvStorage::add_spans().
  void add_spans(int32_t group,
                 BlockId block,
                 std::vector<std::span<const std::byte>>& spans) const;
  // Copies block_bytes() bytes in, in that order, like KvStorage::copy_in().
  void copy_in(int32_t group, BlockId block, std::span<const std::byte> bytes) const;

  // The storage of rank 0; device memory has no other rank.
  [[nodiscard]] KvStorage& first() const { return *ranks_.front().storage; }

 private:
  // The spans of a whole block on a rank, by layer and copied plane.
  [[nodiscard]] std::vector<std::span<std::byte>> spans_of(const Rank& rank,
                                                           int32_t group,
                                                           BlockId block) const;
  void add_group(size_t group);

  std::vector<Rank> ranks_;
  std::vector<KvGroupSpec> groups_;
  std::vector<int64_t> block_bytes_;  // by group
  // By group and copied plane, the sources of all heads, where there are several ranks.
  std::vector<std::vector<std::vector<KvHeadSource>>> sources_;
};

}  // namespace sluice
