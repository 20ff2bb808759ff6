// SPDX-License-Identifier: Apache-2.0
// Characters as regular expressions write them: in UTF-8, or as escapes with digits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

// The number of exactly `count` hexadecimal digits at the front; -1: there are fewer, or it is
// beyond the last character.
[[nodiscard]] int32_t hex_number(std::string_view text, size_t count);

[[nodiscard]] constexpr bool is_half_of_pair(int32_t character) {
  return character >= 0xD800 && character <= 0xDFFF;
}

// Takes the character at the front, in UTF-8; -1, with nothing taken: it is none.
[[nodiscard]] int32_t take_character(std::string_view& text);

// Takes "xHH", "uHHHH" or "u{H...}" at the front, which follow a backslash; -1, with nothing taken:
// it is no such escape. Both halves of a pair are one character, "ud83d\ude00"; half of a pair
// alone is given as it is.
[[nodiscard]] int32_t take_hex_escape(std::string_view& text);

// The length of "?<name>" or "?P<name>", which follow a group's "(", at the front; 0: the group has
// no name.
[[nodiscard]] size_t group_name_length(std::string_view text);

}  // namespace sluice
