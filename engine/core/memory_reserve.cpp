// SPDX-License-Identifier: Apache-2.0
#include "engine/core/memory_reserve.h"

#include <malloc.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <new>

namespace sluice {
namespace {

// Enough to take the largest tree of a body apart (kMaxJsonValues). The pages are never touched.
constexpr size_t kReserveBytes = size_t{96} << 20;

// A tree of fewer bytes is taken apart with what the allocator has.
constexpr size_t kMostWithoutReserve = 64 << 10;

std::array<std::atomic<void*>, 2> reserves{};

bool give_back(std::atomic<void*>& reserve) {
  void* const kept = reserve.exchange(nullptr);
  if (kept != nullptr) munmap(kept, kReserveBytes);
  return kept != nullptr;
}

void on_failure() {
  if (give_back(reserves[0])) return;  // the allocation is tried again
  give_back(reserves[1]);
  throw std::bad_alloc();
}

void* map_reserve() {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  return mmap(nullptr, kReserveBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
}

}  // namespace

bool keep_memory_reserves() {
  std::set_new_handler(on_failure);
  for (size_t i = reserves.size(); i-- > 0;) {
    if (reserves[i].load() != nullptr) continue;
    void* made = map_reserve();
    if (made == MAP_FAILED) {
      malloc_trim(0);  // what requests have freed is the allocator's until then
      made = map_reserve();
    }
    if (made == MAP_FAILED) return false;
    void* none = nullptr;
    if (!reserves[i].compare_exchange_strong(none, made)) munmap(made, kReserveBytes);
  }
  return true;
}

Expected<void> keep_memory_for(size_t input_bytes) {
  if (input_bytes <= kMostWithoutReserve || keep_memory_reserves()) return {};
  return make_error(ErrorCode::kUnavailable, "The server has too little memory for this request.");
}

}  // namespace sluice
