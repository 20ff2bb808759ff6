// SPDX-License-Identifier: Apache-2.0
// Which rank of a worker has which KV heads. Pure functions over ranges of heads of the whole
// model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvcache/kv_piece.h"

namespace sluice {

// Heads that come from one rank.
struct KvHeadSource {
  int32_t rank = 0;
  KvRange heads;  // of the whole model
  friend bool operator==(const KvHeadSource&, const KvHeadSource&) = default;
};

// Each of the heads `wanted` once, ascending, from the lowest of `ranks` that has it. None where
// some are nowhere.
std::optional<std::vector<KvHeadSource>> head_sources(const KvRange& wanted,
                                                      std::span<const KvRange> ranks);

// Heads of the whole model as a rank with `own` counts them (KvPiece::heads).
constexpr KvRange heads_in(const KvRange& own, const KvRange& heads) {
  return {.first = heads.first - own.first, .count = heads.count};
}

}  // namespace sluice
