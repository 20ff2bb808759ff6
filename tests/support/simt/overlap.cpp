// SPDX-License-Identifier: Apache-2.0
#include "tests/support/simt/overlap.h"

#include <algorithm>
#include <bitset>
#include <cstdio>
#include <memory>
#include <string>
#include <unordered_map>

namespace sluice::simt {
namespace {

// A set of bytes of global memory.
class Bytes {
 public:
  void add(const void* p, int64_t bytes) {
    for_pages(p, bytes, [this](uintptr_t page, size_t begin, size_t end) {
      if (last_ == nullptr || page != last_page_) {
        std::unique_ptr<Page>& found = pages_[page];
        if (found == nullptr) found = std::make_unique<Page>();
        last_ = found.get();
        last_page_ = page;
      }
      for (size_t i = begin; i < end; ++i) last_->set(i);
      return true;
    });
  }

  [[nodiscard]] bool has_any(const void* p, int64_t bytes) const {
    return !for_pages(p, bytes, [this](uintptr_t page, size_t begin, size_t end) {
      const auto found = pages_.find(page);
      if (found == pages_.end()) return true;
      for (size_t i = begin; i < end; ++i) {
        if (found->second->test(i)) return false;
      }
      return true;
    });
  }

  void clear() {
    pages_.clear();
    last_ = nullptr;
  }

 private:
  static constexpr uintptr_t kPage = 4096;
  using Page = std::bitset<kPage>;

  // Calls f(page, first byte in it, one past the last), until it returns false.
  template <typename F>
  static bool for_pages(const void* p, int64_t bytes, F f) {
    auto at = reinterpret_cast<uintptr_t>(p);
    const uintptr_t end = at + static_cast<uintptr_t>(bytes);
    while (at < end) {
      const uintptr_t stop = std::min(end, (at / kPage + 1) * kPage);
      if (!f(at / kPage, at % kPage, at % kPage + (stop - at))) return false;
      at = stop;
    }
    return true;
  }

  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  uintptr_t last_page_ = 0;
  Page* last_ = nullptr;
};

// Bytes written by launches and copies since the last launch that began behind all of them.
thread_local Bytes unfinished;
thread_local bool told = false;  // one report a launch is enough

void tell(const char* what, const void* p, const void* pc) {
  if (std::exchange(told, true)) return;
  char where[64];
  std::snprintf(where, sizeof(where), ", at %p, from %p", p, pc);
  add_report(std::string("overlap: ") + what + where);
}

}  // namespace

void begin_launch(bool overlaps) {
  told = false;
  if (!overlaps) unfinished.clear();
}

void note_copied(const void* to, int64_t bytes) { unfinished.add(to, bytes); }

void check_overlap(const void* p, int64_t bytes, bool is_write, const void* pc) {
  const bool waited = current_block().self().waited_for_launches;
  if (is_write) {
    if (!waited) tell("a write before wait_for_launches", p, pc);
    unfinished.add(p, bytes);
  } else if (!waited) {
    check_early_read(p, bytes, pc);
  }
}

void check_early_read(const void* p, int64_t bytes, const void* pc) {
  if (!unfinished.has_any(p, bytes)) return;
  tell("a read before wait_for_launches of what was written in front", p, pc);
}

bool may_end(const Thread& thread) {
  if (thread.waited_for_launches) return true;
  add_report("overlap: thread " + std::to_string(thread.index) +
             " ended without wait_for_launches");
  return false;
}

}  // namespace sluice::simt

namespace sluice::gpu::ptx {

void wait_for_launches() { simt::current_block().self().waited_for_launches = true; }

}  // namespace sluice::gpu::ptx
