// SPDX-License-Identifier: Apache-2.0
#include "kvcache/store/kv_ranks.h"

#include <algorithm>
#include <utility>

#include "engine/core/status.h"

namespace sluice {

KvRanks::KvRanks(KvStorage& only)
    : ranks_({{.storage = &only, .heads = {}}}),
      groups_(only.groups().begin(), only.groups().end()) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    block_bytes_.push_back(only.block_bytes(static_cast<int32_t>(i)));
  }
}

KvRanks::KvRanks(std::vector<Rank> ranks, std::span<const int32_t> num_heads)
    : ranks_(std::move(ranks)) {
  groups_.assign(first().groups().begin(), first().groups().end());
  CHECK_EQ(groups_.size(), num_heads.size());
  for (size_t i = 0; i < groups_.size(); ++i) {
    std::vector<KvRange> heads;
    for (const Rank& rank : ranks_) {
      CHECK(rank.storage->memory().is_host());
      for (const KvPlane& plane : rank.storage->groups()[i].planes) {
        CHECK_EQ(plane.num_heads, rank.heads[i].count);
      }
      heads.push_back(rank.heads[i]);
    }
    auto sources = head_sources({.first = 0, .count = num_heads[i]}, heads);
    CHECK(sources.has_value());
    sources_.push_back(std::move(*sources));
    for (KvPlane& plane : groups_[i].planes) plane.num_heads = num_heads[i];
    block_bytes_.push_back(first().block_bytes(static_cast<int32_t>(i)) / heads.front().count *
                           num_heads[i]);
  }
}

int32_t KvRanks::max_heads_of_rank() const {
  int32_t most = 0;
  for (const Rank& rank : ranks_) {
    for (const KvGroupSpec& group : rank.storage->groups()) {
      for (const KvPlane& plane : group.planes) most = std::max(most, plane.num_heads);
    }
  }
  return most;
}

KvPiece KvRanks::piece(int32_t group, BlockId block, const KvRange& heads) const {
  const KvGroupSpec& shape = groups_[static_cast<size_t>(group)];
  return {.group = group,
          .block = block,
          .layers = {.first = 0, .count = shape.num_layers},
          .heads = heads};
}

void KvRanks::add_spans(int32_t group,
                        BlockId block,
                        std::vector<std::span<const std::byte>>& spans) const {
  if (ranks_.size() == 1) return first().add_spans(first().whole(group, block), spans);
  // `by_source` gets, source by source, a span for each layer and plane.
  std::vector<std::span<const std::byte>> by_source;
  const auto at = static_cast<size_t>(group);
  for (const KvHeadSource& source : sources_[at]) {
    const Rank& rank = ranks_[static_cast<size_t>(source.rank)];
    rank.storage->add_spans(piece(group, block, heads_in(rank.heads[at], source.heads)), by_source);
  }
  const size_t num_planes = by_source.size() / sources_[at].size();
  for (size_t plane = 0; plane < num_planes; ++plane) {
    for (size_t i = plane; i < by_source.size(); i += num_planes) spans.push_back(by_source[i]);
  }
}

void KvRanks::copy_in(int32_t group, BlockId block, std::span<const std::byte> bytes) const {
  CHECK_EQ(static_cast<int64_t>(bytes.size()), block_bytes(group));
  if (ranks_.size() == 1) return first().copy_in(first().whole(group, block), bytes);
  const auto at = static_cast<size_t>(group);
  const auto num_heads = static_cast<size_t>(sources_[at].back().heads.end());
  std::vector<std::span<std::byte>> planes;
  for (const Rank& rank : ranks_) {
    planes.clear();
    const KvRange& heads = rank.heads[at];
    const KvRange own = {.first = 0, .count = heads.count};
    rank.storage->add_spans(piece(group, block, own), planes);
    std::span<const std::byte> left = bytes;
    for (const std::span<std::byte> plane : planes) {
      const size_t head_bytes = plane.size() / static_cast<size_t>(heads.count);
      const std::byte* const from = left.data() + static_cast<size_t>(heads.first) * head_bytes;
      rank.storage->memory().upload(plane.data(), from, static_cast<int64_t>(plane.size()));
      left = left.subspan(num_heads * head_bytes);
    }
  }
}

}  // namespace sluice
