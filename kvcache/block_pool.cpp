// SPDX-License-Identifier: Apache-2.0
#include "kvcache/block_pool.h"

#include <array>
#include <cstddef>

#include "engine/core/status.h"

namespace sluice {

namespace {

// How many releases later a cached block counts as released, in pools of blocks, by worth.
constexpr std::array<int32_t, BlockPool::kMaxWorth + 1> kCredits = {0, 1, 2, 3, 16};

}  // namespace

BlockPool::BlockPool(int32_t num_blocks, int32_t max_pinned)
    : num_blocks_(num_blocks), max_pinned_(max_pinned) {
  CHECK_GE(num_blocks, 0);
  blocks_.resize(static_cast<size_t>(num_blocks));
  for (int32_t block = 0; block < num_blocks; ++block) append(kFreeList, block);
}

void BlockPool::append(ListId list_id, int32_t block) {
  List& list = lists_[list_id];
  Block& b = blocks_[static_cast<size_t>(block)];
  b.previous = list.tail;
  b.next = kNone;
  (list.tail == kNone ? list.head : blocks_[static_cast<size_t>(list.tail)].next) = block;
  list.tail = block;
  ++list.size;
}

void BlockPool::prepend(ListId list_id, int32_t block) {
  List& list = lists_[list_id];
  Block& b = blocks_[static_cast<size_t>(block)];
  b.previous = kNone;
  b.next = list.head;
  (list.head == kNone ? list.tail : blocks_[static_cast<size_t>(list.head)].previous) = block;
  list.head = block;
  ++list.size;
}

void BlockPool::unlink(ListId list_id, int32_t block) {
  List& list = lists_[list_id];
  Block& b = blocks_[static_cast<size_t>(block)];
  (b.previous == kNone ? list.head : blocks_[static_cast<size_t>(b.previous)].next) = b.next;
  (b.next == kNone ? list.tail : blocks_[static_cast<size_t>(b.next)].previous) = b.previous;
  b.previous = kNone;
  b.next = kNone;
  --list.size;
}

BlockPool::ListId BlockPool::list_of(const Block& block) {
  return block.tag == kNoTag ? kFreeList : static_cast<ListId>(kCachedLists + block.worth);
}

// Takes a block that is about to gain an owner or a transfer off its list.
void BlockPool::unlink_if_idle(int32_t block) {
  const Block& b = blocks_[static_cast<size_t>(block)];
  if (b.refcount != 0 || b.num_transfers != 0) return;
  if (b.tag != kNoTag) --num_cached_;
  unlink(list_of(b), block);
}

// A free block goes to the front, so that blocks never used, whose memory the system has not given
// yet, are taken last.
void BlockPool::list_if_idle(int32_t block) {
  Block& b = blocks_[static_cast<size_t>(block)];
  if (b.refcount != 0 || b.num_transfers != 0) return;
  if (b.tag == kNoTag) {
    prepend(kFreeList, block);
    return;
  }
  ++num_cached_;
  b.released = ++num_releases_;
  append(list_of(b), block);
}

BlockPool::Taken BlockPool::take() {
  Taken taken;
  if (lists_[kFreeList].size == 0) {
    taken.evicted_tag = evict();
    if (taken.evicted_tag == kNoTag) return taken;
  }
  const int32_t block = lists_[kFreeList].head;
  unlink(kFreeList, block);
  blocks_[static_cast<size_t>(block)].refcount = 1;
  ++blocks_[static_cast<size_t>(block)].generation;
  ++num_referenced_;
  taken.block = BlockId{block};
  return taken;
}

void BlockPool::share(BlockId block) {
  CHECK(has_contents(block));
  Block& b = blocks_[index(block)];
  unlink_if_idle(block.value);
  if (b.refcount == 0) ++num_referenced_;
  ++b.refcount;
}

void BlockPool::release(BlockId block, int32_t worth) {
  Block& b = blocks_[index(block)];
  CHECK_GT(b.refcount, 0);
  CHECK_LE(worth, kMaxWorth);
  b.worth = worth;
  --b.refcount;
  if (b.refcount == 0) --num_referenced_;
  list_if_idle(block.value);
}

void BlockPool::set_tag(BlockId block, int32_t tag) {
  Block& b = blocks_[index(block)];
  CHECK_GT(b.refcount, 0);
  CHECK_EQ(b.tag, kNoTag);
  b.tag = tag;
  b.is_unproven = false;
}

void BlockPool::clear_tag(BlockId block) {
  Block& b = blocks_[index(block)];
  CHECK_NE(b.tag, kNoTag);
  unlink_if_idle(block.value);
  b.tag = kNoTag;
  list_if_idle(block.value);
}

int32_t BlockPool::evict() {
  int32_t block = kNone;
  int64_t earliest = 0;
  for (int32_t worth = 0; worth <= kMaxWorth; ++worth) {
    const int32_t head = lists_[kCachedLists + worth].head;
    if (head == kNone) continue;
    const int64_t due = blocks_[static_cast<size_t>(head)].released +
                        int64_t{kCredits[static_cast<size_t>(worth)]} * num_blocks_;
    if (block != kNone && due >= earliest) continue;
    block = head;
    earliest = due;
  }
  if (block == kNone) return kNoTag;
  Block& b = blocks_[static_cast<size_t>(block)];
  unlink(list_of(b), block);
  --num_cached_;
  const int32_t tag = b.tag;
  b.tag = kNoTag;
  prepend(kFreeList, block);
  return tag;
}

void BlockPool::begin_transfer(BlockId block) {
  unlink_if_idle(block.value);
  ++blocks_[index(block)].num_transfers;
}

void BlockPool::end_transfer(BlockId block) {
  Block& b = blocks_[index(block)];
  CHECK_GT(b.num_transfers, 0);
  --b.num_transfers;
  list_if_idle(block.value);
}

bool BlockPool::pin(BlockId block) {
  CHECK(has_contents(block));
  Block& b = blocks_[index(block)];
  if (b.num_pins == 0) {
    if (num_pinned_ >= max_pinned_) return false;
    ++num_pinned_;
  }
  ++b.num_pins;
  begin_transfer(block);
  return true;
}

void BlockPool::unpin(BlockId block) {
  Block& b = blocks_[index(block)];
  CHECK_GT(b.num_pins, 0);
  if (--b.num_pins == 0) --num_pinned_;
  end_transfer(block);
}

std::string BlockPool::check_integrity() const {
  std::vector<int32_t> on_list(blocks_.size(), kNumLists);
  for (int32_t list_id = 0; list_id < kNumLists; ++list_id) {
    const List& list = lists_[list_id];
    int32_t count = 0;
    int32_t previous = kNone;
    for (int32_t i = list.head; i != kNone; i = blocks_[static_cast<size_t>(i)].next) {
      if (count++ == num_blocks_) return "a block list is a cycle";
      if (on_list[static_cast<size_t>(i)] != kNumLists) return "a block is on two lists";
      if (blocks_[static_cast<size_t>(i)].previous != previous) return "a block list is torn";
      on_list[static_cast<size_t>(i)] = list_id;
      previous = i;
    }
    if (count != list.size || list.tail != previous) return "a block list miscounts";
  }
  int32_t num_referenced = 0;
  int32_t num_cached = 0;
  int32_t num_pinned = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    if (b.refcount < 0 || b.num_pins < 0 || b.num_transfers < b.num_pins) {
      return "counts of block " + std::to_string(i) + " are wrong";
    }
    num_pinned += b.num_pins > 0;
    num_referenced += b.refcount > 0;
    const bool idle = b.refcount == 0 && b.num_transfers == 0;
    const int32_t expected = idle ? list_of(b) : kNumLists;
    if (on_list[i] != expected) return "block " + std::to_string(i) + " is on the wrong list";
    num_cached += idle && b.tag != kNoTag;
  }
  if (num_referenced != num_referenced_) return "referenced blocks are miscounted";
  if (num_pinned != num_pinned_) return "pinned blocks are miscounted";
  if (num_pinned > max_pinned_) return "more blocks are pinned than the quota has";
  if (num_cached != num_cached_) return "cached blocks are miscounted";
  return {};
}

}  // namespace sluice
