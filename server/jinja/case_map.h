// SPDX-License-Identifier: Apache-2.0
// Unicode's case mappings, as Python's str methods take them: one character may become three.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::jinja {

enum class LetterCase : uint8_t { kUpper, kLower, kTitle };

// Appends `value` in that case as UTF-8. A sigma at the end of a word is the caller's business.
void append_case(std::string& out, char32_t value, LetterCase to);

}  // namespace sluice::jinja
