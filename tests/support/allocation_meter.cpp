// SPDX-License-Identifier: Apache-2.0
// A file of its own, since inlined replacements of new and delete make g++ warn of mismatches.
#include "tests/support/allocation_meter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

// Counters of all threads.
std::atomic<size_t> largest = 0;
std::atomic<size_t> count = 0;

}  // namespace

namespace sluice {

void reset_allocation_meter() {
  largest = 0;
  count = 0;
}

size_t largest_allocation() { return largest; }

size_t num_allocations() { return count; }

}  // namespace sluice

void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  size_t seen = largest.load(std::memory_order_relaxed);
  while (bytes > seen && !largest.compare_exchange_weak(seen, bytes, std::memory_order_relaxed)) {
  }
  count.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}

void* operator new(size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }

void operator delete(void* memory, size_t) noexcept { std::free(memory); }

void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
