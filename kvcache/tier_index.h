// SPDX-License-Identifier: Apache-2.0
// Which blocks of KV lie in a tier below the cache, and which of them goes when it is full: the
// least recently used one that no other block there follows, so that a prefix is lost from its end.
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

  // As the most recently used; one that is there already is only touched.
  void insert(const Name& name);
  // Just used. Unknown keys are ignored.
  void touch(const KvKey& key);
  // Lost or found broken. Unknown keys are ignored.
  void erase(const KvKey& key);
  // While there are more entries than may be: takes the next to go.
  std::optional<Name> evict();

  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(entries_.size()); }

  // Empty when right. Tests.
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
  // Entries by parent, whether or not that is an entry itself.
  std::unordered_map<KvKey, int64_t, KvKeyHash> num_children_;
  std::set<std::pair<uint64_t, KvKey>> leaves_;  // by stamp
};

}  // namespace sluice
