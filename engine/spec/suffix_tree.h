// SPDX-License-Identifier: Apache-2.0
// Counts each run of tokens in a set of sequences, and its continuations: a tree of all substrings
// up to a depth. A node reached by a single suffix is a leaf that represents the rest of that
// suffix in the text, so a text without repetitions has about one node per token.
//
// Sequences are appended one after the other, token by token, each O(depth); the last one may be
// open. Beyond the limits the oldest suffixes are removed, first in, first out. Sequences of
// different salts share only the room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/types.h"

namespace sluice {

struct SuffixTreeLimits {
  int32_t max_depth = 24;        // tokens of a match and what follows it; at least 2
  int32_t max_nodes = 1 << 16;   // at least 4 * max_depth; up to 56 bytes each
  int32_t max_tokens = 1 << 20;  // total over all sequences
  int32_t max_sequences = 1;     // plus up to 64 that are being removed
  bool reserves = false;         // allocates everything at the start: no later delay
};

class SuffixTree {
 public:
  explicit SuffixTree(const SuffixTreeLimits& limits);

  // Empties the tree; keeps its memory.
  void clear();

  // Begins a new sequence and closes the previous one.
  void open(uint64_t salt);
  void append(TokenId token);
  void close();

  struct Rules {
    int32_t max_tokens = 1;
    double max_spec_factor = 1;   // tokens per matched token
    double min_token_prob = 0.1;  // least probability of the whole guess so far
  };

  // Guesses what follows `text`: among the matches of its last 1, 2, ... tokens, the one whose most
  // frequent continuation has the largest sum of probabilities (among equals, the longest). Appends
  // it to `draft`, which must be empty, and returns that sum; 0: no guess.
  double guess(uint64_t salt,
               std::span<const TokenId> text,
               const Rules& rules,
               Draft& draft) const;

  // Occurrences of `tokens`, of which there are 1 to max_depth.
  [[nodiscard]] int32_t count(uint64_t salt, std::span<const TokenId> tokens) const;

  [[nodiscard]] int32_t num_sequences() const { return static_cast<int32_t>(sequences_.size()); }

  // The number of tokens whose suffixes are in the tree.
  [[nodiscard]] int32_t num_tokens() const;

  [[nodiscard]] int64_t memory_bytes() const;

  // Upper bound of memory_bytes().
  static int64_t max_memory_bytes(const SuffixTreeLimits& limits);

 private:
  static constexpr int32_t kNone = -1;

  struct Node {
    int32_t parent = kNone;
    TokenId token = kInvalidToken;  // edge from the parent
    int32_t count = 0;              // suffixes that pass or end here
    int32_t num_ends = 0;           // closed sequences that end here, above max_depth
    int32_t best_child = kNone;
    int32_t first_child = kNone;
    int32_t next = kNone;  // sibling; for a free node the next free one
    int32_t previous = kNone;
    uint32_t where = 0;  // leaf: position after its token in its suffix's text
    bool is_leaf = false;
  };

  // A node, or a place in the text of a leaf.
  struct Place {
    int32_t node = kNone;
    int32_t depth = 0;
    bool in_leaf = false;
    uint32_t where = 0;  // in_leaf: the position in the leaf's text
  };

  // A suffix of the open sequence that is at an inner node above max_depth.
  struct Growing {
    uint32_t start = 0;
    int32_t node = kNone;
  };

  struct Sequence {
    uint32_t begin = 0;  // its first suffix in the tree
    uint32_t end = 0;    // position of its end mark; unset while open
    uint64_t salt = 0;
  };

  struct Follower {
    TokenId token = kInvalidToken;
    double probability = 0;
    int32_t count = 0;
  };

  [[nodiscard]] TokenId token_at(uint32_t position) const;  // kInvalidToken: end mark
  [[nodiscard]] uint32_t end_position() const;
  [[nodiscard]] size_t home_of(int32_t parent, TokenId token) const;
  [[nodiscard]] size_t slot_of(int32_t parent, TokenId token) const;
  [[nodiscard]] int32_t find_child(int32_t parent, TokenId token) const;
  [[nodiscard]] bool text_ends_at(const Place& place) const;
  [[nodiscard]] bool step(Place& place, TokenId token) const;
  [[nodiscard]] bool best_follower(const Place& place, Follower& follower) const;

  Node& at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }

  [[nodiscard]] const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }

  int32_t root_of(uint64_t salt);
  int32_t new_node();
  int32_t add_child(int32_t parent, TokenId token, uint32_t where, int32_t depth);
  void remove_node(int32_t node);
  void free_node(int32_t node);
  void choose_best(int32_t node);
  void grow_table();
  void expand(int32_t leaf, int32_t depth);
  void advance(Growing& suffix, int32_t depth, TokenId token);
  void shrink();
  [[nodiscard]] bool evict_suffix();
  void forget_sequence();
  void release_root(uint64_t salt);
  void drop_text();

  SuffixTreeLimits limits_;
  std::vector<Node> nodes_;
  int32_t first_free_ = kNone;
  int32_t num_nodes_ = 0;
  std::vector<int32_t> table_;  // nodes by parent and token; a power of two; linear probing
  std::unordered_map<uint64_t, int32_t> roots_;  // by salt
  std::vector<TokenId> text_;                    // all sequences, each with an end mark
  uint32_t text_begin_ = 0;                      // position of text_[0]; positions wrap around
  std::deque<Sequence> sequences_;
  bool is_open_ = false;
  std::vector<Growing> growing_;  // oldest first; other suffixes are at leaves, or done
  std::vector<int32_t> path_;     // scratch
};

}  // namespace sluice
