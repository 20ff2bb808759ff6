// SPDX-License-Identifier: Apache-2.0
// The blocks of one KV group, their owners and states. Ids and counts only; engine thread only.
//
// A block is in exactly one of four states:
//   free        no owner, no transfer, contents meaningless: on the free list
//   cached      no owner, no transfer, tagged with its prefix node: on the list of its worth,
//               evictable
//   referenced  one owner or more
//   held        no owner, but another worker is still reading or writing it, or a pin keeps it
// A block's generation goes up by one each time that the block is taken for new contents, so the
// pair (block, generation) tells whether the block still holds what it held. A pin keeps contents
// for another worker for a time, like a transfer; pins have a quota of the pool's blocks. Arrays
// are flat, lists are intrusive; nothing is allocated after construction.
//
// Cached blocks are evicted in the order of their last release, where each level of worth counts as
// a later release: least recently used, with a credit for the cost of losing the block (Young's
// GreedyDual, with few levels and so in constant time). A credit ages as other blocks are released.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

class BlockPool {
 public:
  static constexpr int32_t kNoTag = -1;
  static constexpr int32_t kMaxWorth = 4;

  struct Taken {
    BlockId block = kNullBlock;    // kNullBlock: nothing available
    int32_t evicted_tag = kNoTag;  // the tag that the block lost, if it was a cached one
  };

  // `max_pinned`: blocks that may be pinned at once.
  explicit BlockPool(int32_t num_blocks, int32_t max_pinned = 0);

  // Returns a block with one owner and no tag: the free one that was used last, else the first that
  // never was, else the one that evict() gives up. So memory never touched is touched last.
  [[nodiscard]] Taken take();
  // Adds one owner to a referenced, cached or held block.
  void share(BlockId block);
  // Takes one owner away. The last release leaves a tagged block cached and any other free.
  // `worth`, 0 to kMaxWorth, is what the contents are worth from now on.
  void release(BlockId block, int32_t worth = 0);

  // Marks the contents as worth keeping; `tag` comes back from take() or evict() when they
  // are lost. The block must be referenced and have no tag.
  void set_tag(BlockId block, int32_t tag);
  // Says whether a tagged block's contents may be wrong; those with a new tag are right.
  void set_unproven(BlockId block, bool is_unproven) {
    blocks_[index(block)].is_unproven = is_unproven;
  }

  // Makes the contents of a tagged block unfindable. A cached block becomes free.
  void clear_tag(BlockId block);
  // Gives up a cached block and returns its tag, or kNoTag when there is none.
  int32_t evict();

  // Transfers are counted apart from owners: the block returns to a list only when both are zero.
  // The block may be in any state: a step in flight may read one that has been given up since.
  void begin_transfer(BlockId block);
  void end_transfer(BlockId block);

  // Keeps a referenced, cached or held block from being freed or taken until as many unpin() calls.
  // Returns false where the block is not pinned yet and the quota is used up.
  [[nodiscard]] bool pin(BlockId block);
  void unpin(BlockId block);

  [[nodiscard]] bool has_contents(BlockId block) const {
    const Block& b = blocks_[index(block)];
    return b.refcount > 0 || b.num_transfers > 0 || b.tag != kNoTag;
  }

  // A number that goes up by one each time that the block is taken.
  [[nodiscard]] uint32_t generation(BlockId block) const {
    return blocks_[index(block)].generation;
  }

  [[nodiscard]] int32_t num_pinned() const { return num_pinned_; }  // blocks

  [[nodiscard]] bool is_unproven(BlockId block) const {
    return blocks_[index(block)].is_unproven;
  }

  [[nodiscard]] int32_t tag(BlockId block) const { return blocks_[index(block)].tag; }

  [[nodiscard]] int32_t refcount(BlockId block) const { return blocks_[index(block)].refcount; }

  [[nodiscard]] int32_t num_blocks() const { return num_blocks_; }

  [[nodiscard]] int32_t num_free() const { return lists_[kFreeList].size; }

  [[nodiscard]] int32_t num_cached() const { return num_cached_; }

  [[nodiscard]] int32_t num_available() const { return num_free() + num_cached(); }

  [[nodiscard]] int32_t num_referenced() const { return num_referenced_; }

  // Checks that every block is in exactly one state and on the list of that state. "" when right.
  [[nodiscard]] std::string check_integrity() const;

 private:
  static constexpr int32_t kNone = -1;

  enum ListId : uint8_t { kFreeList, kCachedLists, kNumLists = kCachedLists + kMaxWorth + 1 };

  struct Block {
    int32_t refcount = 0;
    int32_t num_transfers = 0;  // pins included
    int32_t num_pins = 0;
    uint32_t generation = 0;
    int32_t tag = kNoTag;
    int32_t worth = 0;
    bool is_unproven = false;  // of a tagged block
    int64_t released = 0;  // number of the release that left it cached
    int32_t previous = kNone;
    int32_t next = kNone;
  };

  struct List {
    int32_t head = kNone;  // the next to be taken
    int32_t tail = kNone;
    int32_t size = 0;
  };

  static size_t index(BlockId block) { return static_cast<size_t>(block.value); }

  [[nodiscard]] static ListId list_of(const Block& block);  // the list of an idle block
  void append(ListId list, int32_t block);
  void prepend(ListId list, int32_t block);
  void unlink(ListId list, int32_t block);
  void unlink_if_idle(int32_t block);
  void list_if_idle(int32_t block);

  std::vector<Block> blocks_;
  List lists_[kNumLists];
  int32_t num_blocks_ = 0;
  int32_t num_referenced_ = 0;
  int32_t num_cached_ = 0;
  int32_t num_pinned_ = 0;
  int32_t max_pinned_ = 0;
  int64_t num_releases_ = 0;
};

}  // namespace sluice
