// SPDX-License-Identifier: Apache-2.0
// Seeds that are functions of another one.
#pragma once

#include <cstdint>

namespace sluice {

// Returns the seed of choice k: the request's own for k = 0, a 64-bit mix of both for the others.
uint64_t choice_seed(uint64_t seed, uint64_t k);

}  // namespace sluice
