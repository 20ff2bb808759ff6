// SPDX-License-Identifier: Apache-2.0
// Which global memory a kernel may touch while the work of a device runs (memory.h): the device's
// own, and what a GPU has in other spaces, constants and parameters. Tests that hand over pointers
// into their own vectors have the heap that shared_heap.cpp shares in place of the device's memory.
// Anything else is memory of the host, stacks and variables, which a GPU would not find. Seen in
// files compiled with -fsanitize=thread, and of copies to shared memory everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace sluice::simt {

class Reach {
 public:
  // The program's code and constants.
  Reach();

  void add(const void* begin, int64_t bytes);

  [[nodiscard]] bool contains(const void* p, int64_t bytes) const;

 private:
  using Range = std::pair<const std::byte*, const std::byte*>;

  std::vector<Range> ranges_;
  mutable Range last_{nullptr, nullptr};  // where something was found
};

// What every Run without a device may touch from now on; without it, anything. Called once.
void share_heap(std::byte* begin, int64_t bytes);
std::optional<Reach> reach_of_shared_heap();

// Of the launches of this thread; null: they may touch anything.
extern constinit thread_local const Reach* reach;

// A report where the bytes are not within reach; only of the first. `pc`: the place in the program.
void check_reach(const void* p, int64_t bytes, const char* who, const void* pc);

}  // namespace sluice::simt
