// SPDX-License-Identifier: Apache-2.0
// Written by make_case_map.py: the classes of characters that Python's str methods ask for.
#pragma once

#include <cstdint>

namespace sluice::jinja {

enum class CharClass : uint16_t {
  kAlpha = 1U << 0,
  kDecimal = 1U << 1,
  kDigit = 1U << 2,
  kNumeric = 1U << 3,
  kPrintable = 1U << 4,
  kCased = 1U << 5,
  kIgnorable = 1U << 6,
  kUpper = 1U << 7,
  kLower = 1U << 8,
  kTitle = 1U << 9,
  kWord = 1U << 10,
};

bool in_class(char32_t value, CharClass which);

}  // namespace sluice::jinja
