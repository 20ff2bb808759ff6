// SPDX-License-Identifier: Apache-2.0
#include "kvcache/kv_cache_manager.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "engine/core/status.h"
#include "kvcache/kv_cache_manager_impl.h"

namespace sluice {

KvCacheManager::KvCacheManager(const KvManagerOptions& options, std::vector<KvGroupSpec> groups)
    : impl_(std::make_unique<Impl>(options, groups)) {}

KvCacheManager::~KvCacheManager() = default;

// Fills `chain` and returns how many of its blocks every group can serve. One pass: full groups cut
// the chain at their first gap; a window group allows a cut where enough blocks before it are
// present, a state group where a snapshot is.
KvCacheManager::Impl::Hit KvCacheManager::Impl::longest_hit(std::span<const TokenId> tokens,
                                                            const PrefixExtras& extras,
                                                            bool takes_unproven) {
  const auto block_size = static_cast<size_t>(options.block_size);
  chain.clear();
  index.find_chain(tokens.first((tokens.size() - 1) / block_size * block_size), extras, chain);
  std::ranges::fill(run_length, 0);
  Hit best;
  for (int32_t i = 0; i < static_cast<int32_t>(chain.size()); ++i) {
    const int32_t node = chain[static_cast<size_t>(i)];
    const int32_t num_tokens = (i + 1) * options.block_size;
    bool usable = true;
    bool has_states = true;
    for (size_t g = 0; g < groups.size(); ++g) {
      const BlockId block = index.block(node, static_cast<int32_t>(g));
      const bool present =
          block != kNullBlock && (takes_unproven || !groups[g].pool.is_unproven(block));
      switch (groups[g].spec.kind) {
        case KvGroupKind::kFull:
        case KvGroupKind::kLatent:
          if (!present) return best;
          break;
        case KvGroupKind::kWindow:
          run_length[g] = present ? run_length[g] + 1 : 0;
          usable = usable && run_length[g] >= i + 1 - groups[g].first_needed(num_tokens);
          break;
        case KvGroupKind::kState:
          has_states = has_states && present;
          break;
      }
    }
    if (usable) best.without_states = i + 1;
    if (usable && has_states) best.num_blocks = i + 1;
  }
  return best;
}

void KvCacheManager::Impl::share_hit(int32_t slot, int32_t num_hit_blocks) {
  const int32_t num_tokens = num_hit_blocks * options.block_size;
  for (size_t g = 0; g < groups.size(); ++g) {
    KvGroup& group = groups[g];
    const int32_t count = num_tokens / group.tokens_per_entry;
    const bool state = group.spec.kind == KvGroupKind::kState;
    const int32_t first = state ? count - 1 : group.first_needed(num_tokens);
    for (int32_t entry = first; entry < count; ++entry) {
      const int32_t last_node = (entry + 1) * group.tokens_per_entry / options.block_size - 1;
      const BlockId block =
          index.block(chain[static_cast<size_t>(last_node)], static_cast<int32_t>(g));
      group.pool.share(block);
      group.entry(slot, entry) = block;
    }
    group.num_entries[static_cast<size_t>(slot)] = count;
    group.first_kept[static_cast<size_t>(slot)] = first;
  }
}

int32_t KvCacheManager::acquire_prefix(RequestId id,
                                       std::span<const TokenId> tokens,
                                       const PrefixExtras& extras,
                                       PrefixUse use) {
  Impl& m = *impl_;
  CHECK_EQ(m.slot_of.find(id), IdMap::kAbsent);
  CHECK(!tokens.empty());
  const int32_t slot_index = m.open_slot(id);
  if (slot_index == IdMap::kAbsent) return 0;
  KvHolder& slot = m.slots[static_cast<size_t>(slot_index)];
  slot.extras = extras;
  slot.num_known = static_cast<int32_t>(tokens.size());
  if (!m.options.enable_prefix_caching) return 0;
  const Impl::Hit hit = m.longest_hit(tokens, extras, m.is_prover(id));
  const int32_t num_hit_blocks = hit.num_blocks;
  slot.junction = hit.without_states * m.options.block_size;
  slot.num_shared = num_hit_blocks * m.options.block_size;
  int32_t num_found = num_hit_blocks * m.options.block_size;
  if (use != PrefixUse::kTransfer) num_found += m.find_partial(slot, tokens, num_hit_blocks);
  if (use == PrefixUse::kAdmission) {
    slot.num_queried = static_cast<int32_t>(tokens.size());
    slot.num_found = num_found;
  }
  if (num_hit_blocks == 0) return num_found;
  m.share_hit(slot_index, num_hit_blocks);
  slot.num_indexed = num_hit_blocks;
  slot.cursor = m.chain[static_cast<size_t>(num_hit_blocks) - 1];
  m.index.pin(slot.cursor);
  return num_found;
}

// --- States -----------------------------------------------------------------------------------

bool KvCacheManager::Impl::is_snapshot(const KvGroup& group,
                                       const KvHolder& holder,
                                       int32_t i) const {
  if (group.spec.kind != KvGroupKind::kState || group.spec.snapshot_every == 0) return true;
  const int32_t unit = group.tokens_per_entry;
  const int32_t end = (i + 1) * unit;
  // The next request with this prompt computes its last token at least.
  return end == holder.num_shared || end == holder.junction / unit * unit ||
         end == (holder.num_known - 1) / unit * unit || end % group.spec.snapshot_every == 0;
}

bool KvCacheManager::Impl::needs_block(const KvGroup& group,
                                       const KvHolder& holder,
                                       int32_t i,
                                       int32_t end) const {
  if (group.spec.kind != KvGroupKind::kState || i == 0) return true;
  if (!options.enable_prefix_caching) return false;
  // An answer may end at any token: its last whole entry is left until the next one is computed.
  const bool is_answer = i * group.tokens_per_entry >= holder.num_known && i + 1 == end;
  return is_answer || is_snapshot(group, holder, i - 1);
}

int32_t KvCacheManager::Impl::num_to_take(const KvGroup& group,
                                          int32_t slot,
                                          int32_t wanted) const {
  const int32_t held = slot == IdMap::kAbsent ? 0 : group.count(slot);
  if (group.spec.kind != KvGroupKind::kState) return wanted - held;
  const KvHolder holder = slot == IdMap::kAbsent ? KvHolder{} : slots[static_cast<size_t>(slot)];
  int32_t taken = 0;
  for (int32_t i = held; i < wanted; ++i) taken += needs_block(group, holder, i, wanted) ? 1 : 0;
  return taken;
}

int64_t KvCacheManager::Impl::num_held(const KvGroup& group) const {
  int64_t held = 0;
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    held += group.num_held(static_cast<int32_t>(slot));
  }
  return held;
}

