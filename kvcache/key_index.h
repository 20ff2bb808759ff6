// SPDX-License-Identifier: Apache-2.0
// A map from keys (kv_key.h) to nodes of the prefix index: open addressing, sized at construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/probe_run.h"
#include "kvcache/kv_key.h"

namespace sluice {

class KeyIndex {
 public:
  static constexpr int32_t kAbsent = -2;

  explicit KeyIndex(size_t max_nodes) : keys_(max_nodes) {
    size_t capacity = 8;
    while (capacity < max_nodes * 2) capacity *= 2;
    cells_.resize(capacity, kAbsent);
    mask_ = capacity - 1;
  }

  [[nodiscard]] const KvKey& key(int32_t node) const { return keys_[static_cast<size_t>(node)]; }

  [[nodiscard]] int32_t find(const KvKey& key) const {
    for (size_t i = home(key); cells_[i] != kAbsent; i = (i + 1) & mask_) {
      if (keys_[static_cast<size_t>(cells_[i])] == key) return cells_[i];
    }
    return kAbsent;
  }

  // The node must have no key yet, and the key no node.
  void insert(int32_t node, const KvKey& key) {
    keys_[static_cast<size_t>(node)] = key;
    size_t i = home(key);
    while (cells_[i] != kAbsent) i = (i + 1) & mask_;
    cells_[i] = node;
  }

  void erase(int32_t node) {
    size_t i = home(key(node));
    while (cells_[i] != node) i = (i + 1) & mask_;
    close_hole(cells_, i, kAbsent, [this](int32_t other) { return home(key(other)); });
  }

 private:
  [[nodiscard]] size_t home(const KvKey& key) const { return KvKeyHash()(key) & mask_; }

  std::vector<KvKey> keys_;     // by node
  std::vector<int32_t> cells_;  // node or kAbsent; a power of two, at most half full
  size_t mask_ = 0;
};

}  // namespace sluice
