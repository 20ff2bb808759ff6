// SPDX-License-Identifier: Apache-2.0
// A trie over bytes, built once from all its names and read-only afterwards: a step is one load, or
// two at a node with more than eight children.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

template <typename Value>
class PackedTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kAbsent = 0;  // child value; no node leads back to the root

  // Names must not be empty; of equal ones the last counts. They need not outlive the call.
  void build(std::vector<std::pair<std::string_view, Value>> names) {
    std::stable_sort(
        names.begin(), names.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    nodes_.assign(1, Node{});
    dense_.clear();
    values_.assign(1, Value{});
    // Breadth first, so that the children of a node are adjacent.
    std::vector<Range> level{{0, names.size(), kRoot}};
    for (size_t depth = 0; !level.empty(); ++depth) {
      std::vector<Range> next;
      for (const Range& range : level) expand(names, range, depth, next);
      level = std::move(next);
    }
    nodes_.shrink_to_fit();
  }

  // Returns the child for `byte`; kAbsent: no name continues so.
  [[nodiscard]] uint32_t child(uint32_t node, char byte) const {
    const Node& here = nodes_[node];
    const auto label = static_cast<uint8_t>(byte);
    if (here.num_children > kMaxLabels) return dense_[here.first_child][label];
    // The lowest zero byte of `differences` is found exactly; unused labels are zeros too.
    constexpr uint64_t kOnes = 0x0101010101010101ULL;
    const uint64_t differences = here.labels ^ (kOnes * label);
    const uint64_t zeros = (differences - kOnes) & ~differences & (kOnes << 7);
    const auto index = static_cast<uint32_t>(std::countr_zero(zeros)) / 8;
    return index < here.num_children ? here.first_child + index : kAbsent;
  }

  // Returns nullptr where no name ends.
  [[nodiscard]] const Value* value(uint32_t node) const {
    const uint32_t index = nodes_[node].value;
    return index == 0 ? nullptr : &values_[index];
  }

 private:
  static constexpr uint32_t kMaxLabels = 8;

  struct Node {
    uint64_t labels = 0;       // bytes of the children, the first one lowest
    uint32_t first_child = 0;  // index of a node, or of a table for too many children
    uint32_t num_children = 0;
    uint32_t value = 0;  // 0: none
  };

  using Table = std::array<uint32_t, 256>;  // child by byte

  struct Range {  // sorted names that share the path to `node`
    size_t begin = 0;
    size_t end = 0;
    uint32_t node = kRoot;
  };

  void expand(const std::vector<std::pair<std::string_view, Value>>& names,
              Range range,
              size_t depth,
              std::vector<Range>& next) {
    for (; range.begin < range.end && names[range.begin].first.size() == depth; ++range.begin) {
      nodes_[range.node].value = static_cast<uint32_t>(values_.size());
      values_.push_back(names[range.begin].second);
    }
    const size_t first_range = next.size();
    const size_t first_node = nodes_.size();
    while (range.begin < range.end) {
      const char label = names[range.begin].first[depth];
      size_t end = range.begin + 1;
      while (end < range.end && names[end].first[depth] == label) ++end;
      next.push_back({range.begin, end, static_cast<uint32_t>(nodes_.size())});
      nodes_.push_back({});
      range.begin = end;
    }
    CHECK(nodes_.size() < UINT32_MAX);
    Node& node = nodes_[range.node];
    node.num_children = static_cast<uint32_t>(next.size() - first_range);
    if (node.num_children <= kMaxLabels) {
      node.first_child = static_cast<uint32_t>(first_node);
      for (uint32_t i = 0; i < node.num_children; ++i) {
        node.labels |= uint64_t{label_of(names, next[first_range + i], depth)} << (8 * i);
      }
      return;
    }
    node.first_child = static_cast<uint32_t>(dense_.size());
    Table& table = dense_.emplace_back();
    table.fill(kAbsent);
    for (size_t i = first_range; i < next.size(); ++i) {
      table[label_of(names, next[i], depth)] = next[i].node;
    }
  }

  static uint8_t label_of(const std::vector<std::pair<std::string_view, Value>>& names,
                          const Range& range,
                          size_t depth) {
    return static_cast<uint8_t>(names[range.begin].first[depth]);
  }

  std::vector<Node> nodes_{Node{}};
  std::vector<Table> dense_;
  std::vector<Value> values_;
};

}  // namespace sluice
