// SPDX-License-Identifier: Apache-2.0
// The shape of a KV group: which tokens it keeps, and what one entry of its block table holds in
// each layer. A group owns this shape; storage, memory plan, input batch, events, tiers and
// transfers read it here and assume nothing about K and V.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

enum class KvGroupKind : uint8_t {
  kFull,    // every token's KV is kept
  kWindow,  // the KV of the last `window` tokens is kept
  kLatent,  // one compressed vector per token (k_dim, v_dim)
  kState,   // one state of fixed size, and snapshots of it
};

// One array that each layer of a group has: K, V, a latent, a state. Its entry consists of
// `num_heads` parts of equal size; ranks divide a plane among them by its heads.
struct KvPlane {
  enum class Per : uint8_t { kToken, kEntry };

  int32_t num_heads = 1;
  int32_t width = 0;            // elements of one head: per token, or per entry
  DType dtype = DType::kBF16;   // types of 8 bits have a scale beside them (kernels/attention.h)
  Per per = Per::kToken;
  bool is_copied = true;        // false: means something to a running request alone; bytes that are
                                // copied, sent or stored of a block do not have it

  friend bool operator==(const KvPlane&, const KvPlane&) = default;
};

// The shape of the layers that share one block table. A model has one or more groups; a prefix hit
// is the longest that all groups can serve.
struct KvGroupSpec {
  KvGroupKind kind = KvGroupKind::kFull;
  int32_t window = 0;      // kWindow: tokens seen, the query's own included
  int32_t interval = 0;    // kState: tokens of an entry, a multiple of the block size; 0: as many.
                           // The state after position p is in entry p / interval. Entries that
                           // follow each other name one block, which the running state overwrites,
                           // except behind a snapshot: the block before stays as it is.
  int32_t snapshot_every = 0;  // kState: tokens, a multiple of the interval, between snapshots that
                               // are kept beside those where prompts, answers and prefixes of other
                               // requests end; 0: at the end of each entry
  int32_t most_drafts = 0;  // kState: rows of a step that it can take back
  int32_t num_blocks = 0;  // capacity of the group's pool
  int32_t num_layers = 0;  // 0: they are on other stages of the model
  std::vector<KvPlane> planes = {};  // planes of each layer, in the order of their bytes
};

// The number of tokens that one entry of the group's block table covers.
constexpr int32_t tokens_per_entry(const KvGroupSpec& group, int32_t block_size) {
  const bool has_own = group.kind == KvGroupKind::kState && group.interval > 0;
  return has_own ? group.interval : block_size;
}

}  // namespace sluice
