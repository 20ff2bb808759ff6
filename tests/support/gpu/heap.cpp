// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gpu/heap.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

namespace sluice::testing {
namespace {

// Blocks of powers of two, with a list of free ones for each power: tests allocate little.
constexpr size_t kSmallest = 64;
constexpr size_t kHeader = 64;  // keeps the block's alignment; holds its size

struct FreeBlock {
  FreeBlock* next;
};

std::mutex heap_mutex;
std::byte* heap_begin = nullptr;  // written once; the rest guarded by heap_mutex
std::byte* heap_end = nullptr;
std::byte* heap_next = nullptr;
FreeBlock* free_blocks[64] = {};

void* allocate(size_t bytes, size_t alignment) {
  // Larger alignments belong to structures of the host's threads, which no kernel gets.
  if (heap_begin == nullptr || alignment > kHeader) {
    const size_t size = std::max<size_t>(bytes, 1) + alignment - 1;
    return std::aligned_alloc(alignment, size / alignment * alignment);
  }
  const size_t size = std::bit_ceil(std::max(bytes, kSmallest));
  const auto power = static_cast<size_t>(std::countr_zero(size));
  const std::scoped_lock lock(heap_mutex);
  if (free_blocks[power] != nullptr) {
    FreeBlock* const block = free_blocks[power];
    free_blocks[power] = block->next;
    return block;
  }
  if (static_cast<size_t>(heap_end - heap_next) < kHeader + size) return nullptr;
  *reinterpret_cast<size_t*>(heap_next) = power;
  std::byte* const block = heap_next + kHeader;
  heap_next = block + size;
  return block;
}

void release(void* p) {
  auto* const data = static_cast<std::byte*>(p);
  if (heap_begin == nullptr || data < heap_begin || data >= heap_end) return std::free(p);
  const std::scoped_lock lock(heap_mutex);
  const size_t power = *reinterpret_cast<size_t*>(data - kHeader);
  free_blocks[power] = new (p) FreeBlock{free_blocks[power]};
}

void* allocate_or_throw(size_t bytes, size_t alignment) {
  void* const data = allocate(bytes, alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void move_heap(std::byte* begin, size_t bytes) {
  heap_end = begin + bytes;
  heap_next = begin;
  heap_begin = begin;
}

}  // namespace sluice::testing

using sluice::testing::allocate_or_throw;
using sluice::testing::release;

void* operator new(size_t bytes) { return allocate_or_throw(bytes, 64); }

void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, std::max<size_t>(static_cast<size_t>(alignment), 64));
}

void operator delete(void* p) noexcept { release(p); }

void operator delete(void* p, size_t) noexcept { release(p); }

void operator delete(void* p, std::align_val_t) noexcept { release(p); }

void operator delete(void* p, size_t, std::align_val_t) noexcept { release(p); }
