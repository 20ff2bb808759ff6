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
#include "kvcache/kv_key.h"
#include "kvcache/kv_piece.h"
#include "kvcache/prefix_extras.h"

namespace sluice {

struct KvManagerOptions {
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
  int32_t max_num_seqs = 64;  // requests that can hold blocks at once
  int32_t max_model_len = 0;  // sizes the block tables
  double max_pinned_share = 0.25;  // of a group's blocks that pin() may keep
};

struct KvUsage {
  int64_t num_blocks = 0;  // all groups
  int64_t num_free = 0;    // never used or dropped
  int64_t num_cached = 0;  // evictable, contents kept
  int64_t num_referenced = 0;
  int64_t num_pinned = 0;       // in any of these states
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

// A block as one entry of a prefix's block table, and which of its contents are meant. Block ids
// are this process's own and never leave it.
struct KvBlockRef {
  int32_t group = 0;
  int32_t entry = 0;  // of the group's block table
  BlockId block;
  uint32_t generation = 0;  // another one: the block has other contents by now
  friend bool operator==(const KvBlockRef&, const KvBlockRef&) = default;
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

  // KV that travels between workers (kv_cache_transfers.cpp). A prefix travels in whole entries: of
  // a prompt max_transferred() tokens, of each group the entries that needed_entries() names.

  // Gives blocks their KvKeys in this space (kv_key_space()), for find_blocks() by keys; each block
  // that becomes findable costs a SHA-256 then. Before the first request.
  void name_blocks(std::string space);

  // The most tokens of a prompt that can come from elsewhere: whole entries of every group, one
  // token left to compute.
  [[nodiscard]] int32_t max_transferred(int32_t num_tokens) const;
  // The entries, of a group's block table for the first `num_tokens` tokens, that a query behind
  // them reads: of a window the last ones, of a state the last one.
  [[nodiscard]] KvRange needed_entries(int32_t group, int32_t num_tokens) const;

  // Findable blocks of the prefix `tokens`, max_transferred() of them: of each group the entries
  // that are needed at its end, from first_wanted[group] on (empty: all), by position. They are
  // appended up to the first gap; returns how many leading blocks of block_size() tokens have no
  // gap. They may be evicted with the next call that takes blocks, unless they are pinned.
  int32_t find_blocks(std::span<const TokenId> tokens,
                      const PrefixExtras& extras,
                      std::span<const int32_t> first_wanted,
                      std::vector<KvBlockRef>& found) const;
  // The same of the longest prefix that one of `keys`, ascending by length, names and that has no
  // gap. Returns its length in blocks, 0 where there is none.
  int32_t find_blocks(std::span<const KvKey> keys,
                      std::span<const int32_t> first_wanted,
                      std::vector<KvBlockRef>& found) const;
  // Whether the block still has the contents that it had then.
  [[nodiscard]] bool is_current(const KvBlockRef& ref) const;

  // Keeps blocks, in order, as far as they are current and the quota of each group goes; how many.
  // They are neither freed nor written until as many unpin(), whatever becomes of requests.
  int32_t pin(std::span<const KvBlockRef> blocks);
  void unpin(std::span<const KvBlockRef> blocks);

  // Takes the blocks that needed_entries() names for the first `num_tokens` tokens, a
  // max_transferred(), behind the prefix that the request has acquired, and appends those that are
  // to be filled. They are the request's own, and nobody finds them before publish(). All or
  // nothing, as allocate_slots(); of window groups blocks of the acquired prefix that the end does
  // not need are let go. free() takes back what has not been published: whoever still writes into
  // a block holds it by begin_transfer().
  [[nodiscard]] bool reserve(RequestId id, int32_t num_tokens, std::vector<KvBlockRef>& reserved);
  // The reserved blocks of the first `num_tokens` tokens (whole blocks) have arrived and were
  // checked: they become findable. Not less than before; `tokens` are the request's.
  void publish(RequestId id, std::span<const TokenId> tokens, int32_t num_tokens);
  // What was published of the request behind `num_tokens` tokens is not what it should be: it and
  // all that anybody has computed behind it is not findable any more, and what this request and
  // others that run behind it compute from now on never becomes so.
  void unpublish(RequestId id, int32_t num_tokens);

  // Contents that are here already, of a tier below: of the blocks `blocks` of the prefix `tokens`
  // (whole ones, to the end of the last at least) a cached block in each group of groups[i] (bit g)
  // that has none there yet and an entry that ends with this block. They are appended and findable
  // from now on, so the caller fills all of them before it calls anything else. Returns how many of
  // the blocks; fewer where no more block is to be had or what is before them is not there.
  int32_t insert(std::span<const TokenId> tokens,
                 const PrefixExtras& extras,
                 const KvRange& blocks,
                 std::span<const uint64_t> groups,
                 std::vector<KvBlockRef>& inserted);

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
