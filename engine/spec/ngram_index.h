// SPDX-License-Identifier: Apache-2.0
// Where each run of n tokens of a growing text was last followed by something: a hash table that
// takes O(n) a token, is never built again, and compares the tokens themselves, so a collision of
// hashes is no match. The text is the caller's and is handed over at each call; what was there
// before must not have changed. 16 to 32 bytes a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

class NgramIndex {
 public:
  // n >= 1.
  explicit NgramIndex(int32_t n) : n_(static_cast<size_t>(n)) {}

  // Begins another text; keeps its memory.
  void clear();

  // Takes in what is new of the text, at most `max_tokens` of it. True: it has all of it.
  bool extend(std::span<const TokenId> text, size_t max_tokens);

  // Positions of the tokens that followed the latest and the second latest earlier occurrence of
  // the text's last n tokens; 0: there was none. For a text of which extend() has taken in all.
  struct Match {
    uint32_t latest = 0;
    uint32_t previous = 0;
  };

  [[nodiscard]] Match find(std::span<const TokenId> text) const;

  // What memory_bytes() never exceeds for a text of at most so many tokens.
  static int64_t max_memory_bytes(int64_t num_tokens);

  [[nodiscard]] int64_t memory_bytes() const {
    return static_cast<int64_t>(entries_.capacity() * sizeof(Match));
  }

 private:
  // The entry of the n tokens before position `next`, or the empty one where it would be.
  [[nodiscard]] size_t place_of(std::span<const TokenId> text, size_t next) const;
  void grow(std::span<const TokenId> text, size_t num_tokens);

  size_t n_;
  std::vector<Match> entries_;  // a power of two; by hash, linear probing
  size_t num_used_ = 0;
  size_t next_ = 0;  // tokens before this position were taken in as continuations
};

}  // namespace sluice
