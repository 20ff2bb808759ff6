// SPDX-License-Identifier: Apache-2.0
// The heap of a test program, moved to memory that kernels read and write too. Link heap.cpp, whose
// operators new and delete take the standard ones' place.
#pragma once

#include <cstddef>

namespace sluice::testing {

// From now on operator new takes from these bytes, which stay for as long as the process; what was
// allocated before stays where it is, and what asks for an alignment above 64 is elsewhere. Once,
// before threads are made.
void move_heap(std::byte* begin, size_t bytes);

}  // namespace sluice::testing
