// SPDX-License-Identifier: Apache-2.0
// The owners of KV blocks: ids and counts only. The scheduler sees this header and nothing else of
// the cache; the bytes live in kv_storage.h.
//
// Life of a block: free -> referenced(n) -> cached (refcount 0, contents kept, findable) -> free,
// plus in_transfer(m), orthogonal: a block returns to free only when owners and transfers are zero.
// Engine thread only. No allocation in a steady state.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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
  double max_pinned_share = 0.25;  // share of a group's blocks that pin() may keep
};

struct KvUsage {
  int64_t num_blocks = 0;  // all groups
  int64_t num_free = 0;    // never used or dropped
  int64_t num_cached = 0;  // evictable, contents kept
  int64_t num_referenced = 0;
  int64_t num_pinned = 0;       // in any of these states
  int64_t num_states = 0;       // blocks of groups of states, counted above too
  int64_t num_states_referenced = 0;
  uint64_t prefix_queries = 0;  // tokens asked for, once per request
  uint64_t prefix_hits = 0;     // tokens found
};

// An order to copy the whole block `from` of a group to `to`: before the step that was scheduled
// with it runs, and after all steps that were scheduled before.
struct KvBlockCopy {
  int32_t group = 0;
  BlockId from;
  BlockId to;
  friend bool operator==(const KvBlockCopy&, const KvBlockCopy&) = default;
};

// A block as one entry of a prefix's block table; `generation` tells which of its contents are
// meant. Block ids are valid in this process only and never leave it.
struct KvBlockRef {
  int32_t group = 0;
  int32_t entry = 0;  // of the group's block table
  BlockId block;
  uint32_t generation = 0;  // the block's; a different one means other contents
  friend bool operator==(const KvBlockRef&, const KvBlockRef&) = default;
};

// A state that was left at the end of a whole block, where it can be found: the blocks that all
// groups of states have there. Views are valid during a call.
struct KvState {
  KvKey key;  // of the block (kv_key.h), and of the one in front of it
  KvKey parent_key;
  uint64_t hash = 0;  // as in StoredBlock (kv_events.h)
  std::optional<uint64_t> parent_hash;
  std::span<const TokenId> token_ids;
  PrefixExtras extras;
  std::span<const KvBlockRef> blocks;
};

// Is told each state that becomes findable, while its bytes are in place, except those that came
// from elsewhere, by insert() or publish(). Engine thread only; a call must not use the manager.
class KvStateSink {
 public:
  virtual ~KvStateSink() = default;
  virtual void left(const KvState& state) = 0;
};

// The purpose of a lookup. Only a first admission counts in queries and hits: what a preempted
// request finds again was its own.
enum class PrefixUse : uint8_t { kAdmission, kReadmission, kTransfer };

class KvEventSink;

class KvCacheManager {
 public:
  KvCacheManager(const KvManagerOptions& options, std::vector<KvGroupSpec> groups);
  ~KvCacheManager();
  KvCacheManager(const KvCacheManager&) = delete;
  KvCacheManager& operator=(const KvCacheManager&) = delete;

  // Looks up the longest cached prefix of `tokens` (at most tokens.size() - 1 tokens, so that one
  // is left to compute), compares ids and extras, takes a reference on its whole blocks and makes
  // them the start of the request's block table. Admissions may find more tokens in a cached
  // block that begins like the next one: allocate_slots() copies that block, and the caller may
  // call only has_room() and free() of this request before. The request must hold nothing. Returns
  // the number of tokens found.
  int32_t acquire_prefix(RequestId id,
                         std::span<const TokenId> tokens,
                         const PrefixExtras& extras,
                         PrefixUse use = PrefixUse::kAdmission);

  // Makes room for KV up to `num_tokens` tokens in every group, evicting cached blocks (least
  // recently used first, with a credit for those that were found often) as needed. All or nothing:
  // false leaves the request as it was.
  [[nodiscard]] bool allocate_slots(RequestId id, int32_t num_tokens);

  // Whether every group could take the request up to `num_tokens` tokens, computed in small steps,
  // and keep `num_spare_blocks` available (fewer in a group whose holders can never want that
  // many), or `num_growing_blocks` in groups that keep every token. Admission asks this;
  // allocate_slots() decides.
  [[nodiscard]] bool has_room(RequestId id,
                              int32_t num_tokens,
                              int32_t num_spare_blocks,
                              int32_t num_growing_blocks = 0) const;