// Makes the state at the end of the last indexed block findable, unless the next entry overwrites
// it, before the request releases everything: a request that continues its answer begins there.
void KvCacheManager::Impl::keep_last_state(int32_t slot) {
  const KvHolder& holder = slots[static_cast<size_t>(slot)];
  const int32_t last = holder.num_indexed - 1;
  if (last < 0 || holder.is_unsound) return;
  if (holder.num_arriving == 0 && is_prover(holder.id)) return;
  for (size_t g = 0; g < groups.size(); ++g) {
    KvGroup& group = groups[g];
    if (group.spec.kind != KvGroupKind::kState || !ends_entry(group, last)) continue;
    const int32_t i = entry_of(group, last);
    if (i < group.kept_from(slot) || i >= group.count(slot)) continue;
    const bool is_left = i + 1 == group.count(slot) || !group.goes_on(slot, i + 1);
    const auto index_of = static_cast<int32_t>(g);
    if (!is_left || index.block(holder.cursor, index_of) != kNullBlock) continue;
    if (group.pool.tag(group.entry(slot, i)) != BlockPool::kNoTag) continue;
    make_findable(holder.cursor, index_of, group.entry(slot, i), origin_of(holder, last));
  }
}

// --- Prefixes ---------------------------------------------------------------------------------

