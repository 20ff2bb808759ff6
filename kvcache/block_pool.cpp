// SPDX-License-Identifier: Apache-2.0
#include "kvcache/block_pool.h"

#include <cstddef>

#include "engine/core/status.h"

namespace sluice {

BlockPool::BlockPool(int32_t num_blocks) : num_blocks_(num_blocks) {
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

void BlockPool::unlink(ListId list_id, int32_t block) {
  List& list = lists_[list_id];
  Block& b = blocks_[static_cast<size_t>(block)];
  (b.previous == kNone ? list.head : blocks_[static_cast<size_t>(b.previous)].next) = b.next;
  (b.next == kNone ? list.tail : blocks_[static_cast<size_t>(b.next)].previous) = b.previous;
  b.previous = kNone;
  b.next = kNone;
  --list.size;
}

// Takes a block that is about to gain an owner or a transfer off its list.
void BlockPool::unlink_if_idle(int32_t block) {
  const Block& b = blocks_[static_cast<size_t>(block)];
  if (b.refcount != 0 || b.num_transfers != 0) return;
  CHECK(b.tag != kNoTag);  // a free block has contents for nobody
  unlink(kCachedList, block);
}

void BlockPool::append_if_idle(int32_t block) {
  const Block& b = blocks_[static_cast<size_t>(block)];
  if (b.refcount != 0 || b.num_transfers != 0) return;
  append(b.tag == kNoTag ? kFreeList : kCachedList, block);
}

BlockPool::Taken BlockPool::take() {
  Taken taken;
  if (lists_[kFreeList].size == 0) {
    taken.evicted_tag = evict_oldest();
    if (taken.evicted_tag == kNoTag) return taken;
  }
  const int32_t block = lists_[kFreeList].head;
  unlink(kFreeList, block);
  blocks_[static_cast<size_t>(block)].refcount = 1;
  ++num_referenced_;
  taken.block = BlockId{block};
  return taken;
}

void BlockPool::share(BlockId block) {
  unlink_if_idle(block.value);
  Block& b = blocks_[index(block)];
  if (b.refcount == 0) ++num_referenced_;
  ++b.refcount;
}

void BlockPool::release(BlockId block) {
  Block& b = blocks_[index(block)];
  CHECK_GT(b.refcount, 0);
  --b.refcount;
  if (b.refcount == 0) --num_referenced_;
  append_if_idle(block.value);
}

void BlockPool::set_tag(BlockId block, int32_t tag) {
  Block& b = blocks_[index(block)];
  CHECK_GT(b.refcount, 0);
  CHECK_EQ(b.tag, kNoTag);
  b.tag = tag;
}

int32_t BlockPool::evict_oldest() {
  const int32_t block = lists_[kCachedList].head;
  if (block == kNone) return kNoTag;
  unlink(kCachedList, block);
  Block& b = blocks_[static_cast<size_t>(block)];
  const int32_t tag = b.tag;
  b.tag = kNoTag;
  append(kFreeList, block);
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
  append_if_idle(block.value);
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
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Block& b = blocks_[i];
    if (b.refcount < 0 || b.num_transfers < 0) return "negative count, block " + std::to_string(i);
    num_referenced += b.refcount > 0;
    const bool idle = b.refcount == 0 && b.num_transfers == 0;
    const int32_t expected = !idle ? kNumLists : b.tag == kNoTag ? kFreeList : kCachedList;
    if (on_list[i] != expected) return "block " + std::to_string(i) + " is on the wrong list";
  }
  if (num_referenced != num_referenced_) return "referenced blocks are miscounted";
  return {};
}

}  // namespace sluice
