// SPDX-License-Identifier: Apache-2.0
// KV that travels between workers: which blocks are needed, found, kept, reserved and published.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "engine/core/status.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/kv_cache_manager_impl.h"

namespace sluice {

// --- What is needed ---------------------------------------------------------------------------

KvRange KvGroup::needed_entries(int32_t num_tokens) const {
  const int32_t end = num_tokens / tokens_per_entry;
  const int32_t first = spec.kind == KvGroupKind::kState ? std::max(0, end - 1)
                                                         : std::min(end, first_needed(num_tokens));
  return {.first = first, .count = end - first};
}

KvRange KvCacheManager::needed_entries(int32_t group, int32_t num_tokens) const {
  return impl_->groups[static_cast<size_t>(group)].needed_entries(num_tokens);
}

int32_t KvCacheManager::max_transferred(int32_t num_tokens) const {
  int32_t unit = impl_->options.block_size;
  for (const KvGroup& group : impl_->groups) unit = std::lcm(unit, group.tokens_per_entry);
  return std::max(0, num_tokens - 1) / unit * unit;
}

// --- What is found ----------------------------------------------------------------------------

void KvCacheManager::name_blocks(std::string space) {
  impl_->index.set_key_space(std::move(space));
}

// Collects blocks of the nodes in `chain`, which begin a prefix of `num_tokens` tokens.
int32_t KvCacheManager::Impl::collect(int32_t num_tokens,
                                      std::span<const int32_t> first_wanted,
                                      std::vector<KvBlockRef>& found) const {
  for (int32_t i = 0; i < static_cast<int32_t>(chain.size()); ++i) {
    const size_t num_found = found.size();
    for (size_t g = 0; g < groups.size(); ++g) {
      const KvGroup& group = groups[g];
      const KvRange needed = group.needed_entries(num_tokens);
      const int32_t entry = entry_of(group, i);
      const bool is_wanted = ends_entry(group, i) && entry >= needed.first &&
                             (first_wanted.empty() || entry >= first_wanted[g]);
      if (!is_wanted) continue;
      const BlockId block = index.block(chain[static_cast<size_t>(i)], static_cast<int32_t>(g));
      if (block == kNullBlock || group.pool.is_unproven(block)) {
        found.resize(num_found);
        return i;
      }
      found.push_back({.group = static_cast<int32_t>(g),
                       .entry = entry,
                       .block = block,
                       .generation = group.pool.generation(block)});
    }
  }
  return static_cast<int32_t>(chain.size());
}

int32_t KvCacheManager::find_blocks(std::span<const TokenId> tokens,
                                    const PrefixExtras& extras,
                                    std::span<const int32_t> first_wanted,
                                    std::vector<KvBlockRef>& found) const {
  Impl& m = *impl_;
  CHECK(first_wanted.empty() || first_wanted.size() == m.groups.size());
  m.chain.clear();
  m.index.find_chain(tokens, extras, m.chain);
  return m.collect(static_cast<int32_t>(tokens.size()), first_wanted, found);
}

int32_t KvCacheManager::find_blocks(std::span<const KvKey> keys,
                                    std::span<const int32_t> first_wanted,
                                    std::vector<KvBlockRef>& found) const {
  Impl& m = *impl_;
  CHECK(first_wanted.empty() || first_wanted.size() == m.groups.size());
  for (size_t i = keys.size(); i-- > 0;) {
    m.chain.clear();
    for (int32_t node = m.index.find_key(keys[i]); node >= 0; node = m.index.parent(node)) {
      m.chain.push_back(node);
    }
    std::ranges::reverse(m.chain);
    const auto length = static_cast<int32_t>(m.chain.size());
    // A request cannot continue from a prefix that ends inside of an entry.
    const int32_t num_tokens = length * block_size();
    if (length == 0 || max_transferred(num_tokens + 1) != num_tokens) continue;
    const size_t num_found = found.size();
    if (m.collect(num_tokens, first_wanted, found) == length) return length;
    found.resize(num_found);
  }
  return 0;
}

void KvCacheManager::blocks_of(RequestId id, std::vector<KvBlockRef>& blocks) const {
  for (int32_t group = 0; group < num_groups(); ++group) {
    const BlockPool& pool = impl_->groups[static_cast<size_t>(group)].pool;
    const std::span<const BlockId> table = block_table(id, group);
    for (size_t entry = 0; entry < table.size(); ++entry) {
      if (table[entry] == kNullBlock) continue;
      blocks.push_back({.group = group,
                        .entry = static_cast<int32_t>(entry),
                        .block = table[entry],
                        .generation = pool.generation(table[entry])});
    }
  }
}

bool KvCacheManager::is_current(const KvBlockRef& ref) const {
  const BlockPool& pool = impl_->groups[static_cast<size_t>(ref.group)].pool;
  return pool.generation(ref.block) == ref.generation && pool.has_contents(ref.block);
}

// --- What is kept -----------------------------------------------------------------------------

int32_t KvCacheManager::pin(std::span<const KvBlockRef> blocks) {
  int32_t num_pinned = 0;
  for (const KvBlockRef& ref : blocks) {
    BlockPool& pool = impl_->groups[static_cast<size_t>(ref.group)].pool;
    if (!is_current(ref) || !pool.pin(ref.block)) break;
    ++num_pinned;
  }
  return num_pinned;
}

void KvCacheManager::unpin(std::span<const KvBlockRef> blocks) {
  // Last block first, so that a prefix is evicted from its end.
  for (size_t i = blocks.size(); i-- > 0;) {
    impl_->groups[static_cast<size_t>(blocks[i].group)].pool.unpin(blocks[i].block);
  }
}

// --- What arrives -----------------------------------------------------------------------------

bool KvCacheManager::reserve(RequestId id, int32_t num_tokens, std::vector<KvBlockRef>& reserved) {
  Impl& m = *impl_;
  CHECK_LE(num_tokens, m.options.max_model_len);
  CHECK_EQ(max_transferred(num_tokens + 1), num_tokens);
  int32_t slot = m.slot_of.find(id);
  for (const KvGroup& group : m.groups) {
    const KvRange needed = group.needed_entries(num_tokens);
    const int32_t held = slot == IdMap::kAbsent ? 0 : group.count(slot);
    if (needed.end() - std::max(needed.first, held) > group.pool.num_available()) return false;
  }
  if (slot == IdMap::kAbsent) slot = m.open_slot(id);
  if (slot == IdMap::kAbsent) return false;
  KvHolder& holder = m.slots[static_cast<size_t>(slot)];
  holder.partial_node = PrefixIndex::kAbsent;
  holder.num_found = std::min(holder.num_found, holder.num_indexed * m.options.block_size);
  holder.num_arrived = holder.num_indexed;
  holder.num_arriving = num_tokens / m.options.block_size;
  for (size_t g = 0; g < m.groups.size(); ++g) {
    m.reserve(static_cast<int32_t>(g), slot, num_tokens, reserved);
  }
  return true;
}

void KvCacheManager::Impl::reserve(int32_t group_index,
                                   int32_t slot,
                                   int32_t num_tokens,
                                   std::vector<KvBlockRef>& reserved) {
  KvGroup& group = groups[static_cast<size_t>(group_index)];
  const KvRange needed = group.needed_entries(num_tokens);
  int32_t& count = group.num_entries[static_cast<size_t>(slot)];
  if (needed.end() <= count) return;
  let_go(group, slot, needed.first);
  int32_t& first_kept = group.first_kept[static_cast<size_t>(slot)];
  first_kept = std::max(first_kept, needed.first);
  for (count = std::max(count, needed.first); count < needed.end(); ++count) {
    const BlockPool::Taken taken = group.pool.take();
    give_back_evicted(group_index, taken.evicted_tag);
    group.entry(slot, count) = taken.block;
    reserved.push_back({.group = group_index,
                        .entry = count,
                        .block = taken.block,
                        .generation = group.pool.generation(taken.block)});
  }
}

void KvCacheManager::publish(RequestId id,
                             std::span<const TokenId> tokens,
                             int32_t num_tokens,
                             bool needs_proof) {
  Impl& m = *impl_;
  const int32_t slot = m.slot_of.find(id);
  if (slot == IdMap::kAbsent) return;
  KvHolder& holder = m.slots[static_cast<size_t>(slot)];
  CHECK_EQ(num_tokens % m.options.block_size, 0);
  holder.needs_proof = needs_proof;
  holder.num_arrived =
      std::clamp(num_tokens / m.options.block_size, holder.num_arrived, holder.num_arriving);
  m.index_blocks(slot, tokens, holder.num_arrived);
}

// Nodes go children first, so that no parent goes before its children.
void KvCacheManager::Impl::drop_subtree(int32_t top) {
  std::vector<int32_t> nodes = {top};
  for (size_t i = 0; i < nodes.size(); ++i) {
    index.pin(nodes[i]);
    int32_t child = index.first_child(nodes[i]);
    for (; child >= 0; child = index.next_sibling(child)) nodes.push_back(child);
  }
  for (KvHolder& holder : slots) {
    if (!holder.in_use) continue;
    if (std::ranges::find(nodes, holder.cursor) != nodes.end()) holder.is_unsound = true;
  }
  for (size_t i = nodes.size(); i-- > 0;) {
    for (size_t g = 0; g < groups.size(); ++g) {
      const BlockId block = index.block(nodes[i], static_cast<int32_t>(g));
      if (block == kNullBlock) continue;
      groups[g].pool.clear_tag(block);
      give_back_evicted(static_cast<int32_t>(g), nodes[i]);
    }
    index.unpin(nodes[i]);
  }
}

void KvCacheManager::unpublish(RequestId id, int32_t num_tokens) {
  Impl& m = *impl_;
  std::erase(m.provers, id);
  const int32_t slot = m.slot_of.find(id);
  if (slot == IdMap::kAbsent) return;
  KvHolder& holder = m.slots[static_cast<size_t>(slot)];
  const int32_t num_kept = num_tokens / m.options.block_size;
  holder.is_unsound = true;
  int32_t top = PrefixIndex::kAbsent;
  int32_t node = holder.cursor;
  for (int32_t depth = holder.num_indexed; depth > 0; --depth) {
    if (depth > num_kept || m.is_unproven(node)) top = node;
    node = m.index.parent(node);
  }
  if (top != PrefixIndex::kAbsent) m.drop_subtree(top);
}

void KvCacheManager::expect_proof(RequestId id) {
  std::vector<RequestId>& provers = impl_->provers;
  if (std::ranges::find(provers, id) == provers.end()) provers.push_back(id);
}

void KvCacheManager::prove(RequestId id, std::span<const KvBlockRef> blocks) {
  std::erase(impl_->provers, id);
  for (const KvBlockRef& ref : blocks) {
    if (!is_current(ref)) continue;
    impl_->groups[static_cast<size_t>(ref.group)].pool.set_unproven(ref.block, false);
  }
}

void KvCacheManager::withdraw(RequestId id, std::span<const KvBlockRef> blocks) {
  Impl& m = *impl_;
  std::erase(m.provers, id);
  for (const KvBlockRef& ref : blocks) {
    BlockPool& pool = m.groups[static_cast<size_t>(ref.group)].pool;
    const int32_t node = pool.tag(ref.block);
    if (!is_current(ref) || node == BlockPool::kNoTag || !pool.is_unproven(ref.block)) continue;
    pool.clear_tag(ref.block);
    m.give_back_evicted(ref.group, node);
  }
}

bool KvCacheManager::is_proven(RequestId id) const {
  if (impl_->is_prover(id)) return false;
  const int32_t slot = impl_->slot_of.find(id);
  return slot == IdMap::kAbsent || !impl_->slots[static_cast<size_t>(slot)].is_unsound;
}

// --- What comes from below --------------------------------------------------------------------

// Whether the nodes have all blocks of the groups that keep every token.
bool KvCacheManager::Impl::has_kept_blocks(std::span<const int32_t> nodes) const {
  return std::ranges::all_of(nodes, [this](int32_t node) {
    for (size_t g = 0; g < groups.size(); ++g) {
      const KvGroupKind kind = groups[g].spec.kind;
      const bool keeps_all = kind == KvGroupKind::kFull || kind == KvGroupKind::kLatent;
      if (keeps_all && index.block(node, static_cast<int32_t>(g)) == kNullBlock) return false;
    }
    return true;
  });
}

int32_t KvCacheManager::num_kept_blocks(std::span<const TokenId> tokens,
                                        const PrefixExtras& extras) const {
  Impl& m = *impl_;
  const bool has_window = std::ranges::any_of(
      m.groups, [](const KvGroup& group) { return group.spec.kind == KvGroupKind::kWindow; });
  if (has_window) return 0;
  m.chain.clear();
  m.index.find_chain(tokens, extras, m.chain);
  const auto lacks = [&m](const int32_t& node) { return !m.has_kept_blocks(std::span(&node, 1)); };
  return static_cast<int32_t>(std::ranges::find_if(m.chain, lacks) - m.chain.begin());
}

int32_t KvCacheManager::insert(std::span<const TokenId> tokens,
                               const PrefixExtras& extras,
                               const KvRange& blocks,
                               std::span<const uint64_t> groups,
                               std::vector<KvBlockRef>& inserted) {
  Impl& m = *impl_;
  CHECK_EQ(groups.size(), static_cast<size_t>(blocks.count));
  const auto size = static_cast<size_t>(m.options.block_size);
  const auto num_before = static_cast<size_t>(blocks.first);
  const size_t first_inserted = inserted.size();
  m.chain.clear();
  m.index.find_chain(tokens.first(num_before * size), extras, m.chain);
  if (m.chain.size() != num_before || !m.has_kept_blocks(m.chain)) return 0;
  int32_t cursor = m.chain.empty() ? PrefixIndex::kRoot : m.chain.back();
  m.index.pin(cursor);
  const auto insert_block = [&](int32_t i) {
    const auto ids = tokens.subspan(static_cast<size_t>(i) * size, size);
    const int32_t node = m.next_node(cursor, ids, extras);
    if (node == PrefixIndex::kAbsent) return false;
    m.index.unpin(std::exchange(cursor, node));
    for (size_t g = 0; g < m.groups.size(); ++g) {
      KvGroup& group = m.groups[g];
      const auto index = static_cast<int32_t>(g);
      const bool is_given = (groups[static_cast<size_t>(i - blocks.first)] >> g & 1) != 0;
      const bool is_there = m.index.block(node, index) != kNullBlock;
      if (!is_given || is_there || !m.ends_entry(group, i)) continue;
      const BlockPool::Taken taken = group.pool.take();
      if (taken.block == kNullBlock) return false;
      m.give_back_evicted(index, taken.evicted_tag);
      m.make_findable(node, index, taken.block, Impl::Origin::kArrived);
      inserted.push_back({.group = index,
                          .entry = m.entry_of(group, i),
                          .block = taken.block,
                          .generation = group.pool.generation(taken.block)});
    }
    return true;
  };
  int32_t count = 0;
  while (count < blocks.count && insert_block(blocks.first + count)) ++count;
  m.index.unpin(cursor);
  for (size_t i = inserted.size(); i-- > first_inserted;) {
    m.release(m.groups[static_cast<size_t>(inserted[i].group)], inserted[i].block);
  }
  return count;
}

// --- What goes below --------------------------------------------------------------------------

void KvCacheManager::set_state_sink(KvStateSink& sink) { impl_->states = &sink; }

void KvCacheManager::Impl::publish_state(int32_t node, int32_t group) {
  if (groups[static_cast<size_t>(group)].spec.kind != KvGroupKind::kState) return;
  state_blocks.clear();
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].spec.kind != KvGroupKind::kState) continue;
    const BlockId block = index.block(node, static_cast<int32_t>(g));
    if (block == kNullBlock) return;
    state_blocks.push_back({.group = static_cast<int32_t>(g),
                            .block = block,
                            .generation = groups[g].pool.generation(block)});
  }
  states->left({.key = index.key(node),
                .parent_key = index.parent_key(node),
                .hash = index.hash(node),
                .parent_hash = parent_hash(node),
                .token_ids = index.node_tokens(node),
                .extras = index.extras(node),
                .blocks = state_blocks});
}

}  // namespace sluice
