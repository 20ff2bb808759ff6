// SPDX-License-Identifier: Apache-2.0
// A budget of bytes among matrices, where each has the choice between several formats.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize/plan.h"

namespace sluice {

struct Choice {
  double bytes = 0;
  double error = 0;
};

// For each matrix one of its choices, so that all together have at most `max_bytes` and little
// error: from the smallest ones on, whatever takes off most error for a byte. Choices are in
// ascending order of bytes. The smallest of all, where even they are too many.
std::vector<size_t> allocate_bytes(const std::vector<std::vector<Choice>>& matrices,
                                   double max_bytes);

// What a matrix planned for `scheme` may become where bits are spent: the scheme itself and those
// of more bits that its checkpoint can have beside it; kept last. kInvalidArgument: there are none.
Expected<std::vector<TargetScheme>> schemes_of_more_bits(const TargetScheme& scheme);

}  // namespace sluice