// Returns how many tokens after the whole blocks a cached block begins with.
int32_t KvCacheManager::Impl::find_partial(KvHolder& slot,
                                           std::span<const TokenId> tokens,
                                           int32_t num_hit_blocks) {
  if (!copies_blocks) return 0;
  const auto block_size = static_cast<size_t>(options.block_size);
  const size_t begin = static_cast<size_t>(num_hit_blocks) * block_size;
  const int32_t parent =
      num_hit_blocks == 0 ? PrefixIndex::kRoot : chain[static_cast<size_t>(num_hit_blocks) - 1];
  const std::span<const TokenId> rest =
      tokens.subspan(begin, std::min(block_size, tokens.size() - 1 - begin));
  const PrefixIndex::PartialMatch match = index.find_partial(parent, rest, slot.extras);
  if (match.node == PrefixIndex::kAbsent || is_unproven(match.node)) return 0;
  slot.partial_node = match.node;
  return match.num_tokens;
}

// Takes the block to copy to as the request's next one. If that is the cached block itself, because
// there is no other, its contents are where they should be.
void KvCacheManager::Impl::copy_partial(int32_t slot) {
  KvHolder& holder = slots[static_cast<size_t>(slot)];
  const int32_t node = std::exchange(holder.partial_node, PrefixIndex::kAbsent);
  if (node == PrefixIndex::kAbsent) return;
  for (size_t g = 0; g < groups.size(); ++g) {
    const BlockId from = index.block(node, static_cast<int32_t>(g));
    CHECK_NE(from, kNullBlock);
    groups[g].pool.share(from);  // share and release make it the last one to be evicted
    release(groups[g], from);
    copies.push_back({.group = static_cast<int32_t>(g), .from = from, .to = kNullBlock});
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    KvGroup& group = groups[g];
    int32_t& count = group.num_entries[static_cast<size_t>(slot)];
    const BlockPool::Taken taken = group.pool.take();
    give_back_evicted(static_cast<int32_t>(g), taken.evicted_tag);
    group.entry(slot, count++) = taken.block;
    copies[copies.size() - groups.size() + g].to = taken.block;
  }
  std::erase_if(copies, [](const KvBlockCopy& copy) { return copy.from == copy.to; });
}

bool KvCacheManager::has_room(RequestId id,
                              int32_t num_tokens,
                              int32_t num_spare_blocks,
                              int32_t num_growing_blocks) const {
  const Impl& m = *impl_;
  const int32_t slot = m.slot_of.find(id);
  for (const KvGroup& group : m.groups) {
    const int32_t held = slot == IdMap::kAbsent ? 0 : group.num_held(slot);
    const int32_t needed = std::max(0, group.max_held_for(num_tokens) - held);
    // The newcomer counts as a holder too: it will need its next block, like the others.
    int64_t most = int64_t{m.num_holders()} * group.max_held;
    if (group.spec.kind == KvGroupKind::kState) {
      most -= m.num_held(group) + (slot == IdMap::kAbsent ? 0 : needed);
    }
    const int64_t spare = std::clamp<int64_t>(num_spare_blocks, 0, std::max<int64_t>(0, most));
    const bool grows =
        group.spec.kind == KvGroupKind::kFull || group.spec.kind == KvGroupKind::kLatent;
    const int64_t kept = grows ? std::max<int64_t>(spare, num_growing_blocks) : spare;
    if (needed + kept > group.pool.num_available()) return false;
  }
  return true;
}

