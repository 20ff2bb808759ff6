// SPDX-License-Identifier: Apache-2.0
// Byte-pair merging (Sennrich et al. 2016): the adjacent pair of lowest rank, leftmost first,
// becomes one token, until no pair has a rank. O(n log n) in the symbols of a word.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/types.h"
#include "engine/tokenizer/tables/pair_map.h"

namespace sluice {

class BpeMerges {
 public:
  explicit BpeMerges(size_t num_merges) : merges_(num_merges) {}

  // Returns false where the pair has a rank already. Pairs may share a rank: the leftmost goes
  // first.
  bool add(TokenId left, TokenId right, uint32_t rank, TokenId merged) {
    return merges_.insert(pair_key(left, right), (uint64_t{rank} << 32) | uint32_t(merged));
  }

  // Working memory of merge(), reused for many words by one thread.
  struct Scratch {
    struct Symbol {
      TokenId token;
      uint32_t rank;      // rank of (this symbol, the next one); kNoRank: no merge
      uint32_t next;      // index of the next live symbol
      uint32_t previous;  // index of the previous live symbol
    };

    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;  // rank << 32 | index of the left symbol, smallest on top
  };

  // Appends the tokens that the symbols of one word merge into.
  void merge(std::span<const TokenId> symbols, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  static constexpr uint32_t kNoRank = ~uint32_t{0};

  static uint64_t pair_key(TokenId left, TokenId right) {
    return (uint64_t{uint32_t(left)} << 32) | uint32_t(right);
  }

  [[nodiscard]] uint32_t rank_of(TokenId left, TokenId right) const {
    return static_cast<uint32_t>(merges_.find(pair_key(left, right)) >> 32);
  }

  [[nodiscard]] TokenId merge_of(TokenId left, TokenId right) const {
    return static_cast<TokenId>(static_cast<uint32_t>(merges_.find(pair_key(left, right))));
  }

  void merge_few(std::span<const TokenId> symbols, std::vector<TokenId>& out) const;
  void merge_many(std::span<const TokenId> symbols,
                  Scratch& scratch,
                  std::vector<TokenId>& out) const;

  PairMap merges_;  // pair of ids -> rank << 32 | merged id
};

}  // namespace sluice
