// SPDX-License-Identifier: Apache-2.0
// Distributes a budget of bytes over matrices that each have a choice of formats.
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

// Returns one choice per matrix so that all together have at most `max_bytes` and little error:
// starting with the smallest ones, greedily by error removed per byte. Choices are in ascending
// order of bytes. If even the smallest exceed the budget, they are returned.
std::vector<size_t> allocate_bytes(const std::vector<std::vector<Choice>>& matrices,
                                   double max_bytes);

// Returns the schemes that a matrix planned for `scheme` may become when bits are spent: the scheme
// itself and larger ones that its checkpoint can mix with it; kept last. kInvalidArgument: none.
Expected<std::vector<TargetScheme>> schemes_of_more_bits(const TargetScheme& scheme);

}  // namespace sluice
