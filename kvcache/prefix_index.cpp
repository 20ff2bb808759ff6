// SPDX-License-Identifier: Apache-2.0
#include "kvcache/prefix_index.h"

// A lookup hashes every block of a prompt: calls into the library would be a third of it.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "engine/core/probe_run.h"
#include "engine/core/status.h"
#include "kvcache/block_pool.h"

namespace sluice {
namespace {

// Children examined for a partial match, so that a lookup is short however many prompts there are.
constexpr int kMaxChildrenSeen = 16;

}  // namespace

uint64_t prefix_hash(std::optional<uint64_t> parent,
                     std::span<const TokenId> token_ids,
                     const PrefixExtras& extras) {
  uint64_t seed = 0;
  if (parent) {
    seed = *parent;
  } else {
    const uint64_t fields[] = {
        extras.tenant_salt, static_cast<uint64_t>(extras.adapter_id), extras.media_hash};
    seed = XXH3_64bits(fields, sizeof(fields));
  }
  return XXH3_64bits_withSeed(token_ids.data(), token_ids.size_bytes(), seed);
}

PrefixIndex::PrefixIndex(int32_t max_nodes, int32_t block_size, int32_t num_groups)
    : block_size_(block_size), num_groups_(num_groups) {
  const auto count = static_cast<size_t>(max_nodes);
  nodes_.resize(count);
  tokens_.resize(count * static_cast<size_t>(block_size));
  blocks_.resize(count * static_cast<size_t>(num_groups), kNullBlock);
  for (int32_t node = max_nodes - 1; node >= 0; --node) {
    nodes_[static_cast<size_t>(node)].parent = free_head_;
    free_head_ = node;
  }
  size_t capacity = 8;
  while (capacity < count * 2) capacity *= 2;
  table_.resize(capacity, kAbsent);
  mask_ = capacity - 1;
}

std::span<const TokenId> PrefixIndex::node_tokens(int32_t node) const {
  return std::span(tokens_).subspan(static_cast<size_t>(node) * static_cast<size_t>(block_size_),
                                    static_cast<size_t>(at(node).num_tokens));
}

uint64_t PrefixIndex::hash_of(int32_t parent,
                              std::span<const TokenId> token_ids,
                              const PrefixExtras& extras) const {
  if (parent == kRoot) return prefix_hash(std::nullopt, token_ids, extras);
  return prefix_hash(at(parent).hash, token_ids, extras);
}

void PrefixIndex::set_key_space(std::string space) {
  CHECK_EQ(num_nodes_, 0);
  key_space_ = std::move(space);
  keys_.emplace(nodes_.size());
}

KvKey PrefixIndex::key_of(int32_t parent,
                          std::span<const TokenId> token_ids,
                          const PrefixExtras& extras) const {
  return kv_next_key(parent == kRoot ? kv_root_key(key_space_, extras) : keys_->key(parent),
                     token_ids);
}

int32_t PrefixIndex::find_hashed(uint64_t hash,
                                 int32_t parent,
                                 std::span<const TokenId> token_ids,
                                 const PrefixExtras& extras) const {
  for (size_t i = hash & mask_; table_[i] != kAbsent; i = (i + 1) & mask_) {
    const Node& node = nodes_[static_cast<size_t>(table_[i])];
    if (node.hash == hash && node.parent == parent && node.extras == extras &&
        std::ranges::equal(node_tokens(table_[i]), token_ids)) {
      return table_[i];
    }
  }
  return kAbsent;
}

void PrefixIndex::find_chain(std::span<const TokenId> token_ids,
                             const PrefixExtras& extras,
                             std::vector<int32_t>& chain) const {
  const auto block_size = static_cast<size_t>(block_size_);
  int32_t parent = kRoot;
  std::optional<uint64_t> hash;  // kept apart from `parent`, so hashing need not wait for a node
  for (size_t end = block_size; end <= token_ids.size(); end += block_size) {
    const std::span<const TokenId> own = token_ids.subspan(end - block_size, block_size);
    hash = prefix_hash(hash, own, extras);
    parent = find_hashed(*hash, parent, own, extras);
    if (parent == kAbsent) return;
    chain.push_back(parent);
  }
}

int32_t PrefixIndex::find_or_insert_pinned(int32_t parent,
                                           std::span<const TokenId> token_ids,
                                           const PrefixExtras& extras) {
  const uint64_t hash = hash_of(parent, token_ids, extras);
  const int32_t found = find_hashed(hash, parent, token_ids, extras);
  if (found != kAbsent) {
    pin(found);
    return found;
  }
  if (free_head_ == kAbsent) return kAbsent;
  const int32_t added = free_head_;
  Node& node = nodes_[static_cast<size_t>(added)];
  free_head_ = node.parent;
  node = Node{.hash = hash,
              .extras = extras,
              .parent = parent,
              .num_users = 1,
              .num_tokens = static_cast<int32_t>(token_ids.size()),
              .in_use = true};
  link_child(added);
  std::ranges::copy(token_ids, tokens_.begin() + static_cast<ptrdiff_t>(added) * block_size_);
  if (parent != kRoot) ++nodes_[static_cast<size_t>(parent)].num_users;
  size_t i = hash & mask_;
  while (table_[i] != kAbsent) i = (i + 1) & mask_;
  table_[i] = added;
  if (keys_ && !is_tail(added)) keys_->insert(added, key_of(parent, token_ids, extras));
  ++num_nodes_;
  return added;
}

// Recomputing a block costs about the same for all; past hits tell how often that would happen.
int32_t PrefixIndex::worth(int32_t node) const {
  const Node& n = at(node);
  if (n.is_kept) return BlockPool::kMaxWorth;
  return std::min(static_cast<int32_t>(std::bit_width(n.num_hits + 1)) - 1,
                  BlockPool::kMaxWorth - 1);
}

PrefixIndex::PartialMatch PrefixIndex::find_partial(int32_t parent,
                                                    std::span<const TokenId> token_ids,
                                                    const PrefixExtras& extras) const {
  PartialMatch best;
  int32_t child = parent == kRoot ? root_child_ : at(parent).first_child;
  for (int seen = 0; child != kAbsent && seen < kMaxChildrenSeen; ++seen) {
    const std::span<const TokenId> own = node_tokens(child);
    const auto limit = static_cast<ptrdiff_t>(std::min(own.size(), token_ids.size()));
    if (limit > best.num_tokens && has_all_blocks(child) && at(child).extras == extras) {
      const auto end = std::mismatch(own.begin(), own.begin() + limit, token_ids.begin()).first;
      const auto num_tokens = static_cast<int32_t>(end - own.begin());
      if (num_tokens > best.num_tokens) best = {child, num_tokens};
    }
    child = at(child).next_sibling;
  }
  return best;
}

void PrefixIndex::link_child(int32_t node) {
  Node& added = nodes_[static_cast<size_t>(node)];
  int32_t& first = first_child_of(added.parent);
  added.next_sibling = first;
  if (first != kAbsent) nodes_[static_cast<size_t>(first)].previous_sibling = node;
  first = node;
}

void PrefixIndex::unlink_child(int32_t node) {
  const Node& gone = at(node);
  if (gone.next_sibling != kAbsent) {
    nodes_[static_cast<size_t>(gone.next_sibling)].previous_sibling = gone.previous_sibling;
  }
  if (gone.previous_sibling != kAbsent) {
    nodes_[static_cast<size_t>(gone.previous_sibling)].next_sibling = gone.next_sibling;
  } else {
    first_child_of(gone.parent) = gone.next_sibling;
  }
}

void PrefixIndex::attach(int32_t node, int32_t group, BlockId block) {
  BlockId& slot = blocks_[block_index(node, group)];
  CHECK_EQ(slot, kNullBlock);
  slot = block;
  ++nodes_[static_cast<size_t>(node)].num_blocks;
  ++num_blocks_;
}

void PrefixIndex::detach(int32_t node, int32_t group) {
  BlockId& slot = blocks_[block_index(node, group)];
  CHECK_NE(slot, kNullBlock);
  slot = kNullBlock;
  --nodes_[static_cast<size_t>(node)].num_blocks;
  --num_blocks_;
  drop_if_unused(node);
}

void PrefixIndex::pin(int32_t node) {
  if (node != kRoot) ++nodes_[static_cast<size_t>(node)].num_users;
}

void PrefixIndex::unpin(int32_t node) {
  if (node == kRoot) return;
  --nodes_[static_cast<size_t>(node)].num_users;
  drop_if_unused(node);
}

// Removing a node may leave its parent without a use, and so on up.
void PrefixIndex::drop_if_unused(int32_t node) {
  while (node != kRoot) {
    Node& dropped = nodes_[static_cast<size_t>(node)];
    if (dropped.num_users != 0 || dropped.num_blocks != 0) return;
    erase_from_table(node);
    if (keys_ && !is_tail(node)) keys_->erase(node);
    unlink_child(node);
    const int32_t parent = dropped.parent;
    dropped.in_use = false;
    dropped.parent = free_head_;
    free_head_ = node;
    --num_nodes_;
    if (parent != kRoot) --nodes_[static_cast<size_t>(parent)].num_users;
    node = parent;
  }
}

void PrefixIndex::erase_from_table(int32_t node) {
  const auto home = [this](int32_t of) { return nodes_[static_cast<size_t>(of)].hash & mask_; };
  size_t i = home(node);
  while (table_[i] != node) i = (i + 1) & mask_;
  close_hole(table_, i, kAbsent, home);
}

std::string PrefixIndex::check_integrity(std::span<const int32_t> pins) const {
  std::vector<int32_t> users(nodes_.size(), 0);
  for (const int32_t node : pins) {
    if (node != kRoot) ++users[static_cast<size_t>(node)];
  }
  int32_t count = 0;
  int32_t num_listed = 0;
  int64_t total_blocks = 0;
  for (int32_t child = root_child_; child != kAbsent; child = at(child).next_sibling) ++num_listed;
  for (const Node& node : nodes_) {
    if (!node.in_use) continue;
    ++count;
    for (int32_t child = node.first_child; child != kAbsent; child = at(child).next_sibling) {
      ++num_listed;
    }
    total_blocks += node.num_blocks;
    if (node.parent == kRoot) continue;
    if (!nodes_[static_cast<size_t>(node.parent)].in_use) return "a prefix node lost its parent";
    ++users[static_cast<size_t>(node.parent)];
  }
  if (num_listed != num_nodes_) return "prefix nodes are not the children of their parents";
  if (count != num_nodes_ || total_blocks != num_blocks_) return "prefix nodes are miscounted";
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    const auto id = static_cast<int32_t>(i);
    int32_t num_blocks = 0;
    for (int32_t group = 0; group < num_groups_; ++group)
      num_blocks += block(id, group) != kNullBlock;
    if (!node.in_use) {
      if (num_blocks != 0) return "an unused prefix node has blocks";
      continue;
    }
    const std::string name = "prefix node " + std::to_string(i);
    if (node.num_users != users[i]) return name + " miscounts children and pins";
    if (node.num_blocks != num_blocks) return name + " miscounts blocks";
    if (users[i] == 0 && num_blocks == 0) return name + " should be gone";
    if (is_tail(id) && node.first_child != kAbsent) return name + " is a tail and has children";
    if (keys_ && !is_tail(id) && keys_->find(keys_->key(id)) != id) return name + " lost its key";
    const std::span<const TokenId> ids = node_tokens(id);
    if (find_hashed(hash_of(node.parent, ids, node.extras), node.parent, ids, node.extras) != id) {
      return name + " is not findable";
    }
  }
  return {};
}

}  // namespace sluice
