// SPDX-License-Identifier: Apache-2.0
// UTF-8 as the Unicode standard reads it (3.9, table 3-7): overlong forms, surrogates and values
// beyond U+10FFFF are invalid, and invalid input is split into maximal subparts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

enum class Utf8Kind {
  kCharacter,  // one valid character
  kInvalid,    // one maximal subpart of an ill-formed sequence
  kTruncated,  // the text ends inside a so far valid character
};

struct Utf8Part {
  size_t length = 0;  // bytes, 1 to 4
  Utf8Kind kind = Utf8Kind::kInvalid;
};

// Returns the part of `text` at `position` < text.size().
Utf8Part next_utf8_part(std::string_view text, size_t position);

// Returns the first position from `position` on where a part is not a character; text.size(): none.
size_t find_invalid_utf8(std::string_view text, size_t position);

// Returns the first position from `position` on where a character begins; text.size(): none.
size_t skip_invalid_utf8(std::string_view text, size_t position);

// Runs `change(valid part, out)` on valid UTF-8 and copies the rest to `out`.
template <typename Change>
void change_valid_utf8(std::string_view text, std::string& out, Change change) {
  for (size_t position = 0; position < text.size();) {
    const size_t invalid = find_invalid_utf8(text, position);
    if (invalid > position) change(text.substr(position, invalid - position), out);
    position = skip_invalid_utf8(text, invalid);
    out += text.substr(invalid, position - invalid);
  }
}

constexpr bool is_ascii(char c) { return static_cast<uint8_t>(c) < 0x80; }

// Bytes of the leading or trailing White_Space characters of `text`.
size_t leading_space_bytes(std::string_view text);
size_t trailing_space_bytes(std::string_view text);

// Replaces each `pattern`, which is not empty, by `content`; from the left, without overlap.
std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content);

// Returns the code point of one valid character.
uint32_t decode_utf8(std::string_view character);
void append_utf8(uint32_t code, std::string& out);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace sluice
