// SPDX-License-Identifier: Apache-2.0
// How workers whose ranks share the KV heads out in another way exchange them: a rank takes from
// each rank of the other worker the heads that both have, bit for bit. Pure functions over ranges
// of heads of the whole model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvcache/kv_piece.h"

namespace sluice {

// What each of `degree` ranks has of `num_heads` KV heads: an equal run of them, or, of fewer heads
// than ranks, one that several have. None where they cannot be shared out so.
std::optional<std::vector<KvRange>> shared_heads(int32_t num_heads, int32_t degree);

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
