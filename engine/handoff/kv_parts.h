// SPDX-License-Identifier: Apache-2.0
// Cuts the blocks of a prompt into parts that fill one landing slot each. Both workers of a handoff
// cut alike, from the claim and from what both know of the cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/kv_cache_manager.h"

namespace sluice {

// Whole entries of a group's block table: all layers and heads.
struct KvPart {
  int32_t group = 0;
  KvRange entries;
  int32_t end_tokens = 0;  // tokens of the prompt that must be computed for it
  friend bool operator==(const KvPart&, const KvPart&) = default;
};

// Returns the parts of a prefix of `num_tokens` tokens (KvCacheManager::max_transferred()), from
// first_wanted[group] on (empty: all), in the order in which they are computed.
// block_bytes[group]: of one entry; a slot has room for one of any group.
std::vector<KvPart> cut_into_parts(const KvCacheManager& kv,
                                   int32_t num_tokens,
                                   std::span<const int32_t> first_wanted,
                                   std::span<const int64_t> block_bytes,
                                   int64_t slot_bytes);

// Returns the number of leading parts for which `num_tokens` tokens are enough.
int32_t num_parts_within(std::span<const KvPart> parts, int32_t num_tokens);

}  // namespace sluice
