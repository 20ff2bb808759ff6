// SPDX-License-Identifier: Apache-2.0
// The heap of a test program, moved to memory that kernels can read and write. Link heap.cpp, whose
// operators new and delete replace the standard ones.
#pragma once

#include <cstddef>

namespace sluice::testing {

// Makes operator new take from these bytes from now on, for the life of the process. Earlier
// allocations stay where they are, and alignments above 64 are elsewhere. Called once, before
// threads are made.
void move_heap(std::byte* begin, size_t bytes);

}  // namespace sluice::testing
