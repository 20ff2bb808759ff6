// SPDX-License-Identifier: Apache-2.0
// The index of cached prefixes and the blocks that hold them. It is a tree of nodes, one for each
// block_size tokens of a prefix; a node names the block that holds these tokens' KV in each group
// that has one. The tail of a prefix, less than a block, may have a node too: it has no children,
// and a request that goes on in the same way uses a copy of its block.
//
// A node is found by a chained hash (xxHash64 family, seeded with the parent's hash) in an open-
// addressing table, and then compared: parent node, token ids and extras must be equal, so a
// collision can cost a probe and never an answer. A node lives while it has a block, a child or a
// pin; parents therefore outlive children and the identity of the parent is the identity of the
// whole prefix. What a block holds is a function of that prefix, so a block may be attached to a
// node at any time and a hit does not depend on who computed it.
//
// Everything is sized at construction. Engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/types.h"
#include "kvcache/key_index.h"
#include "kvcache/prefix_extras.h"

namespace sluice {

// The hash of the whole prefix that `token_ids` end; `parent` is the hash of the prefix before
// them. It is equal in every process.
uint64_t prefix_hash(std::optional<uint64_t> parent,
                     std::span<const TokenId> token_ids,
                     const PrefixExtras& extras);

class PrefixIndex {
 public:
  static constexpr int32_t kRoot = -1;    // the parent of first blocks
  static constexpr int32_t kAbsent = -2;  // no such node, or no room for one

  PrefixIndex(int32_t max_nodes, int32_t block_size, int32_t num_groups);

  // Appends the nodes of the leading blocks of `token_ids`, up to the first that is not there.
  void find_chain(std::span<const TokenId> token_ids,
                  const PrefixExtras& extras,
                  std::vector<int32_t>& chain) const;
  // Returns the existing node or a new one without blocks, pinned once; kAbsent when all nodes are
  // in use. `token_ids` may be less than a block, for a tail.
  [[nodiscard]] int32_t find_or_insert_pinned(int32_t parent,
                                              std::span<const TokenId> token_ids,
                                              const PrefixExtras& extras);

  // Gives whole blocks keys in this space from now on. Called before the first node.
  void set_key_space(std::string space);
  // The node of the block with this key, or kAbsent.
  [[nodiscard]] int32_t find_key(const KvKey& key) const {
    return keys_ ? keys_->find(key) : kAbsent;
  }

  // The keys of a whole block's node and of what is in front of it, where there is a space.
  [[nodiscard]] const KvKey& key(int32_t node) const { return keys_->key(node); }

  [[nodiscard]] KvKey parent_key(int32_t node) const {
    const int32_t parent = at(node).parent;
    return parent == kRoot ? kv_root_key(key_space_, at(node).extras) : key(parent);
  }

  // The children of a node, the newest first; kAbsent behind the last.
  [[nodiscard]] int32_t first_child(int32_t node) const { return at(node).first_child; }

  [[nodiscard]] int32_t next_sibling(int32_t node) const { return at(node).next_sibling; }

  // The child of `parent` that shares the longest beginning with `token_ids`, among the newest
  // children that have a block in every group.
  struct PartialMatch {
    int32_t node = kAbsent;
    int32_t num_tokens = 0;
  };

  [[nodiscard]] PartialMatch find_partial(int32_t parent,
                                          std::span<const TokenId> token_ids,
                                          const PrefixExtras& extras) const;

  [[nodiscard]] BlockId block(int32_t node, int32_t group) const {
    return blocks_[block_index(node, group)];
  }

  [[nodiscard]] uint64_t hash(int32_t node) const { return at(node).hash; }

  [[nodiscard]] int32_t parent(int32_t node) const { return at(node).parent; }

  [[nodiscard]] const PrefixExtras& extras(int32_t node) const { return at(node).extras; }

  [[nodiscard]] std::span<const TokenId> node_tokens(int32_t node) const;

  [[nodiscard]] bool is_tail(int32_t node) const { return at(node).num_tokens < block_size_; }

  void attach(int32_t node, int32_t group, BlockId block);
  void detach(int32_t node, int32_t group);

  // Counts an admission that found the prefix. The caller counts it for all ancestors too.
  void count_hit(int32_t node) { ++nodes_[static_cast<size_t>(node)].num_hits; }

  // Keeps the prefix cached for long. The caller does so for all ancestors too.
  void keep(int32_t node) { nodes_[static_cast<size_t>(node)].is_kept = true; }

  // The worth of the node's blocks to the pool: 0 to BlockPool::kMaxWorth, at most its parent's.
  [[nodiscard]] int32_t worth(int32_t node) const;

  // A pinned node and its ancestors stay, with or without blocks. The root needs no pin.
  void pin(int32_t node);
  void unpin(int32_t node);

  [[nodiscard]] int64_t num_blocks() const { return num_blocks_; }  // attached blocks, all groups

  // Checks all invariants. `pins` lists the node of each pin held. Returns "" when right.
  [[nodiscard]] std::string check_integrity(std::span<const int32_t> pins) const;

 private:
  struct Node {
    uint64_t hash = 0;
    PrefixExtras extras;
    int32_t parent = kRoot;  // next free node while unused
    int32_t num_users = 0;   // children and pins
    int32_t num_blocks = 0;
    int32_t num_tokens = 0;
    int32_t first_child = kAbsent;   // the newest child
    int32_t next_sibling = kAbsent;  // the next older one
    int32_t previous_sibling = kAbsent;
    uint32_t num_hits = 0;
    bool is_kept = false;
    bool in_use = false;
  };

  [[nodiscard]] size_t block_index(int32_t node, int32_t group) const {
    return static_cast<size_t>(node) * static_cast<size_t>(num_groups_) +
           static_cast<size_t>(group);
  }

  [[nodiscard]] const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }

  [[nodiscard]] uint64_t hash_of(int32_t parent,
                                 std::span<const TokenId> token_ids,
                                 const PrefixExtras& extras) const;
  [[nodiscard]] int32_t find_hashed(uint64_t hash,
                                    int32_t parent,
                                    std::span<const TokenId> token_ids,
                                    const PrefixExtras& extras) const;

  [[nodiscard]] KvKey key_of(int32_t parent,
                             std::span<const TokenId> token_ids,
                             const PrefixExtras& extras) const;

  [[nodiscard]] int32_t& first_child_of(int32_t parent) {
    return parent == kRoot ? root_child_ : nodes_[static_cast<size_t>(parent)].first_child;
  }

  [[nodiscard]] bool has_all_blocks(int32_t node) const {
    return at(node).num_blocks == num_groups_;
  }

  void link_child(int32_t node);
  void unlink_child(int32_t node);
  void drop_if_unused(int32_t node);
  void erase_from_table(int32_t node);

  int32_t block_size_ = 0;
  int32_t num_groups_ = 0;
  int32_t num_nodes_ = 0;
  int64_t num_blocks_ = 0;
  int32_t free_head_ = kAbsent;
  int32_t root_child_ = kAbsent;  // first_child of the root
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;  // [node][block_size]
  std::vector<BlockId> blocks_;  // [node][group]
  std::vector<int32_t> table_;   // node or kAbsent; a power of two, at most half full
  size_t mask_ = 0;
  std::string key_space_;
  std::optional<KeyIndex> keys_;  // keys of whole blocks; empty without a space
};

}  // namespace sluice