  // Whether allocate_slots() for `num_tokens` tokens would take only free blocks, evicting no
  // cached one, and leave `num_spare_blocks` free blocks.
  [[nodiscard]] bool has_unused(RequestId id,
                                int32_t num_tokens,
                                int32_t num_spare_blocks) const;

  // Makes full blocks among the first `num_computed_tokens` findable, under the hash chain of
  // `tokens` and the extras given to acquire_prefix(). Window groups release the blocks that no
  // query from position `num_computed_tokens` on reads: a step in flight starts there or later and
  // touches no block before its window. Idempotent. Call after the step that computed them retired.
  void cache_blocks(RequestId id, std::span<const TokenId> tokens, int32_t num_computed_tokens);

  // Keeps the first `num_tokens` tokens of a request that holds blocks longer than others once they
  // are cached, until many turns of the cache have passed without a use.
  void keep_prefix(RequestId id, int32_t num_tokens);

  // Makes the incomplete last block of the first `num_computed_tokens` findable too, for copies.
  // The request must be about to be freed.
  void cache_tail(RequestId id, std::span<const TokenId> tokens, int32_t num_computed_tokens);

  // Appends, in order, the copies that allocations have asked for since the last call. The blocks
  // that they read stay unchanged until end_copies(), to be called when they are made or dropped.
  void take_copies(std::vector<KvBlockCopy>& copies);
  void end_copies(std::span<const KvBlockCopy> copies);

  // Drops every reference of the request; findable blocks stay cached, others become free. Unknown
  // ids are ignored. A block in transfer is kept until end_transfer().
  void free(RequestId id);

  // The request's blocks of one group, by entry; kNullBlock where a window group released one.
  [[nodiscard]] std::span<const BlockId> block_table(RequestId id, int32_t group) const;

  // Appends all the request's blocks.
  void blocks_of(RequestId id, std::vector<KvBlockRef>& blocks) const;

  // Blocks that allocate_slots() could hand out now, in the scarcest group.
  [[nodiscard]] int32_t num_available_blocks() const;
  // Whether a request of this many tokens could ever run alone.
  [[nodiscard]] bool fits_alone(int32_t num_tokens) const;
  // Whether there are blocks that neither are available nor are the request's: other requests hold
  // them, or transfers or pins.
  [[nodiscard]] bool others_hold_blocks(RequestId id) const;

  // Brackets a time in which another worker reads or writes the block.
  void begin_transfer(int32_t group, BlockId block);
  void end_transfer(int32_t group, BlockId block);

  // KV that travels between workers (kv_cache_transfers.cpp). A prefix travels in whole entries:
  // max_transferred() tokens of a prompt, in each group the entries that needed_entries() names.

  // Gives blocks their KvKeys in this space (kv_key_space()), for find_blocks() by keys; each block
  // that becomes findable then costs a SHA-256. Called before the first request.
  void name_blocks(std::string space);

  // The most tokens of a prompt that can come from elsewhere: whole entries of every group, with
  // one token left to compute.
  [[nodiscard]] int32_t max_transferred(int32_t num_tokens) const;
  // The entries of a group's block table for the first `num_tokens` tokens that a query after them
  // reads: the last ones of a window group, the last one of a state group, else all.
  [[nodiscard]] KvRange needed_entries(int32_t group, int32_t num_tokens) const;

  // Finds blocks of the prefix `tokens`, which has max_transferred() tokens: in each group the
  // entries that its end needs, from first_wanted[group] on (empty: all), by position. Appends them
  // up to the first gap and returns how many leading blocks of block_size() tokens have no gap;
  // unproven blocks are gaps. The next call that takes blocks may evict them, unless they are
  // pinned.
  int32_t find_blocks(std::span<const TokenId> tokens,
                      const PrefixExtras& extras,
                      std::span<const int32_t> first_wanted,
                      std::vector<KvBlockRef>& found) const;
  // Finds the blocks of the longest prefix without a gap that one of `keys`, ascending by length,
  // names; otherwise like the overload above. Returns its length in blocks, 0 where there is none.
  int32_t find_blocks(std::span<const KvKey> keys,
                      std::span<const int32_t> first_wanted,
                      std::vector<KvBlockRef>& found) const;
  // Whether the block still has the contents that it had when `ref` was made.
  [[nodiscard]] bool is_current(const KvBlockRef& ref) const;

