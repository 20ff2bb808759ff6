// SPDX-License-Identifier: Apache-2.0
// The unit of KV transfer: one block of one group, in some of the group's layers and some of
// its KV heads. Plain values, shared by storage, transports and the handoff.
//
// The bytes of a piece have one order everywhere: layer by layer, in each layer plane by plane (K,
// then V), in each plane head by head; a head is the codes or floats of the block's tokens followed
// by their scales. KvStorage::add_spans() names them in this order without copying, so another
// worker can scatter the bytes that one gathers, even where its ranks divide the heads differently
// (kv_ranks.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/core/types.h"

namespace sluice {

// The integers from `first` up to, but not including, end().
struct KvRange {
  int32_t first = 0;
  int32_t count = 0;

  [[nodiscard]] constexpr int32_t end() const { return first + count; }

  friend constexpr bool operator==(const KvRange&, const KvRange&) = default;
};

// The range that both have; its count is 0 where they have nothing in common.
constexpr KvRange intersection(const KvRange& a, const KvRange& b) {
  const int32_t first = std::max(a.first, b.first);
  return {.first = first, .count = std::max(0, std::min(a.end(), b.end()) - first)};
}

// A piece of one rank's cache. A block id is valid in its own process only and never leaves it: a
// position and a key travel instead.
struct KvPiece {
  int32_t group = 0;
  BlockId block;
  KvRange layers;  // counted inside the group
  KvRange heads;   // counted from the rank's first KV head

  friend bool operator==(const KvPiece&, const KvPiece&) = default;
};

}  // namespace sluice
