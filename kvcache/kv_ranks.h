// SPDX-License-Identifier: Apache-2.0
// The caches of a worker's ranks as the one cache that other workers see: a block has all KV heads
// of the model, and its bytes are in the order of kv_piece.h whichever rank has which head. So
// workers with different numbers of ranks exchange whole blocks, and neither asks how the other
// shares its heads out. Where there are fewer heads than ranks several ranks have the same one:
// what leaves is the lowest rank's, and what arrives goes to each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/kv_heads.h"
#include "kvcache/kv_storage.h"

namespace sluice {

// One thread at a time, which steps of any rank that use the same blocks are in order with.
class KvRanks {
 public:
  struct Rank {
    KvStorage* storage = nullptr;
    KvRange heads;  // of the model; each plane of the storage has as many
  };

  // The storages must outlive it. One rank has all heads, of planes of any shape.
  explicit KvRanks(KvStorage& only);
  // Several, in the host's memory, which share block ids and between them have heads 0 to before
  // `num_heads`.
  KvRanks(std::vector<Rank> ranks, int32_t num_heads);

  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(ranks_.size()); }

  // With the planes of the whole model.
  [[nodiscard]] std::span<const KvGroupSpec> groups() const { return groups_; }

  // The most KV heads that a rank has of any group.
  [[nodiscard]] int32_t max_heads_of_rank() const;

  // One block of a group: all layers, planes and heads.
  [[nodiscard]] int64_t block_bytes(int32_t group) const {
    return block_bytes_[static_cast<size_t>(group)];
  }

  // As KvStorage::add_spans() of a whole block.
  void add_spans(int32_t group,
                 BlockId block,
                 std::vector<std::span<const std::byte>>& spans) const;
  // block_bytes() bytes in that order, as KvStorage::copy_in().
  void copy_in(int32_t group, BlockId block, std::span<const std::byte> bytes) const;

  // Rank 0's; of a device's memory the only one.
  [[nodiscard]] KvStorage& first() const { return *ranks_.front().storage; }

 private:
  [[nodiscard]] KvPiece piece(int32_t group, BlockId block, const KvRange& heads) const;

  std::vector<Rank> ranks_;
  std::vector<KvGroupSpec> groups_;
  std::vector<int64_t> block_bytes_;   // by group
  std::vector<KvHeadSource> sources_;  // of all heads, where there are several ranks
};

}  // namespace sluice
