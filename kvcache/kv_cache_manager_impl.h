// SPDX-License-Identifier: Apache-2.0
// The parts of KvCacheManager, for the files that implement it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "kvcache/block_pool.h"
#include "kvcache/id_map.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/kv_events.h"
#include "kvcache/prefix_index.h"

namespace sluice {

// One KV group: its block pool and, for each slot, one block table.
struct KvGroup {
  KvGroupSpec spec;
  BlockPool pool;
  int32_t tokens_per_entry = 0;  // tokens of one entry of a block table
  int32_t max_entries = 0;
  // The most entries that a request computed one token at a time holds.
  int32_t max_held = 0;
  std::vector<BlockId> tables;       // [slot][max_entries]
  std::vector<int32_t> num_entries;  // [slot]
  std::vector<int32_t> first_kept;   // [slot]; entries before it are kNullBlock

  static int32_t max_pinned(const KvGroupSpec& spec, const KvManagerOptions& options) {
    return static_cast<int32_t>(options.max_pinned_share * spec.num_blocks);
  }

  KvGroup(const KvGroupSpec& s, const KvManagerOptions& options)
      : spec(s), pool(s.num_blocks, max_pinned(s, options)) {
    tokens_per_entry = sluice::tokens_per_entry(spec, options.block_size);
    CHECK_GT(tokens_per_entry, 0);
    CHECK_EQ(tokens_per_entry % options.block_size, 0);
    max_entries = entries_for(options.max_model_len);
    max_held = max_entries;
    // The running state, and the snapshot that it began at.
    if (spec.kind == KvGroupKind::kState) {
      max_held = std::min(max_entries, options.enable_prefix_caching ? 2 : 1);
    }
    if (spec.kind == KvGroupKind::kWindow) {
      CHECK_GT(spec.window, 0);
      // `window` consecutive tokens touch at most this many blocks, however they lie.
      max_held = std::min(max_entries, entries_for(spec.window - 1) + 1);
    }
    const auto num_slots = static_cast<size_t>(options.max_num_seqs);
    tables.resize(num_slots * static_cast<size_t>(max_entries), kNullBlock);
    num_entries.resize(num_slots, 0);
    first_kept.resize(num_slots, 0);
  }

  [[nodiscard]] int32_t entries_for(int32_t num_tokens) const {
    return static_cast<int32_t>(ceil_div(num_tokens, tokens_per_entry));
  }

  [[nodiscard]] int32_t max_held_for(int32_t num_tokens) const {
    return std::min(entries_for(num_tokens), max_held);
  }

  // The first entry that a query at position `num_computed` or later still reads.
  [[nodiscard]] int32_t first_needed(int32_t num_computed) const {
    switch (spec.kind) {
      case KvGroupKind::kFull:
      case KvGroupKind::kLatent:
        return 0;
      case KvGroupKind::kWindow:
        return std::max(0, num_computed - spec.window + 1) / tokens_per_entry;
      case KvGroupKind::kState:
        return std::max(0, num_computed / tokens_per_entry - 1);  // an answer may end here
    }
    SLUICE_UNREACHABLE("a kind of group");
  }

  // The whole entries of a table for `num_tokens` tokens that a query after them reads.
  [[nodiscard]] KvRange needed_entries(int32_t num_tokens) const;

  [[nodiscard]] BlockId& entry(int32_t slot, int32_t i) {
    return tables[static_cast<size_t>(slot) * static_cast<size_t>(max_entries) +
                  static_cast<size_t>(i)];
  }

  [[nodiscard]] const BlockId& entry(int32_t slot, int32_t i) const {
    return tables[static_cast<size_t>(slot) * static_cast<size_t>(max_entries) +
                  static_cast<size_t>(i)];
  }

  [[nodiscard]] int32_t count(int32_t slot) const { return num_entries[static_cast<size_t>(slot)]; }

  [[nodiscard]] int32_t kept_from(int32_t slot) const {
    return first_kept[static_cast<size_t>(slot)];
  }

  // Whether entry `i` names the block of the kept entry before it.
  [[nodiscard]] bool goes_on(int32_t slot, int32_t i) const {
    return i > kept_from(slot) && entry(slot, i - 1) == entry(slot, i);
  }

