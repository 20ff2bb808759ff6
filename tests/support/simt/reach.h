// SPDX-License-Identifier: Apache-2.0
// The global memory that a kernel may touch while work of a device (memory.h) runs: the device's
// own, and a GPU's other spaces, constants and parameters. Tests that pass pointers into their own
// vectors use the heap that shared_heap.cpp shares instead of device memory. Everything else is
// host memory, stacks and variables, which a GPU would not find. Checked in files compiled with
// -fsanitize=thread, and for copies to shared memory everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace sluice::simt {

struct Instruction;  // block.h

class Reach {
 public:
  // Contains the program's code and constants.
  Reach();

  void add(const void* begin, int64_t bytes);

  [[nodiscard]] bool contains(const void* p, int64_t bytes) const;

 private:
  using Range = std::pair<const std::byte*, const std::byte*>;

  std::vector<Range> ranges_;
  mutable Range last_{nullptr, nullptr};  // the range of the last hit
};

// Limits later Runs without a device to these bytes; before, they may touch anything. Called once.
void share_heap(std::byte* begin, int64_t bytes);
std::optional<Reach> reach_of_shared_heap();

// The reach of this thread's launches; null: they may touch anything.
extern constinit thread_local const Reach* reach;

// Reports the first access to bytes out of reach. `pc`: the place in the program.
void check_reach(const void* p, int64_t bytes, const Instruction& who, const void* pc);

}  // namespace sluice::simt
