// SPDX-License-Identifier: Apache-2.0
// How much a test takes: a sample at a commit, all of it in the long tier (tests/run.sh --full).
#pragma once

#include <cstdlib>

namespace sluice::testing {

inline bool is_full() { return std::getenv("SLUICE_FULL") != nullptr; }

// Returns how many cases a test takes: `sample` at a commit, `all` in the long tier.
template <typename Count>
Count sample_of(Count sample, Count all) {
  return is_full() ? all : sample;
}

}  // namespace sluice::testing
