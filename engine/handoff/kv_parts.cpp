// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/kv_parts.h"

#include <algorithm>
#include <tuple>

#include "engine/core/types.h"

namespace sluice {

std::vector<KvPart> cut_into_parts(const KvCacheManager& kv,
                                   int32_t num_tokens,
                                   std::span<const int32_t> first_wanted,
                                   std::span<const int64_t> block_bytes,
                                   int64_t slot_bytes) {
  std::vector<KvPart> parts;
  for (int32_t group = 0; group < kv.num_groups(); ++group) {
    const auto g = static_cast<size_t>(group);
    const KvRange needed = kv.needed_entries(group, num_tokens);
    if (needed.count == 0) continue;
    const int32_t wanted = first_wanted.empty() ? 0 : first_wanted[g];
    const auto most = static_cast<int32_t>(std::max<int64_t>(1, slot_bytes / block_bytes[g]));
    const int32_t tokens_per_entry = num_tokens / needed.end();
    for (int32_t first = std::max(needed.first, wanted); first < needed.end(); first += most) {
      const int32_t count = std::min(most, needed.end() - first);
      parts.push_back({.group = group,
                       .entries = {.first = first, .count = count},
                       .end_tokens = (first + count) * tokens_per_entry});
    }
  }
  std::ranges::sort(
      parts, {}, [](const KvPart& part) { return std::tuple(part.end_tokens, part.group); });
  return parts;
}

int32_t num_parts_within(std::span<const KvPart> parts, int32_t num_tokens) {
  const auto end = std::ranges::upper_bound(parts, num_tokens, {}, &KvPart::end_tokens);
  return static_cast<int32_t>(end - parts.begin());
}

}  // namespace sluice