bool KvCacheManager::allocate_slots(RequestId id, int32_t num_tokens) {
  Impl& m = *impl_;
  CHECK_LE(num_tokens, m.options.max_model_len);
  int32_t slot = m.slot_of.find(id);
  for (const KvGroup& group : m.groups) {
    const int32_t taken = m.num_to_take(group, slot, group.entries_for(num_tokens));
    if (taken > group.pool.num_available()) return false;
  }
  if (slot == IdMap::kAbsent) slot = m.open_slot(id);
  if (slot == IdMap::kAbsent) return false;
  m.copy_partial(slot);
  for (size_t g = 0; g < m.groups.size(); ++g) {
    KvGroup& group = m.groups[g];
    int32_t& count = group.num_entries[static_cast<size_t>(slot)];
    for (const int32_t wanted = group.entries_for(num_tokens); count < wanted; ++count) {
      if (!m.needs_block(group, m.slots[static_cast<size_t>(slot)], count, wanted)) {
        group.entry(slot, count) = group.entry(slot, count - 1);
        continue;
      }
      const BlockPool::Taken taken = group.pool.take();
      m.give_back_evicted(static_cast<int32_t>(g), taken.evicted_tag);
      group.entry(slot, count) = taken.block;
    }
  }
  KvHolder& holder = m.slots[static_cast<size_t>(slot)];
  if (holder.num_queried > 0) {
    for (int32_t node = holder.cursor; node != PrefixIndex::kRoot; node = m.index.parent(node)) {
      m.index.count_hit(node);
    }
  }
  m.prefix_queries += static_cast<uint64_t>(std::exchange(holder.num_queried, 0));
  m.prefix_hits += static_cast<uint64_t>(std::exchange(holder.num_found, 0));
  return true;
}

bool KvCacheManager::has_unused(RequestId id,
                                int32_t num_tokens,
                                int32_t num_spare_blocks) const {
  const int32_t slot = impl_->slot_of.find(id);
  return std::ranges::all_of(impl_->groups, [&](const KvGroup& group) {
    const int32_t needed = impl_->num_to_take(group, slot, group.entries_for(num_tokens));
    return needed <= 0 || needed + num_spare_blocks <= group.pool.num_free();
  });
}

int32_t KvCacheManager::most_drafts(int32_t num_tokens) const {
  int32_t most = std::numeric_limits<int32_t>::max();
  for (const KvGroup& group : impl_->groups) {
    if (group.spec.kind != KvGroupKind::kState) continue;
    const int32_t to_end = group.tokens_per_entry - num_tokens % group.tokens_per_entry;
    most = std::min({most, group.spec.most_drafts, to_end - 1});
  }
  return most;
}

int32_t KvCacheManager::Impl::next_node(int32_t parent,
                                        std::span<const TokenId> ids,
                                        const PrefixExtras& extras) {
  const int32_t node = index.find_or_insert_pinned(parent, ids, extras);
  if (node != PrefixIndex::kAbsent) return node;
  for (size_t g = 0; g < groups.size(); ++g) {
    give_back_evicted(static_cast<int32_t>(g), groups[g].pool.evict());
  }
  return index.find_or_insert_pinned(parent, ids, extras);
}

// Puts the next full block of the request under its prefix node; false when no node is to be had.
bool KvCacheManager::Impl::index_next_block(int32_t slot, std::span<const TokenId> tokens) {
  KvHolder& holder = slots[static_cast<size_t>(slot)];
  const int32_t i = holder.num_indexed;
  const auto block_size = static_cast<size_t>(options.block_size);
  const auto ids = tokens.subspan(static_cast<size_t>(i) * block_size, block_size);
  const int32_t node = next_node(holder.cursor, ids, holder.extras);
  if (node == PrefixIndex::kAbsent) return false;
  for (size_t g = 0; g < groups.size(); ++g) {
    KvGroup& group = groups[g];
    if (!ends_entry(group, i) || !is_snapshot(group, holder, entry_of(group, i))) continue;
    const BlockId block = group.entry(slot, entry_of(group, i));
    const auto group_index = static_cast<int32_t>(g);
    const BlockId there = index.block(node, group_index);
    if (there != kNullBlock && group.pool.is_unproven(there) && i >= holder.num_arriving) {
      group.pool.clear_tag(there);
      give_back_evicted(group_index, node);
    }
    // Another request may have computed the prefix first: then its block stays the findable one.
    if (block == kNullBlock || index.block(node, group_index) != kNullBlock) continue;
    make_findable(node, group_index, block, origin_of(holder, i));
  }
  index.unpin(holder.cursor);
  holder.cursor = node;
  holder.num_indexed = i + 1;
  if (holder.num_indexed * options.block_size <= holder.num_kept_tokens) index.keep(node);
  return true;
}

