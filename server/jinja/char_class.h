// SPDX-License-Identifier: Apache-2.0
// Written by make_case_map.py: the classes of characters that Python's str methods ask for.
#pragma once

#include <cstdint>

namespace sluice::jinja {

enum class CharClass : uint8_t {
  kAlpha = 1U << 0,
  kDigit = 1U << 1,
  kPrintable = 1U << 2,
  kCased = 1U << 3,
  kIgnorable = 1U << 4,
};

bool in_class(char32_t value, CharClass which);

}  // namespace sluice::jinja
