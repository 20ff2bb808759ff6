// SPDX-License-Identifier: Apache-2.0
// The KV blocks of a tier below the cache, and the eviction order when it is full: the least
// recently used block that no other block there follows, so that a prefix is lost from its end.
// Names only, no bytes, clocks or threads; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "kvcache/kv_key.h"

namespace sluice {

class TierIndex {
 public:
  struct Name {
    KvKey key;
    KvKey parent;
  };

  explicit TierIndex(int64_t max_entries) : max_entries_(max_entries) {}

  [[nodiscard]] bool contains(const KvKey& key) const { return entries_.contains(key); }

  // Adds the block as the most recently used; a block that is there already is only touched.
  void insert(const Name& name);
  // Makes the block the most recently used. Unknown keys are ignored.
  void touch(const KvKey& key);
  // Removes a block that was lost or found broken. Unknown keys are ignored.
  void erase(const KvKey& key);
  // Removes and returns the next block to evict, if there are more entries than max_entries.
  std::optional<Name> evict();

  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(entries_.size()); }

  // Returns "" when right. For tests.
  [[nodiscard]] std::string check_integrity() const;

 private:
  struct Entry {
    KvKey parent;
    uint64_t stamp;  // of the last use
  };

  [[nodiscard]] bool is_leaf(const KvKey& key) const { return !num_children_.contains(key); }

  int64_t max_entries_;
  uint64_t next_stamp_ = 0;
  std::unordered_map<KvKey, Entry, KvKeyHash> entries_;
  // Number of entries by parent key, whether or not the parent is an entry itself.
  std::unordered_map<KvKey, int64_t, KvKeyHash> num_children_;
  std::set<std::pair<uint64_t, KvKey>> leaves_;  // by stamp
};

}  // namespace sluice
