// SPDX-License-Identifier: Apache-2.0
#include "kvcache/kv_heads.h"

#include <cstddef>

namespace sluice {
namespace {

// The place of a head in the plane of the lowest rank that has it; no heads if none has.
KvHeadSource source_of(int32_t head, std::span<const std::vector<KvRange>> ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    int32_t before = 0;
    for (const KvRange& range : ranks[rank]) {
      if (range.first <= head && head < range.end()) {
        return {.rank = static_cast<int32_t>(rank),
                .first = before + head - range.first,
                .heads = {.first = head, .count = 1}};
      }
      before += range.count;
    }
  }
  return {};
}

}  // namespace

std::optional<std::vector<KvHeadSource>> head_sources(
    int32_t num_heads, std::span<const std::vector<KvRange>> ranks) {
  std::vector<KvHeadSource> sources;
  for (int32_t head = 0; head < num_heads; ++head) {
    const KvHeadSource source = source_of(head, ranks);
    if (source.heads.count == 0) return {};
    const bool goes_on = !sources.empty() && sources.back().rank == source.rank &&
                         sources.back().first + sources.back().heads.count == source.first;
    if (goes_on) {
      ++sources.back().heads.count;
    } else {
      sources.push_back(source);
    }
  }
  return sources;
}

}  // namespace sluice
