// SPDX-License-Identifier: Apache-2.0
// What others ask a KvCacheManager about itself: sizes, usage, and whether its parts agree.
#include <cstddef>
#include <string>
#include <vector>

#include "kvcache/kv_cache_manager_impl.h"

namespace sluice {

int32_t KvCacheManager::num_filled(int32_t group) const {
  const BlockPool& pool = impl_->groups[static_cast<size_t>(group)].pool;
  return pool.num_blocks() - pool.num_free();
}

KvUsage KvCacheManager::usage() const {
  KvUsage usage;
  for (const KvGroup& group : impl_->groups) {
    usage.num_blocks += group.pool.num_blocks();
    usage.num_free += group.pool.num_free();
    usage.num_cached += group.pool.num_cached();
    usage.num_referenced += group.pool.num_referenced();
    usage.num_pinned += group.pool.num_pinned();
    if (group.spec.kind != KvGroupKind::kState) continue;
    usage.num_states += group.pool.num_blocks();
    usage.num_states_referenced += group.pool.num_referenced();
  }
  usage.prefix_queries = impl_->prefix_queries;
  usage.prefix_hits = impl_->prefix_hits;
  return usage;
}

int32_t KvCacheManager::num_groups() const { return static_cast<int32_t>(impl_->groups.size()); }

bool KvCacheManager::caches_prefixes() const { return impl_->options.enable_prefix_caching; }

int32_t KvCacheManager::block_size() const { return impl_->options.block_size; }

int32_t KvCacheManager::num_entries(int32_t group, int32_t num_tokens) const {
  return impl_->groups[static_cast<size_t>(group)].entries_for(num_tokens);
}

// Checks tables against pools: refcounts are the holders found, tags and index entries agree.
std::string KvCacheManager::Impl::check_tables() const {
  for (size_t g = 0; g < groups.size(); ++g) {
    const KvGroup& group = groups[g];
    const std::string name = "group " + std::to_string(g) + ": ";
    std::vector<int32_t> holders(static_cast<size_t>(group.pool.num_blocks()), 0);
    for (size_t s = 0; s < slots.size(); ++s) {
      const auto slot = static_cast<int32_t>(s);
      if (!slots[s].in_use && group.count(slot) != 0) return name + "a free slot holds blocks";
      for (int32_t i = 0; i < group.max_entries; ++i) {
        const BlockId block = group.entry(slot, i);
        const bool kept = i >= group.kept_from(slot) && i < group.count(slot);
        if ((block != kNullBlock) != kept) return name + "a table entry is wrongly (un)set";
        if (kept && !group.goes_on(slot, i)) ++holders[static_cast<size_t>(block.value)];
      }
    }
    for (int32_t b = 0; b < group.pool.num_blocks(); ++b) {
      const BlockId block{b};
      if (group.pool.refcount(block) != holders[static_cast<size_t>(b)]) {
        return name + "refcount of block " + std::to_string(b) + " is not its holders";
      }
      const int32_t tag = group.pool.tag(block);
      if (tag != BlockPool::kNoTag && index.block(tag, static_cast<int32_t>(g)) != block) {
        return name + "block " + std::to_string(b) + " is not where its tag says";
      }
    }
  }
  return {};
}

std::string KvCacheManager::check_integrity() const {
  const Impl& m = *impl_;
  int64_t num_tagged = 0;
  for (const KvGroup& group : m.groups) {
    if (std::string wrong = group.pool.check_integrity(); !wrong.empty()) return wrong;
    for (int32_t b = 0; b < group.pool.num_blocks(); ++b) {
      num_tagged += group.pool.tag(BlockId{b}) != BlockPool::kNoTag;
    }
  }
  if (std::string wrong = m.check_tables(); !wrong.empty()) return wrong;
  std::vector<int32_t> pins;
  size_t num_in_use = 0;
  for (const KvHolder& slot : m.slots) {
    num_in_use += slot.in_use;
    if (slot.in_use) pins.push_back(slot.cursor);
  }
  if (num_in_use != m.slot_of.size() || num_in_use + m.free_slots.size() != m.slots.size()) {
    return "slots are miscounted";
  }
  if (m.index.num_blocks() != num_tagged) return "the prefix index names blocks without a tag";
  return m.index.check_integrity(pins);
}

}  // namespace sluice
