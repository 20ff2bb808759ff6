// SPDX-License-Identifier: Apache-2.0
// The text that calibrates schemes of 4 bits where the caller gives none.
#pragma once

#include <string_view>

namespace sluice {

// About 30 kB: 7,000 to 10,000 tokens.
std::string_view calibration_text();

}  // namespace sluice
