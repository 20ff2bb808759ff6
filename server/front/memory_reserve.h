// SPDX-License-Identifier: Apache-2.0
// Address space that is kept for requests that run out of memory: what they have built is taken
// apart by destructors that allocate themselves (nlohmann's trees do), and one that throws ends the
// process.
#pragma once

namespace sluice {

// Keeps two reserves from now on. The first allocation that fails gets the first of them; the next
// one that fails throws std::bad_alloc, as without them, and leaves the second to the unwinding.
// The code that catches it calls this again, and so does each sweep of an I/O thread. Any thread;
// cheap where both are there. False: there is no memory for one of them now, and no large tree may
// be built.
bool keep_memory_reserves();

}  // namespace sluice
