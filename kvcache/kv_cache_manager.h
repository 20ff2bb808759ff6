// SPDX-License-Identifier: Apache-2.0
// Who owns which KV block: ids and counts only. The scheduler sees this header and nothing else of
// the cache; the bytes live in kv_storage.h.
//
// Life of a block: free -> referenced(n) -> cached (refcount 0, contents kept, findable) -> free,
// plus in_transfer(m), orthogonal: a block returns to free only when owners and transfers are zero.
// Engine thread only. No allocation in a steady state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/types.h"
#include "kvcache/kv_group.h"
#include "kvcache/prefix_extras.h"

namespace sluice {

struct KvManagerOptions {
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
  int32_t max_num_seqs = 64;  // requests that can hold blocks at once
  int32_t max_model_len = 0;  // sizes the block tables
};

struct KvUsage {
  int64_t num_blocks = 0;  // all groups
  int64_t num_free = 0;    // never used or dropped
  int64_t num_cached = 0;  // evictable, contents kept
  int64_t num_referenced = 0;
  uint64_t prefix_queries = 0;  // tokens asked for, once per admission
  uint64_t prefix_hits = 0;     // tokens found
};

// The whole block `from` of a group is to be copied to `to`, before the step that was scheduled
// with it runs, and after all that was scheduled before.
struct KvBlockCopy {
  int32_t group = 0;
  BlockId from;
  BlockId to;
  friend bool operator==(const KvBlockCopy&, const KvBlockCopy&) = default;
};

// What a lookup is for: admissions are counted, transfers from another tier are not.
enum class PrefixUse : uint8_t { kAdmission, kTransfer };

class KvEventSink;

class KvCacheManager {
 public:
  KvCacheManager(const KvManagerOptions& options, std::vector<KvGroupSpec> groups);
  ~KvCacheManager();
  KvCacheManager(const KvCacheManager&) = delete;
  KvCacheManager& operator=(const KvCacheManager&) = delete;

  // Looks up the longest cached prefix of `tokens` (at most tokens.size() - 1 tokens, so that one
  // is left to compute), compares ids and extras, takes a reference on its whole blocks and makes
  // them the start of the request's block table. An admission may find some tokens more, in a block
  // that begins like the next one: allocate_slots() copies it, and nothing but has_room() and
  // free() of this request may come between. The request must hold nothing. Returns the number of
  // tokens found.
  int32_t acquire_prefix(RequestId id,
                         std::span<const TokenId> tokens,
                         const PrefixExtras& extras,
                         PrefixUse use = PrefixUse::kAdmission);

  // Makes room for KV up to `num_tokens` tokens in every group, evicting cached blocks (least
  // recently used first, with a credit for those that were found often) as needed. All or nothing:
  // false leaves the request as it was.
  [[nodiscard]] bool allocate_slots(RequestId id, int32_t num_tokens);

  // Whether every group could take the request up to `num_tokens` tokens, computed in small steps,
  // and keep `num_spare_blocks` available (in a group whose holders can never want that many: what
  // they can), or `num_growing_blocks` in groups that keep every token. Admission asks this;
  // allocate_slots() decides.
  [[nodiscard]] bool has_room(RequestId id,
                              int32_t num_tokens,
                              int32_t num_spare_blocks,
                              int32_t num_growing_blocks = 0) const;

  // Whether allocate_slots() would take nothing for `num_tokens` tokens but blocks that hold
  // nothing, of which `num_spare_blocks` are left: no cached one would be evicted.
  [[nodiscard]] bool has_unused(RequestId id,
                                int32_t num_tokens,
                                int32_t num_spare_blocks) const;

  // Full blocks among the first `num_computed_tokens` become findable, under the hash chain of
  // `tokens` and the extras given to acquire_prefix(). Window groups let go of blocks that no query
  // from position `num_computed_tokens` on reads: a step in flight starts there or later, and must
  // touch no block before its window. Idempotent. Call after the step that computed them retired.
  void cache_blocks(RequestId id, std::span<const TokenId> tokens, int32_t num_computed_tokens);

  // The first `num_tokens` tokens of a request that holds blocks are to be kept longer than others
  // once they are cached, until they have not been used for many turns of the cache.
  void keep_prefix(RequestId id, int32_t num_tokens);

  // For a request that is about to be freed: the rest of its first `num_computed_tokens`, less than
  // a block, becomes findable too, for copies.
  void cache_tail(RequestId id, std::span<const TokenId> tokens, int32_t num_computed_tokens);

  // Copies that allocations have asked for since the last call, in order; appended. The blocks that
  // they read are nobody else's to write until end_copies(), once they are made or dropped.
  void take_copies(std::vector<KvBlockCopy>& copies);
  void end_copies(std::span<const KvBlockCopy> copies);

  // Drops every reference of the request; findable blocks stay cached, others become free. Unknown
  // ids are ignored. A block in transfer is kept until end_transfer().
  void free(RequestId id);

  // The request's blocks of one group, by block index; kNullBlock where a window group let go.
  [[nodiscard]] std::span<const BlockId> block_table(RequestId id, int32_t group) const;

  // Blocks that allocate_slots could hand out now, the scarcest group's.
  [[nodiscard]] int32_t num_available_blocks() const;
  // Blocks that `num_tokens` tokens of one request, computed in small steps, hold at most in any
  // group.
  [[nodiscard]] int32_t blocks_for(int32_t num_tokens) const;
  // Whether a request of this many tokens could ever run alone.
  [[nodiscard]] bool fits_alone(int32_t num_tokens) const;

  // A block that another worker is reading or writing.
  void begin_transfer(int32_t group, BlockId block);
  void end_transfer(int32_t group, BlockId block);

  // Tells `sink` from now on which blocks become findable and which cease to be; it must outlive
  // the manager. Before the first request.
  void set_event_sink(KvEventSink& sink);

  // Forgets all cached contents (not referenced blocks).
  void reset_prefix_cache();

  [[nodiscard]] KvUsage usage() const;
  [[nodiscard]] int32_t num_groups() const;
  [[nodiscard]] int32_t block_size() const;
  // Entries of the group's block table that `num_tokens` tokens take.
  [[nodiscard]] int32_t num_entries(int32_t group, int32_t num_tokens) const;
  [[nodiscard]] bool caches_prefixes() const;
  [[nodiscard]] bool keeps_states() const;  // a group is kState: a token's KV cannot be taken back

  // Walks everything: conservation (free + cached + referenced + held by transfers = all),
  // refcounts equal to the holders found, index entries valid. Empty when right, else what is
  // wrong. Tests.
  [[nodiscard]] std::string check_integrity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
