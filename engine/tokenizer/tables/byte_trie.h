// SPDX-License-Identifier: Apache-2.0
// A trie over bytes, with a value at each node: lookups walk a text byte by byte. Used by one
// thread while it grows, by many afterwards.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tables/pair_map.h"

namespace sluice {

template <typename Value>
class ByteTrie {
 public:
  static constexpr uint64_t kRoot = 0;
  static constexpr uint64_t kAbsent = PairMap::kAbsent;

  explicit ByteTrie(size_t expected_nodes) : edges_(expected_nodes) {}

  // Returns the child for `byte`; kAbsent: no name continues so.
  [[nodiscard]] uint64_t child(uint64_t node, char byte) const {
    return edges_.find(edge_key(node, byte));
  }

  [[nodiscard]] const Value& value(uint64_t node) const { return values_[node]; }

  // Returns the value at the end of `name`, creating missing nodes. Valid until the next call.
  Value& at(std::string_view name) {
    uint64_t node = kRoot;
    for (const char c : name) {
      const uint64_t next = child(node, c);
      if (next != kAbsent) {
        node = next;
        continue;
      }
      edges_.insert(edge_key(node, c), values_.size());
      node = values_.size();
      values_.emplace_back();
    }
    return values_[node];
  }

 private:
  static uint64_t edge_key(uint64_t node, char byte) {
    return (node << 8) | static_cast<uint8_t>(byte);
  }

  std::vector<Value> values_{Value{}};
  PairMap edges_;  // node << 8 | byte -> node
};

}  // namespace sluice
