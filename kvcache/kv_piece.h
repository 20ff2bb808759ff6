// SPDX-License-Identifier: Apache-2.0
// What of the paged cache travels at once: one block of one group, in some of the group's layers
// and some of its KV heads. Plain values, shared by storage, transports and the handoff.
//
// The bytes of a piece have one order everywhere: layer by layer, in each layer plane by plane (K,
// then V), in each plane head by head, and of a head the codes or floats of the block's tokens with
// their scales behind them. KvStorage::add_spans() names them in this order without copying, so
// what one worker gathers another can scatter, whose ranks may share the heads out in another way
// (kv_ranks.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/core/types.h"

namespace sluice {

// The integers from `first` to before end().
struct KvRange {
  int32_t first = 0;
  int32_t count = 0;

  [[nodiscard]] constexpr int32_t end() const { return first + count; }

  friend constexpr bool operator==(const KvRange&, const KvRange&) = default;
};

// What both have; a count of 0 where that is nothing.
constexpr KvRange intersection(const KvRange& a, const KvRange& b) {
  const int32_t first = std::max(a.first, b.first);
  return {.first = first, .count = std::max(0, std::min(a.end(), b.end()) - first)};
}

// A piece of one rank's cache. A block id means something in its own process alone and never
// leaves it: what travels is a position and a key.
struct KvPiece {
  int32_t group = 0;
  BlockId block;
  KvRange layers;  // of the group, counted inside it
  KvRange heads;   // of the rank, counted from the first KV head that it has

  friend bool operator==(const KvPiece&, const KvPiece&) = default;
};

}  // namespace sluice