  // Keeps blocks, in order, as far as they are current and each group's quota allows; returns how
  // many. They are neither freed nor written until as many unpin(), whatever becomes of requests.
  int32_t pin(std::span<const KvBlockRef> blocks);
  void unpin(std::span<const KvBlockRef> blocks);

  // Takes the blocks that needed_entries() names for the first `num_tokens` tokens, a
  // max_transferred(), behind the prefix that the request has acquired, and appends those that are
  // to be filled. They are the request's own and not findable before publish(). All or nothing,
  // like allocate_slots(); window groups release blocks of the acquired prefix that its end does
  // not need. free() takes back what has not been published: a writer that still fills a block must
  // hold it by begin_transfer().
  [[nodiscard]] bool reserve(RequestId id, int32_t num_tokens, std::vector<KvBlockRef>& reserved);
  // Makes the reserved blocks of the first `num_tokens` tokens (whole blocks) findable: they have
  // arrived and were checked. `num_tokens` never decreases; `tokens` are the request's.
  // `needs_proof`: they may still be wrong. Until prove(), only requests of expect_proof() find
  // them.
  void publish(RequestId id,
               std::span<const TokenId> tokens,
               int32_t num_tokens,
               bool needs_proof = false);
  // From now on the request finds unproven blocks too: before anything is told of what it computes,
  // it will be seen whether they were right. The next of the following calls ends that; until then
  // nobody finds what it computes.
  void expect_proof(RequestId id);
  // Its blocks were right.
  void prove(RequestId id, std::span<const KvBlockRef> blocks);
  // It will never be seen whether they were: those that are still unproven stop being findable.
  void withdraw(RequestId id, std::span<const KvBlockRef> blocks);
  // They were wrong: what the request published after `num_tokens` tokens, its prefix from the
  // first unproven block on and everything computed after them stop being findable, and what this
  // request and others that run after them compute from now on never becomes findable.
  void unpublish(RequestId id, int32_t num_tokens);
  // False: the request waits for the proof of blocks that it has found, or has withdrawn ones.
  [[nodiscard]] bool is_proven(RequestId id) const;

  // Makes room for contents that a tier below has: for each block of the range `blocks` of the
  // prefix `tokens` (whole blocks, at least up to the end of the range), takes a cached block in
  // each group of groups[i] (bit g) that has none yet and an entry that ends with this block. These
  // blocks are appended and findable at once, so the caller fills all of them before any other
  // call. Returns how many of `blocks` were done: fewer where a block or the prefix is missing.
  int32_t insert(std::span<const TokenId> tokens,
                 const PrefixExtras& extras,
                 const KvRange& blocks,
                 std::span<const uint64_t> groups,
                 std::vector<KvBlockRef>& inserted);

  // Returns how many leading blocks of block_size() tokens have what groups keep of every token: a
  // state behind them is all that a request lacks. 0 where a group keeps a window.
  [[nodiscard]] int32_t num_kept_blocks(std::span<const TokenId> tokens,
                                        const PrefixExtras& extras) const;

  // Reports states to `sink`, which must outlive the manager. Called before the first request,
  // behind name_blocks().
  void set_state_sink(KvStateSink& sink);

  // Reports to `sink` from now on which blocks become findable and which cease to be; it must
  // outlive the manager. Called before the first request.
  void set_event_sink(KvEventSink& sink);

  // Forgets all cached contents (not referenced blocks).
  void reset_prefix_cache();

  [[nodiscard]] KvUsage usage() const;
  [[nodiscard]] int32_t num_groups() const;
  // The blocks of the group that hold something: cached, referenced or held.
  [[nodiscard]] int32_t num_filled(int32_t group) const;
  [[nodiscard]] int32_t block_size() const;
  // The number of entries in the group's block table that `num_tokens` tokens take.
  [[nodiscard]] int32_t num_entries(int32_t group, int32_t num_tokens) const;
  [[nodiscard]] bool caches_prefixes() const;
  // The most drafts that may follow `num_tokens` tokens in a step: what states can take back
  // without one at the end of an entry, which others may find.
  [[nodiscard]] int32_t most_drafts(int32_t num_tokens) const;

  // Walks everything: conservation (free + cached + referenced + held by transfers = all),
  // refcounts equal to the holders found, index entries valid. Returns "" when right, else what is
  // wrong. For tests.
  [[nodiscard]] std::string check_integrity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
