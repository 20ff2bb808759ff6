// SPDX-License-Identifier: Apache-2.0
// Which global memory a kernel may touch while the work of a device runs (memory.h): the device's
// own, and what a GPU has in other spaces, constants and parameters. Anything else is memory of the
// host, which a GPU would not find. Seen in files compiled with -fsanitize=thread, and of copies to
// shared memory everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sluice::simt {

class Reach {
 public:
  // The program with its constants, of which its variables cannot be told apart, and the calling
  // thread's stack, where a launch keeps what it captures.
  Reach();

  void add(const void* begin, int64_t bytes);

  [[nodiscard]] bool contains(const void* p, int64_t bytes) const;

 private:
  using Range = std::pair<const std::byte*, const std::byte*>;

  std::vector<Range> ranges_;
  mutable Range last_{nullptr, nullptr};  // where something was found
};

// Of the launches of this thread; null: they may touch anything.
extern constinit thread_local const Reach* reach;

// A report where the bytes are not within reach; only of the first. `pc`: the place in the program.
void check_reach(const void* p, int64_t bytes, const char* who, const void* pc);

}  // namespace sluice::simt
