// SPDX-License-Identifier: Apache-2.0
// Small exchanges of GPU ranks in one process without a library: by a launch on each GPU that
// writes the others' memory (kernels/peer_rows.h), where the GPUs reach each other. Larger ones,
// and all where they do not, go by the communicators that these stand in front of. The parts are
// the same. No run on two GPUs has tested this; tests run it on devices of the GPU shim.
#pragma once

#include <chrono>

#include "engine/parallel/parallel.h"

namespace sluice {

// Connects ranks by `library` and then, if every rank has a window, tries exchanges with known
// words between all of them: what a driver says of two GPUs is not relied on. The log says why
// ranks exchange nothing in this way.
//
// A rank that fails, and an error that the library finds by itself, end the exchanges of all at
// once, whose launches then leave; so does a wait for another rank's launch for longer than
// `limit`, which nothing else has ended. Waits of the library's own work end as its communicators
// say.
// Recorded work must be destroyed before the destructor of a failed rank.
ConnectRanks with_peers(ConnectRanks library,
                        std::chrono::nanoseconds limit = std::chrono::seconds(60));

}  // namespace sluice
