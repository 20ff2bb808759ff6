// SPDX-License-Identifier: Apache-2.0
// Which keys of a sequence a token sees; its own is the last.
#pragma once

#include <cstdint>

namespace sluice::kernels {

// Returns the first key that a token at `position` sees: of the last `window` ones, the own one
// included, or, if `is_chunked`, from the last multiple of `window` on; window 0: all.
[[gnu::always_inline]] constexpr int32_t first_visible_key(int32_t position,
                                                           int32_t window,
                                                           bool is_chunked) {
  if (window <= 0 || position < window) return 0;
  return is_chunked ? position / window * window : position - window + 1;
}

}  // namespace sluice::kernels
