// SPDX-License-Identifier: Apache-2.0
// Address space that is kept for requests that run out of memory: what they have built is taken
// apart by destructors that allocate themselves (nlohmann's trees do), and one that throws ends the
// process.
#pragma once

#include <cstddef>

#include "engine/core/status.h"

namespace sluice {

// Keeps two reserves from now on. The first allocation that fails gets the first of them; the next
// one that fails throws std::bad_alloc, as without them, and leaves the second to the unwinding.
// The code that catches it calls this again, and so does each sweep of an I/O thread. Any thread;
// cheap where both are there. False: there is no memory for one of them now.
bool keep_memory_reserves();

// Called before a tree is made of so many bytes of a client's. kUnavailable: it might be too large
// to be taken apart, for which its destructor allocates, and there are no reserves for that. Any
// thread.
Expected<void> keep_memory_for(size_t input_bytes);

}  // namespace sluice
