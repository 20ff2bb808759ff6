// SPDX-License-Identifier: Apache-2.0
// The largest single allocation of this binary since the last reset; for one thread.
#pragma once

#include <cstddef>

namespace sluice {

void reset_largest_allocation();
size_t largest_allocation();

}  // namespace sluice
