// SPDX-License-Identifier: Apache-2.0
// The heads of a plane (kv_group.h) that each rank of a worker has. Pure functions over heads of
// the whole model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvcache/kv_piece.h"

namespace sluice {

// A rank's part of a plane: the heads of the whole model's plane that it has, in the order in which
// its own plane has them.
struct KvPlaneShare {
  std::vector<KvRange> heads;
  int32_t whole = 0;  // heads of the model's plane
};

// Heads that are read from one rank.
struct KvHeadSource {
  int32_t rank = 0;
  int32_t first = 0;  // in the rank's plane
  KvRange heads;      // counted over the whole model
  friend bool operator==(const KvHeadSource&, const KvHeadSource&) = default;
};

// Lists each of `num_heads` heads once, ascending, from the lowest of `ranks` that has it. nullopt
// where no rank has one of them.
std::optional<std::vector<KvHeadSource>> head_sources(
    int32_t num_heads, std::span<const std::vector<KvRange>> ranks);

}  // namespace sluice