void KvCacheManager::Impl::let_go(KvGroup& group, int32_t slot, int32_t first_needed) {
  int32_t& first = group.first_kept[static_cast<size_t>(slot)];
  for (; first < std::min(first_needed, group.count(slot)); ++first) {
    const bool is_last = first + 1 == group.count(slot) || !group.goes_on(slot, first + 1);
    const BlockId block = std::exchange(group.entry(slot, first), kNullBlock);
    if (is_last) release(group, block);
  }
}

void KvCacheManager::Impl::index_blocks(int32_t slot,
                                        std::span<const TokenId> tokens,
                                        int32_t num_blocks) {
  const KvHolder& holder = slots[static_cast<size_t>(slot)];
  if (!options.enable_prefix_caching || holder.is_unsound) return;
  // A block after one that has not arrived must not become findable.
  if (holder.num_arrived < holder.num_arriving) {
    num_blocks = std::min(num_blocks, holder.num_arrived);
  }
  while (holder.num_indexed < num_blocks && index_next_block(slot, tokens)) continue;
}

void KvCacheManager::cache_blocks(RequestId id,
                                  std::span<const TokenId> tokens,
                                  int32_t num_computed_tokens) {
  Impl& m = *impl_;
  const int32_t slot = m.slot_of.find(id);
  if (slot == IdMap::kAbsent) return;
  CHECK_LE(static_cast<size_t>(num_computed_tokens), tokens.size());
  // What is computed after unproven blocks waits for their proof.
  if (!m.is_prover(id)) m.index_blocks(slot, tokens, num_computed_tokens / m.options.block_size);
  for (KvGroup& group : m.groups) m.let_go(group, slot, group.first_needed(num_computed_tokens));
}

void KvCacheManager::keep_prefix(RequestId id, int32_t num_tokens) {
  Impl& m = *impl_;
  const int32_t slot_index = m.slot_of.find(id);
  CHECK_NE(slot_index, IdMap::kAbsent);
  KvHolder& slot = m.slots[static_cast<size_t>(slot_index)];
  slot.num_kept_tokens = num_tokens;
  int32_t num_indexed = slot.num_indexed;
  for (int32_t node = slot.cursor; node != PrefixIndex::kRoot; node = m.index.parent(node)) {
    if (num_indexed-- * m.options.block_size <= num_tokens) m.index.keep(node);
  }
}

void KvCacheManager::cache_tail(RequestId id,
                                std::span<const TokenId> tokens,
                                int32_t num_computed_tokens) {
  Impl& m = *impl_;
  const int32_t slot_index = m.slot_of.find(id);
  if (slot_index == IdMap::kAbsent || !m.options.enable_prefix_caching || !m.copies_blocks) return;
  const KvHolder& slot = m.slots[static_cast<size_t>(slot_index)];
  const int32_t num_full = num_computed_tokens / m.options.block_size;
  const auto num_left = static_cast<size_t>(num_computed_tokens % m.options.block_size);
  if (num_left == 0 || slot.num_indexed != num_full || slot.is_unsound || m.is_prover(id)) return;
  const auto tail = tokens.subspan(
      static_cast<size_t>(num_full) * static_cast<size_t>(m.options.block_size), num_left);
  if (m.index.find_partial(slot.cursor, tail, slot.extras).num_tokens ==
      static_cast<int32_t>(num_left)) {
    return;
  }
  const int32_t node = m.index.find_or_insert_pinned(slot.cursor, tail, slot.extras);
  if (node == PrefixIndex::kAbsent) return;
  for (size_t g = 0; g < m.groups.size(); ++g) {
    const BlockId block = m.groups[g].entry(slot_index, num_full);
    const auto group = static_cast<int32_t>(g);
    if (m.index.block(node, group) == kNullBlock) m.make_findable(node, group, block);
  }
  m.index.unpin(node);
}

