// SPDX-License-Identifier: Apache-2.0
// Allocations of this program since the last reset, counted in operator new; for one thread.
#pragma once

#include <cstddef>

namespace sluice {

void reset_allocation_meter();
size_t largest_allocation();  // bytes
size_t num_allocations();

}  // namespace sluice
