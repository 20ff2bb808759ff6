// SPDX-License-Identifier: Apache-2.0
// The priority of threads that compute, below that of threads that do I/O.
#pragma once

namespace sluice {

// Raises the nice value of the calling thread by 5, at most to 19; threads and processes that it
// starts inherit that. Best effort: without it all still compute, only I/O waits longer.
void lower_own_priority();

}  // namespace sluice
