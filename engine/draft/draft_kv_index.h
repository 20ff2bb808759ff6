// SPDX-License-Identifier: Apache-2.0
// Tracks what a draft model's KV holds in the blocks of its target. The target's manager owns the
// blocks and may take, free or reuse one without notice. Each block therefore has a note: a hash of
// the tokens that its draft KV was computed from and of all tokens before them. A request finds
// valid draft KV in its block table by its own tokens alone.
//
// Thread that runs the steps only. Positions are those of a request's tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

// Hashes of a request's tokens up to the end of each whole block; extended as tokens arrive.
class DraftTokenChain {
 public:
  explicit DraftTokenChain(int32_t block_size) : block_size_(block_size) {}

  // Hash of the first `index` blocks and `count` tokens of the next one, which `known` must
  // include.
  [[nodiscard]] uint64_t hash(std::span<const TokenId> known, size_t index, int32_t count);

 private:
  int32_t block_size_;
  std::vector<uint64_t> whole_;
};

class DraftKvIndex {
 public:
  // Positions [first, end) of a request; `first` is a block's beginning.
  struct Range {
    int32_t first = 0;
    int32_t end = 0;
  };

  DraftKvIndex(int32_t num_blocks, int32_t block_size);

  // Returns the contiguous positions around `from`, a block's beginning, whose draft KV is valid;
  // nothing after `from` unless the positions at `from` are valid. `blocks`: all of the request's
  // blocks from the first.
  Range find(DraftTokenChain& chain,
             std::span<const TokenId> known,
             std::span<const BlockId> blocks,
             int32_t from) const;

  // Claims blocks before positions [begin, end) are written and those from `first`, a block's
  // beginning, read; all are in `blocks`. Notes of written blocks are cut at `begin`. Returns false
  // without effect when, since begin_pass(), another request writes what this one would read or
  // write, or reads what it would write.
  bool claim(std::span<const BlockId> blocks, int32_t first, int32_t begin, int32_t end);

  // Clears the notes of blocks that begin at positions in [begin, end).
  void forget(std::span<const BlockId> blocks, int32_t begin, int32_t end);

  void begin_pass() { ++pass_; }

  // Records that positions up to `end` of claimed blocks are written, as are all before.
  void note(DraftTokenChain& chain,
            std::span<const TokenId> known,
            std::span<const BlockId> blocks,
            int32_t begin,
            int32_t end);

 private:
  struct Note {
    uint64_t hash = 0;  // hash of the chain up to the last token
    int32_t count = 0;  // leading tokens of this block
    // Passes that last claimed this block.
    uint32_t read_in = 0;
    uint32_t written_in = 0;
  };

  // Counts the block's leading tokens that match `known` at block `index`.
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
