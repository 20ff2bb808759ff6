// SPDX-License-Identifier: Apache-2.0
#include "kvcache/store/kv_ranks.h"

#include <algorithm>
#include <utility>

#include "engine/core/status.h"

namespace sluice {
namespace {

int32_t num_heads_of(const KvPlaneShare& share) {
  int32_t count = 0;
  for (const KvRange& range : share.heads) count += range.count;
  return count;
}

// The bytes of a head in a rank's part of a plane.
size_t head_bytes(std::span<const std::byte> plane, const KvPlaneShare& share) {
  return plane.size() / static_cast<size_t>(num_heads_of(share));
}

}  // namespace

KvRanks::KvRanks(KvStorage& only)
    : ranks_({{.storage = &only, .shares = {}}}),
      groups_(only.groups().begin(), only.groups().end()) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    std::erase_if(groups_[i].planes, [](const KvPlane& plane) { return !plane.is_copied; });
    block_bytes_.push_back(only.block_bytes(static_cast<int32_t>(i)));
  }
}

KvRanks::KvRanks(std::vector<Rank> ranks) : ranks_(std::move(ranks)) {
  groups_.assign(first().groups().begin(), first().groups().end());
  for (size_t i = 0; i < groups_.size(); ++i) add_group(i);
}

void KvRanks::add_group(size_t group) {
  std::vector<KvPlane>& planes = groups_[group].planes;
  std::erase_if(planes, [](const KvPlane& plane) { return !plane.is_copied; });
  const std::vector<std::span<std::byte>> spans =
      spans_of(ranks_.front(), static_cast<int32_t>(group), BlockId{0});
  std::vector<std::vector<KvHeadSource>> by_plane;
  int64_t bytes = 0;
  for (size_t plane = 0; plane < planes.size(); ++plane) {
    std::vector<std::vector<KvRange>> heads;
    for (const Rank& rank : ranks_) {
      CHECK(rank.storage->memory().is_host());
      heads.push_back(rank.shares[group][plane].heads);
    }
    const KvPlaneShare& share = ranks_.front().shares[group][plane];
    CHECK_EQ(num_heads_of(share), planes[plane].num_heads);
    auto sources = head_sources(share.whole, heads);
    CHECK(sources.has_value());
    by_plane.push_back(std::move(*sources));
    planes[plane].num_heads = share.whole;
    bytes += static_cast<int64_t>(head_bytes(spans[plane], share)) * share.whole;
  }
  sources_.push_back(std::move(by_plane));
  block_bytes_.push_back(bytes * groups_[group].num_layers);
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

std::vector<std::span<std::byte>> KvRanks::spans_of(const Rank& rank,
                                                    int32_t group,
                                                    BlockId block) const {
  std::vector<std::span<std::byte>> spans;
  rank.storage->add_spans(rank.storage->whole(group, block), spans);
  return spans;
}

void KvRanks::add_spans(int32_t group,
                        BlockId block,
                        std::vector<std::span<const std::byte>>& spans) const {
  if (ranks_.size() == 1) {
    return std::as_const(first()).add_spans(first().whole(group, block), spans);
  }
  std::vector<std::vector<std::span<std::byte>>> of_ranks;
  for (const Rank& rank : ranks_) of_ranks.push_back(spans_of(rank, group, block));
  const auto at = static_cast<size_t>(group);
  const size_t num_planes = sources_[at].size();
  for (size_t i = 0; i < of_ranks.front().size(); ++i) {
    for (const KvHeadSource& source : sources_[at][i % num_planes]) {
      const auto rank = static_cast<size_t>(source.rank);
      const std::span<const std::byte> plane = of_ranks[rank][i];
      const size_t size = head_bytes(plane, ranks_[rank].shares[at][i % num_planes]);
      spans.push_back(plane.subspan(static_cast<size_t>(source.first) * size,
                                    static_cast<size_t>(source.heads.count) * size));
    }
  }
}

void KvRanks::copy_in(int32_t group, BlockId block, std::span<const std::byte> bytes) const {
  CHECK_EQ(static_cast<int64_t>(bytes.size()), block_bytes(group));
  if (ranks_.size() == 1) return first().copy_in(first().whole(group, block), bytes);
  const auto at = static_cast<size_t>(group);
  for (const Rank& rank : ranks_) {
    std::span<const std::byte> left = bytes;
    const std::vector<std::span<std::byte>> planes = spans_of(rank, group, block);
    for (size_t i = 0; i < planes.size(); ++i) {
      const KvPlaneShare& share = rank.shares[at][i % rank.shares[at].size()];
      const size_t size = head_bytes(planes[i], share);
      std::byte* to = planes[i].data();
      for (const KvRange& heads : share.heads) {
        const size_t count = static_cast<size_t>(heads.count) * size;
        rank.storage->memory().upload(to,
                                      left.data() + static_cast<size_t>(heads.first) * size,
                                      static_cast<int64_t>(count));
        to += count;
      }
      left = left.subspan(static_cast<size_t>(share.whole) * size);
    }
  }
}

}  // namespace sluice
