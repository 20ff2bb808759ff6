// SPDX-License-Identifier: Apache-2.0
// Index of the latest continuations of each run of n tokens in a growing text: a hash table with
// O(n) work per token that is never rebuilt and compares the tokens themselves, so a hash collision
// is not a match. The caller owns the text and passes it to each call; its earlier part must not
// change. 16 to 32 bytes a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

class NgramIndex {
 public:
  // Requires n >= 1.
  explicit NgramIndex(int32_t n) : n_(static_cast<size_t>(n)) {}

  // Begins another text; keeps its memory.
  void clear();

  // Indexes at most `max_tokens` new tokens of the text. True: all of it is indexed.
  bool extend(std::span<const TokenId> text, size_t max_tokens);

  // Positions of the tokens after the latest and second latest earlier occurrence of the text's
  // last n tokens; 0: none. The text must be completely indexed by extend().
  struct Match {
    uint32_t latest = 0;
    uint32_t previous = 0;
  };

  [[nodiscard]] Match find(std::span<const TokenId> text) const;

  // Upper bound of memory_bytes() for a text of at most `num_tokens` tokens.
  static int64_t max_memory_bytes(int64_t num_tokens);

  [[nodiscard]] int64_t memory_bytes() const {
    return static_cast<int64_t>(entries_.capacity() * sizeof(Match));
  }

 private:
  // Returns the entry of the n tokens before position `next`, or the empty entry for it.
  [[nodiscard]] size_t place_of(std::span<const TokenId> text, size_t next) const;
  void grow(std::span<const TokenId> text, size_t num_tokens);

  size_t n_;
  std::vector<Match> entries_;  // a power of two; by hash, linear probing
  size_t num_used_ = 0;
  size_t next_ = 0;  // tokens before this position are indexed as continuations
};

}  // namespace sluice
