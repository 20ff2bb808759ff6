// SPDX-License-Identifier: Apache-2.0
// Counts this program's allocations since the last reset, in operator new; for one thread.
#pragma once

#include <cstddef>

namespace sluice {

void reset_allocation_meter();
size_t largest_allocation();  // bytes
size_t num_allocations();

}  // namespace sluice
