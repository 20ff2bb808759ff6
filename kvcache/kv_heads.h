// SPDX-License-Identifier: Apache-2.0
// The KV heads of each rank of a worker. Pure functions over ranges of heads of the whole model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvcache/kv_piece.h"

namespace sluice {

// KV heads that are read from one rank.
struct KvHeadSource {
  int32_t rank = 0;
  KvRange heads;  // counted over the whole model
  friend bool operator==(const KvHeadSource&, const KvHeadSource&) = default;
};

// Lists each of the heads `wanted` once, ascending, from the lowest of `ranks` that has it. nullopt
// where no rank has one of them.
std::optional<std::vector<KvHeadSource>> head_sources(const KvRange& wanted,
                                                      std::span<const KvRange> ranks);

// Converts heads counted over the whole model to heads of a rank with `own` (KvPiece::heads).
constexpr KvRange heads_in(const KvRange& own, const KvRange& heads) {
  return {.first = heads.first - own.first, .count = heads.count};
}

}  // namespace sluice
