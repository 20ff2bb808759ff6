// SPDX-License-Identifier: Apache-2.0
#include "kvcache/store/tier_index.h"

namespace sluice {

void TierIndex::insert(const Name& name) {
  const auto [it, added] = entries_.try_emplace(name.key, Entry{name.parent, 0});
  if (added) {
    ++num_children_[name.parent];
    const auto parent = entries_.find(name.parent);
    if (parent != entries_.end()) leaves_.erase({parent->second.stamp, name.parent});
  }
  touch(name.key);
}

void TierIndex::touch(const KvKey& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  const uint64_t before = it->second.stamp;
  it->second.stamp = ++next_stamp_;
  if (!is_leaf(key)) return;
  leaves_.erase({before, key});
  leaves_.insert({it->second.stamp, key});
}

void TierIndex::erase(const KvKey& key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  const Entry entry = it->second;
  leaves_.erase({entry.stamp, key});
  entries_.erase(it);
  const auto siblings = num_children_.find(entry.parent);
  if (--siblings->second > 0) return;
  num_children_.erase(siblings);
  const auto parent = entries_.find(entry.parent);
  if (parent != entries_.end()) leaves_.insert({parent->second.stamp, entry.parent});
}

std::optional<TierIndex::Name> TierIndex::evict() {
  if (size() <= max_entries_) return std::nullopt;
  // Names are external input and may form a cycle: then any entry may be evicted.
  const KvKey key = leaves_.empty() ? entries_.begin()->first : leaves_.begin()->second;
  const Name name{key, entries_.at(key).parent};
  erase(key);
  return name;
}

std::string TierIndex::check_integrity() const {
  std::unordered_map<KvKey, int64_t, KvKeyHash> children;
  for (const auto& [key, entry] : entries_) ++children[entry.parent];
  if (children != num_children_) return "children are miscounted";
  size_t num_leaves = 0;
  for (const auto& [key, entry] : entries_) {
    if (children.contains(key)) continue;
    ++num_leaves;
    if (!leaves_.contains({entry.stamp, key})) return "a leaf is not listed";
  }
  if (num_leaves != leaves_.size()) return "something else is listed as a leaf";
  return {};
}

}  // namespace sluice