void KvCacheManager::take_copies(std::vector<KvBlockCopy>& copies) {
  for (const KvBlockCopy& copy : impl_->copies) begin_transfer(copy.group, copy.from);
  copies.insert(copies.end(), impl_->copies.begin(), impl_->copies.end());
  impl_->copies.clear();
}

void KvCacheManager::end_copies(std::span<const KvBlockCopy> copies) {
  for (const KvBlockCopy& copy : copies) end_transfer(copy.group, copy.from);
}

void KvCacheManager::free(RequestId id) {
  Impl& m = *impl_;
  const int32_t slot = m.slot_of.find(id);
  if (slot == IdMap::kAbsent) return;
  m.keep_last_state(slot);
  for (KvGroup& group : m.groups) {
    // Last block first, so that a prefix is evicted from its end.
    for (int32_t i = group.count(slot) - 1; i >= group.kept_from(slot); --i) {
      if (!group.goes_on(slot, i)) m.release(group, group.entry(slot, i));
      group.entry(slot, i) = kNullBlock;
    }
    group.num_entries[static_cast<size_t>(slot)] = 0;
    group.first_kept[static_cast<size_t>(slot)] = 0;
  }
  m.index.unpin(m.slots[static_cast<size_t>(slot)].cursor);
  m.slots[static_cast<size_t>(slot)] = {};
  m.slot_of.erase(id);
  m.free_slots.push_back(slot);
}

std::span<const BlockId> KvCacheManager::block_table(RequestId id, int32_t group) const {
  const int32_t slot = impl_->slot_of.find(id);
  if (slot == IdMap::kAbsent) return {};
  const KvGroup& g = impl_->groups[static_cast<size_t>(group)];
  return {&g.entry(slot, 0), static_cast<size_t>(g.count(slot))};
}

int32_t KvCacheManager::num_available_blocks() const {
  int32_t available = INT32_MAX;
  for (const KvGroup& group : impl_->groups) {
    available = std::min(available, group.pool.num_available());
  }
  return available;
}

bool KvCacheManager::fits_alone(int32_t num_tokens) const {
  return num_tokens <= impl_->options.max_model_len &&
         std::ranges::all_of(impl_->groups, [num_tokens](const KvGroup& group) {
           return group.max_held_for(num_tokens) <= group.spec.num_blocks;
         });
}

bool KvCacheManager::others_hold_blocks(RequestId id) const {
  const int32_t slot = impl_->slot_of.find(id);
  return std::ranges::any_of(impl_->groups, [slot](const KvGroup& group) {
    const int32_t own = slot == IdMap::kAbsent ? 0 : group.num_held(slot);
    return group.pool.num_blocks() - group.pool.num_available() > own;
  });
}

void KvCacheManager::begin_transfer(int32_t group, BlockId block) {
  impl_->groups[static_cast<size_t>(group)].pool.begin_transfer(block);
}

void KvCacheManager::end_transfer(int32_t group, BlockId block) {
  impl_->groups[static_cast<size_t>(group)].pool.end_transfer(block);
}

void KvCacheManager::set_event_sink(KvEventSink& sink) { impl_->events = &sink; }

void KvCacheManager::reset_prefix_cache() {
  Impl& m = *impl_;
  int64_t num_cached = 0;
  for (const KvGroup& group : m.groups) num_cached += group.pool.num_cached();
  // Blocks in use stay findable; if there are none, one event says it all.
  const bool clears = num_cached == m.index.num_blocks();
  KvEventSink* const events = m.events;
  if (clears) m.events = nullptr;
  for (size_t g = 0; g < m.groups.size(); ++g) {
    while (m.groups[g].pool.num_cached() > 0) {
      m.give_back_evicted(static_cast<int32_t>(g), m.groups[g].pool.evict());
    }
  }
  m.events = events;
  if (clears && events != nullptr) events->cleared();
}

}  // namespace sluice
