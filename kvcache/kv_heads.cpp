// SPDX-License-Identifier: Apache-2.0
#include "kvcache/kv_heads.h"

#include <algorithm>

namespace sluice {

std::optional<std::vector<KvHeadSource>> head_sources(const KvRange& wanted,
                                                      std::span<const KvRange> ranks) {
  std::vector<KvHeadSource> sources;
  for (int32_t head = wanted.first; head < wanted.end();) {
    const auto has_head = [head](const KvRange& range) {
      return range.first <= head && head < range.end();
    };
    const auto rank = std::ranges::find_if(ranks, has_head);
    if (rank == ranks.end()) return {};
    // The range ends where a lower rank has the next heads.
    int32_t end = std::min(wanted.end(), rank->end());
    for (auto lower = ranks.begin(); lower != rank; ++lower) {
      if (lower->first > head && lower->count > 0) end = std::min(end, lower->first);
    }
    sources.push_back({.rank = static_cast<int32_t>(rank - ranks.begin()),
                       .heads = {.first = head, .count = end - head}});
    head = end;
  }
  return sources;
}

}  // namespace sluice
