// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/suffix_tree.h"

#include <algorithm>
#include <bit>

#include "engine/core/probe_run.h"
#include "engine/core/status.h"

namespace sluice {

namespace {

constexpr size_t kMinTable = 64;
constexpr int kEvictedAToken = 4;        // suffixes of sequences beyond the limit, per token
constexpr int32_t kMaxLeaving = 64;      // sequences beyond the limit; more are removed at once
constexpr int64_t kSequenceBytes = 128;  // per sequence, with its own root

uint64_t hash_of(int32_t parent, TokenId token) {
  const uint64_t key =
      (static_cast<uint64_t>(static_cast<uint32_t>(parent)) << 32) | static_cast<uint32_t>(token);
  const uint64_t mixed = key * 0x9E3779B97F4A7C15ULL;
  return mixed ^ (mixed >> 29);
}

// Classes of agreement for confidence_bin(): by the share of occurrences with this continuation.
int32_t agreement_of(double share, int32_t count) {
  if (share >= 1) return count > 1 ? 0 : 1;
  return share >= 0.5 ? 2 : 3;
}

}  // namespace

SuffixTree::SuffixTree(const SuffixTreeLimits& limits) : limits_(limits), table_(kMinTable, kNone) {
  CHECK_GE(limits.max_depth, 2);
  CHECK_GE(limits.max_nodes, 4 * limits.max_depth);
  path_.reserve(static_cast<size_t>(limits.max_depth));
  growing_.reserve(static_cast<size_t>(limits.max_depth) + 1);
  if (!limits.reserves) return;
  // A token may add two nodes per level before the oldest are removed.
  const auto most = static_cast<size_t>(limits.max_nodes + 2 * limits.max_depth + 2);
  nodes_.reserve(most);
  table_.assign(std::bit_ceil(2 * most), kNone);
}

void SuffixTree::clear() {
  nodes_.clear();
  first_free_ = kNone;
  num_nodes_ = 0;
  std::ranges::fill(table_, kNone);
  roots_.clear();
  text_.clear();
  text_begin_ = 0;
  sequences_.clear();
  growing_.clear();
  is_open_ = false;
}

// Text and positions.

uint32_t SuffixTree::end_position() const {
  return text_begin_ + static_cast<uint32_t>(text_.size());
}

TokenId SuffixTree::token_at(uint32_t position) const {
  const uint32_t index = position - text_begin_;
  return index < text_.size() ? text_[index] : kInvalidToken;
}

// Nodes and the table that finds them.

size_t SuffixTree::home_of(int32_t parent, TokenId token) const {
  return static_cast<size_t>(hash_of(parent, token)) & (table_.size() - 1);
}

size_t SuffixTree::slot_of(int32_t parent, TokenId token) const {
  const size_t mask = table_.size() - 1;
  size_t slot = home_of(parent, token);
  while (table_[slot] != kNone &&
         (at(table_[slot]).parent != parent || at(table_[slot]).token != token)) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

int32_t SuffixTree::find_child(int32_t parent, TokenId token) const {
  return table_[slot_of(parent, token)];
}

void SuffixTree::grow_table() {
  std::vector<int32_t> old(2 * table_.size(), kNone);
  old.swap(table_);
  for (const int32_t node : old) {
    if (node != kNone) table_[slot_of(at(node).parent, at(node).token)] = node;
  }
}

int32_t SuffixTree::new_node() {
  ++num_nodes_;
  if (first_free_ == kNone) {
    nodes_.emplace_back();
    return static_cast<int32_t>(nodes_.size()) - 1;
  }
  const int32_t node = first_free_;
  first_free_ = at(node).next;
  at(node) = {};
  return node;
}

void SuffixTree::free_node(int32_t node) {
  at(node).next = first_free_;
  first_free_ = node;
  --num_nodes_;
}

int32_t SuffixTree::root_of(uint64_t salt) {
  const auto found = roots_.find(salt);
  if (found != roots_.end()) return found->second;
  const int32_t root = new_node();
  roots_.emplace(salt, root);
  return root;
}

// Adds a node with one suffix; `depth` is the node's own.
int32_t SuffixTree::add_child(int32_t parent, TokenId token, uint32_t where, int32_t depth) {
  if (2 * static_cast<size_t>(num_nodes_ + 1) > table_.size()) grow_table();
  const int32_t node = new_node();
  Node& added = at(node);
  added.parent = parent;
  added.token = token;
  added.count = 1;
  added.where = where;
  added.is_leaf = depth < limits_.max_depth;
  added.next = at(parent).first_child;
  if (added.next != kNone) at(added.next).previous = node;
  at(parent).first_child = node;
  table_[slot_of(parent, token)] = node;
  const int32_t best = at(parent).best_child;
  if (best == kNone || at(best).count <= 1) at(parent).best_child = node;
  return node;
}

// Removes a node without children.
void SuffixTree::remove_node(int32_t node) {
  const Node removed = at(node);
  close_hole(table_, slot_of(removed.parent, removed.token), kNone, [this](int32_t other) {
    return home_of(at(other).parent, at(other).token);
  });
  if (removed.previous != kNone) at(removed.previous).next = removed.next;
  if (removed.next != kNone) at(removed.next).previous = removed.previous;
  if (at(removed.parent).first_child == node) at(removed.parent).first_child = removed.next;
  if (at(removed.parent).best_child == node) choose_best(removed.parent);
  free_node(node);
}

void SuffixTree::choose_best(int32_t node) {
  int32_t best = at(node).first_child;
  for (int32_t child = best; child != kNone; child = at(child).next) {
    if (at(child).count > at(best).count) best = child;
  }
  at(node).best_child = best;
}

// Adding sequences.

void SuffixTree::open(uint64_t salt) {
  close();
  shrink();
  sequences_.push_back({end_position(), end_position(), salt});
  growing_.clear();
  root_of(salt);
  is_open_ = true;
}

void SuffixTree::close() {
  if (!is_open_) return;
  const uint32_t end = end_position();
  const uint32_t begin = sequences_.back().begin;
  for (const Growing& suffix : growing_) ++at(suffix.node).num_ends;
  growing_.clear();
  sequences_.back().end = end;
  text_.push_back(kInvalidToken);
  is_open_ = false;
  if (end != begin) return;
  const uint64_t salt = sequences_.back().salt;
  sequences_.pop_back();
  release_root(salt);
}

// A second suffix reaches the leaf: the first one moves on to a child.
void SuffixTree::expand(int32_t leaf, int32_t depth) {
  const uint32_t where = at(leaf).where;
  at(leaf).is_leaf = false;
  const TokenId token = token_at(where);
  if (token == kInvalidToken) {
    ++at(leaf).num_ends;
    return;
  }
  add_child(leaf, token, where + 1, depth + 1);
}

// Moves `suffix`, at an inner node, to this depth by the last token of the text.
void SuffixTree::advance(Growing& suffix, int32_t depth, TokenId token) {
  const int32_t child = find_child(suffix.node, token);
  if (child == kNone) {
    suffix.node = add_child(suffix.node, token, end_position(), depth);
    return;
  }
  if (at(child).is_leaf) expand(child, depth);
  Node& node = at(child);
  ++node.count;
  Node& parent = at(suffix.node);
  if (node.count >= at(parent.best_child).count) parent.best_child = child;
  suffix.node = child;
}

void SuffixTree::append(TokenId token) {
  CHECK(is_open_);
  const uint32_t position = end_position();
  text_.push_back(token);
  const int32_t root = root_of(sequences_.back().salt);
  ++at(root).count;
  growing_.push_back({position, root});
  size_t num_left = 0;
  for (Growing suffix : growing_) {
    const auto depth = static_cast<int32_t>(position - suffix.start) + 1;
    advance(suffix, depth, token);
    const bool is_done = at(suffix.node).is_leaf || depth == limits_.max_depth;
    if (!is_done) growing_[num_left++] = suffix;
  }
  growing_.resize(num_left);
  shrink();
}

// Removing sequences.

void SuffixTree::shrink() {
  const auto is_over = [&] {
    return num_nodes_ > limits_.max_nodes || num_tokens() > limits_.max_tokens;
  };
  while (is_over() && evict_suffix()) {
  }
  for (int i = 0; num_sequences() > limits_.max_sequences; ++i) {
    const bool is_far_over = num_sequences() > limits_.max_sequences + kMaxLeaving;
    if ((i >= kEvictedAToken && !is_far_over) || !evict_suffix()) break;
  }
}

// Removes the oldest suffix; false: it still grows, or there is none.
bool SuffixTree::evict_suffix() {
  if (sequences_.empty()) return false;
  Sequence& oldest = sequences_.front();
  const uint32_t start = oldest.begin;
  const bool is_open = is_open_ && sequences_.size() == 1;
  if (is_open && start == (growing_.empty() ? end_position() : growing_.front().start))
    return false;
  path_.clear();
  int32_t node = roots_.find(oldest.salt)->second;
  --at(node).count;
  for (int32_t depth = 0; depth < limits_.max_depth; ++depth) {
    const TokenId token = token_at(start + static_cast<uint32_t>(depth));
    if (token == kInvalidToken) {
      --at(node).num_ends;
      break;
    }
    const int32_t parent = node;
    node = find_child(parent, token);
    --at(node).count;
    path_.push_back(node);
    if (at(node).is_leaf) break;
  }
  for (size_t i = path_.size(); i-- > 0;) {
    const int32_t parent = at(path_[i]).parent;
    if (at(path_[i]).count == 0) {
      remove_node(path_[i]);
    } else if (at(parent).best_child == path_[i]) {
      choose_best(parent);
    }
  }
  ++oldest.begin;
  if (!is_open && oldest.begin == oldest.end) forget_sequence();
  drop_text();
  return true;
}

void SuffixTree::forget_sequence() {
  const uint64_t salt = sequences_.front().salt;
  sequences_.pop_front();
  release_root(salt);
}

void SuffixTree::release_root(uint64_t salt) {
  const auto root = roots_.find(salt);
  if (at(root->second).count > 0) return;
  const bool is_used = is_open_ && sequences_.back().salt == salt;
  if (is_used) return;
  free_node(root->second);
  roots_.erase(root);
}

// Text before the oldest suffix is not read again.
void SuffixTree::drop_text() {
  const uint32_t begin = sequences_.empty() ? end_position() : sequences_.front().begin;
  const uint32_t num_dead = begin - text_begin_;
  if (num_dead < 1024 || 2 * static_cast<size_t>(num_dead) < text_.size()) return;
  text_.erase(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(num_dead));
  text_begin_ += num_dead;
}

// Queries.

bool SuffixTree::step(Place& place, TokenId token) const {
  if (place.in_leaf) {
    if (token_at(place.where) != token) return false;
    ++place.where;
  } else {
    place.node = find_child(place.node, token);
    if (place.node == kNone) return false;
    place.in_leaf = at(place.node).is_leaf;
    place.where = at(place.node).where;
  }
  ++place.depth;
  return true;
}

// Whether the path to `place` is also the end of the open sequence.
bool SuffixTree::text_ends_at(const Place& place) const {
  const uint32_t start = end_position() - static_cast<uint32_t>(place.depth);
  return std::ranges::any_of(growing_, [&](const Growing& suffix) {
    return suffix.start == start && suffix.node == place.node;
  });
}

// Finds the most frequent continuation of the path to `place`, among occurrences with one.
bool SuffixTree::best_follower(const Place& place, Follower& follower) const {
  if (place.in_leaf) {
    follower = {token_at(place.where), 1, 1};
    return follower.token != kInvalidToken;
  }
  const Node& node = at(place.node);
  if (node.best_child == kNone) return false;
  const int32_t num_going_on = node.count - node.num_ends - (text_ends_at(place) ? 1 : 0);
  const Node& child = at(node.best_child);
  follower = {child.token, static_cast<double>(child.count) / num_going_on, child.count};
  return true;
}

double SuffixTree::guess(uint64_t salt,
                         std::span<const TokenId> text,
                         const Rules& rules,
                         Draft& draft) const {
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return 0;
  double best = 0;
  const auto longest = std::min(static_cast<int32_t>(text.size()), limits_.max_depth - 1);
  for (int32_t length = 1; length <= longest; ++length) {
    Place place = {.node = root->second};
    bool matches = true;
    for (const TokenId token : text.last(static_cast<size_t>(length))) {
      matches = matches && step(place, token);
    }
    // The text itself, as the open sequence, is not a match, and neither are longer ones.
    if (!matches || (place.in_leaf && place.where == end_position())) break;
    const auto most = std::min({rules.max_tokens,
                                static_cast<int32_t>(rules.max_spec_factor * length),
                                limits_.max_depth - length,
                                kMaxDraftTokens});
    double sum = 0;
    double product = 1;
    Draft tried;
    tried.clear(draft.source);
    Follower next;
    while (tried.size < most && best_follower(place, next)) {
      product *= next.probability;
      if (product < rules.min_token_prob) break;
      sum += product;
      tried.push(next.token, confidence_bin(length, agreement_of(next.probability, next.count)));
      if (!step(place, next.token)) break;
    }
    if (tried.size > 0 && sum >= best) {
      best = sum;
      draft = tried;
    }
  }
  return best;
}

int32_t SuffixTree::count(uint64_t salt, std::span<const TokenId> tokens) const {
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return 0;
  Place place = {.node = root->second};
  for (const TokenId token : tokens) {
    if (!step(place, token)) return 0;
  }
  return place.in_leaf ? 1 : at(place.node).count;
}

int32_t SuffixTree::num_tokens() const {
  if (sequences_.empty()) return 0;
  return static_cast<int32_t>(end_position() - sequences_.front().begin);
}

// Growing vectors have room for at most twice their contents; half of the text may be dead.
int64_t SuffixTree::max_memory_bytes(const SuffixTreeLimits& limits) {
  const auto most_nodes = static_cast<int64_t>(limits.max_nodes) + 2 * limits.max_depth + 2;
  const int64_t growth = limits.reserves ? 1 : 2;
  const auto table = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * most_nodes)));
  const auto most_tokens = static_cast<int64_t>(limits.max_tokens) + limits.max_depth + 1024;
  return growth * most_nodes * static_cast<int64_t>(sizeof(Node)) +
         growth * table * static_cast<int64_t>(sizeof(int32_t)) +
         4 * most_tokens * static_cast<int64_t>(sizeof(TokenId)) +
         kSequenceBytes * (static_cast<int64_t>(limits.max_sequences) + kMaxLeaving + 1);
}

int64_t SuffixTree::memory_bytes() const {
  return static_cast<int64_t>(nodes_.capacity() * sizeof(Node) +
                              table_.capacity() * sizeof(int32_t) +
                              text_.capacity() * sizeof(TokenId)) +
         kSequenceBytes * num_sequences();
}

}  // namespace sluice