  [[nodiscard]] int32_t num_held(int32_t slot) const {
    if (spec.kind != KvGroupKind::kState) return count(slot) - kept_from(slot);
    int32_t held = 0;
    for (int32_t i = kept_from(slot); i < count(slot); ++i) held += goes_on(slot, i) ? 0 : 1;
    return held;
  }
};

// A request that holds blocks.
struct KvHolder {
  RequestId id;
  bool in_use = false;
  PrefixExtras extras;
  int32_t num_indexed = 0;              // leading full blocks already in the prefix index
  int32_t cursor = PrefixIndex::kRoot;  // node of the last indexed block, pinned
  int32_t num_queried = 0;              // tokens asked for; counted by the first allocation
  int32_t num_found = 0;
  int32_t num_known = 0;     // tokens at admission
  int32_t num_shared = 0;    // leading tokens whose blocks were found
  int32_t junction = 0;      // leading tokens that were found but for their state
  int32_t partial_node = PrefixIndex::kAbsent;  // node whose block the first allocation copies
  int32_t num_kept_tokens = 0;                  // leading tokens that stay cached longer
  int32_t num_arriving = 0;  // leading blocks, present or coming from elsewhere; 0: none comes
  int32_t num_arrived = 0;   // those of num_arriving that are present and checked
  bool needs_proof = false;  // those that arrive do
  bool is_unsound = false;   // computed behind what was unpublished: none of it becomes findable
};

struct KvCacheManager::Impl {
  KvManagerOptions options;
  std::vector<KvGroup> groups;
  std::vector<KvHolder> slots;
  std::vector<int32_t> free_slots;
  IdMap slot_of;
  PrefixIndex index;
  std::vector<int32_t> chain;       // scratch: nodes of the prefix being looked up
  std::vector<int32_t> run_length;  // scratch, per group: blocks present in a row
  std::vector<KvBlockCopy> copies;  // not taken yet
  bool copies_blocks = true;        // false with a kState group: a state fits one length
  uint64_t prefix_queries = 0;
  uint64_t prefix_hits = 0;
  KvEventSink* events = nullptr;  // null: no listener
  KvStateSink* states = nullptr;  // likewise
  std::vector<KvBlockRef> state_blocks;  // scratch
  std::vector<RequestId> provers;        // see expect_proof()

  static int32_t node_capacity(const KvManagerOptions& options,
                               const std::vector<KvGroupSpec>& specs) {
    if (!options.enable_prefix_caching) return 0;
    // A node for each block, and as many again for prefixes whose own blocks are gone while later
    // ones are kept. When they run out, blocks are merely not indexed.
    int64_t count = 0;
    for (const KvGroupSpec& spec : specs) count += 2 * int64_t{spec.num_blocks};
    return static_cast<int32_t>(std::min<int64_t>(count, INT32_MAX / 64));
  }

  Impl(const KvManagerOptions& o, const std::vector<KvGroupSpec>& specs)
      : options(o),
        slot_of(o.max_num_seqs),
        index(node_capacity(o, specs), o.block_size, static_cast<int32_t>(specs.size())) {
    CHECK_GT(o.block_size, 0);
    CHECK_GT(o.max_num_seqs, 0);
    CHECK_GT(o.max_model_len, 0);
    CHECK(!specs.empty());
    groups.reserve(specs.size());
    for (const KvGroupSpec& spec : specs) groups.emplace_back(spec, o);
    slots.resize(static_cast<size_t>(o.max_num_seqs));
    for (int32_t slot = o.max_num_seqs - 1; slot >= 0; --slot) free_slots.push_back(slot);
    chain.reserve(static_cast<size_t>(o.max_model_len / o.block_size + 1));
    run_length.resize(specs.size());
    copies.reserve(static_cast<size_t>(o.max_num_seqs) * specs.size());
    for (const KvGroupSpec& spec : specs) {
      copies_blocks = copies_blocks && spec.kind != KvGroupKind::kState;
    }
  }

  int32_t open_slot(RequestId id) {
    if (free_slots.empty()) return IdMap::kAbsent;
    const int32_t slot = free_slots.back();
    free_slots.pop_back();
    slots[static_cast<size_t>(slot)] = KvHolder{.id = id, .in_use = true, .extras = {}};
    slot_of.insert(id, slot);
    return slot;
  }

  [[nodiscard]] int32_t num_holders() const { return static_cast<int32_t>(slot_of.size()); }

  // Whether node `i` of a chain ends where a state group has a snapshot.
  [[nodiscard]] bool ends_entry(const KvGroup& group, int32_t i) const {
    return (i + 1) * options.block_size % group.tokens_per_entry == 0;
  }

  [[nodiscard]] int32_t entry_of(const KvGroup& group, int32_t i) const {
    return (i + 1) * options.block_size / group.tokens_per_entry - 1;
  }

