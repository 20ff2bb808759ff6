// SPDX-License-Identifier: Apache-2.0
// What the KV of a model that drafts holds in the blocks of its target. The target's manager owns
// the blocks and knows nothing of this: a block may be taken, given back or found by its prefix
// without a word here. So each block has a note of the tokens that its draft KV is of, by a hash of
// them and of all before, and what a request finds in its table is told by its own tokens alone.
//
// One thread, that of the steps. Positions are those of a request's tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

// Hashes of a request's tokens up to the end of each whole block; they grow with the tokens.
class DraftTokenChain {
 public:
  explicit DraftTokenChain(int32_t block_size) : block_size_(block_size) {}

  // Of the first `index` blocks and `count` tokens of the next one; `known` begins with them all.
  [[nodiscard]] uint64_t hash(std::span<const TokenId> known, size_t index, int32_t count);

 private:
  int32_t block_size_;
  std::vector<uint64_t> whole_;
};

class DraftKvIndex {
 public:
  // Positions [first, end) of a request, `first` at a block's beginning.
  struct Range {
    int32_t first = 0;
    int32_t end = 0;
  };

  DraftKvIndex(int32_t num_blocks, int32_t block_size);

  // The positions around `from`, a block's beginning, without a gap whose KV is there: none of them
  // are behind `from` where those at it are not. `blocks`: of the request, from the first, as many
  // as it has.
  Range find(DraftTokenChain& chain,
             std::span<const TokenId> known,
             std::span<const BlockId> blocks,
             int32_t from) const;

  // Before positions [begin, end) are written and those from `first` on, a block's beginning, read;
  // all are in `blocks`. Those that are written are noted to hold nothing from `begin` on. False,
  // and nothing is done: another request writes, since begin_pass(), what this one would read or
  // write, or reads what it would write.
  bool claim(std::span<const BlockId> blocks, int32_t first, int32_t begin, int32_t end);

  // Blocks that begin at positions in [begin, end) hold nothing any more.
  void forget(std::span<const BlockId> blocks, int32_t begin, int32_t end);

  void begin_pass() { ++pass_; }

  // Positions up to `end` of claimed blocks are written, as are those before.
  void note(DraftTokenChain& chain,
            std::span<const TokenId> known,
            std::span<const BlockId> blocks,
            int32_t begin,
            int32_t end);

 private:
  struct Note {
    uint64_t hash = 0;  // of the chain to the last token
    int32_t count = 0;  // tokens of this block, its first ones
    // The passes that last claimed it.
    uint32_t read_in = 0;
    uint32_t written_in = 0;
  };

  // How many of the block's tokens are those of `known` at block `index`.
  [[nodiscard]] int32_t count_in(DraftTokenChain& chain,
                                 std::span<const TokenId> known,
                                 BlockId block,
                                 size_t index) const;

  Note& note_of(BlockId block) { return notes_[static_cast<size_t>(block.value)]; }

  int32_t block_size_;
  uint32_t pass_ = 0;
  std::vector<Note> notes_;
};

}  // namespace sluice