  // Whether a state group keeps the state at the end of entry `i` for other requests.
  [[nodiscard]] bool is_snapshot(const KvGroup& group, const KvHolder& holder, int32_t i) const;
  // Blocks that the request takes for the entries up to `wanted`.
  [[nodiscard]] int32_t num_to_take(const KvGroup& group, int32_t slot, int32_t wanted) const;
  // Whether entry `i` of those up to `end`, which are taken together, has a block of its own.
  [[nodiscard]] bool needs_block(const KvGroup& group,
                                 const KvHolder& holder,
                                 int32_t i,
                                 int32_t end) const;
  [[nodiscard]] int64_t num_held(const KvGroup& group) const;
  void keep_last_state(int32_t slot);

  struct Hit {
    int32_t num_blocks = 0;
    int32_t without_states = 0;  // that groups without states can serve
  };

  Hit longest_hit(std::span<const TokenId> tokens, const PrefixExtras& extras, bool takes_unproven);
  void share_hit(int32_t slot, int32_t num_hit_blocks);
  int32_t find_partial(KvHolder& slot, std::span<const TokenId> tokens, int32_t num_hit_blocks);
  void copy_partial(int32_t slot);
  void let_go(KvGroup& group, int32_t slot, int32_t first_needed);

  void give_back_evicted(int32_t group, int32_t tag) {
    if (tag == BlockPool::kNoTag) return;
    if (events != nullptr && !index.is_tail(tag)) {
      events->removed(index.hash(tag), group, KvMedium::kDevice);
    }
    index.detach(tag, group);
  }

  void release(KvGroup& group, BlockId block) const {
    const int32_t tag = group.pool.tag(block);
    group.pool.release(block, tag == BlockPool::kNoTag ? 0 : index.worth(tag));
  }

  // Where a block's contents come from. Arrived ones may still be wrong.
  enum class Origin : uint8_t { kComputed, kArrived, kUnproven };

  // Tells it of block `i` of the holder's prefix.
  static Origin origin_of(const KvHolder& holder, int32_t i) {
    if (i >= holder.num_arriving) return Origin::kComputed;
    return holder.needs_proof ? Origin::kUnproven : Origin::kArrived;
  }

  [[nodiscard]] bool is_prover(RequestId id) const {
    return std::ranges::find(provers, id) != provers.end();
  }

  [[nodiscard]] bool is_unproven(int32_t node) const {
    for (size_t g = 0; g < groups.size(); ++g) {
      const BlockId block = index.block(node, static_cast<int32_t>(g));
      if (block != kNullBlock && groups[g].pool.is_unproven(block)) return true;
    }
    return false;
  }

  void make_findable(int32_t node,
                     int32_t group,
                     BlockId block,
                     Origin origin = Origin::kComputed) {
    BlockPool& pool = groups[static_cast<size_t>(group)].pool;
    pool.set_tag(block, node);
    if (origin == Origin::kUnproven) pool.set_unproven(block, true);
    index.attach(node, group, block);
    if (index.is_tail(node)) return;
    if (states != nullptr && origin == Origin::kComputed) publish_state(node, group);
    if (events == nullptr) return;
    events->stored({.hash = index.hash(node),
                    .parent_hash = parent_hash(node),
                    .token_ids = index.node_tokens(node),
                    .extras = index.extras(node),
                    .group = group});
  }

  [[nodiscard]] std::optional<uint64_t> parent_hash(int32_t node) const {
    const int32_t parent = index.parent(node);
    if (parent == PrefixIndex::kRoot) return std::nullopt;
    return index.hash(parent);
  }

  // Tells the node's state once its last block is there, which is the group's.
  void publish_state(int32_t node, int32_t group);

  int32_t collect(int32_t num_tokens,
                  std::span<const int32_t> first_wanted,
                  std::vector<KvBlockRef>& found) const;
  void reserve(int32_t group,
               int32_t slot,
               int32_t num_tokens,
               std::vector<KvBlockRef>& reserved);
  void drop_subtree(int32_t top);
  bool has_kept_blocks(std::span<const int32_t> nodes) const;
  // The pinned node of the next block; may evict a cached block to get one. kAbsent: none left.
  int32_t next_node(int32_t parent, std::span<const TokenId> ids, const PrefixExtras& extras);
  // Indexes the first `num_blocks` blocks of the request, as far as nodes are left.
  void index_blocks(int32_t slot, std::span<const TokenId> tokens, int32_t num_blocks);
  bool index_next_block(int32_t slot, std::span<const TokenId> tokens);
  [[nodiscard]] std::string check_tables() const;
};

}  // namespace sluice
