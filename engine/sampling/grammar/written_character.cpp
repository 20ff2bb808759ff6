// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/written_character.h"

#include "engine/core/hex.h"
#include "engine/sampling/grammar/character_set.h"

namespace sluice {

int32_t hex_number(std::string_view text, size_t count) {
  if (text.size() < count) return -1;
  int32_t value = 0;
  for (const char c : text.substr(0, count)) {
    if (hex_digit(c) < 0 || value > CharacterSet::kLast) return -1;
    value = 16 * value + hex_digit(c);
  }
  return value <= CharacterSet::kLast ? value : -1;
}

int32_t take_character(std::string_view& text) {
  if (text.empty()) return -1;
  int32_t character = static_cast<unsigned char>(text[0]);
  size_t length = 1;
  if (character >= 0xC0) {
    length = character >= 0xF0 ? 4 : character >= 0xE0 ? 3 : 2;
    character &= 0xFF >> (length + 1);
    if (text.size() < length) return -1;
    for (const char c : text.substr(1, length - 1)) {
      if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) return -1;
      character = character << 6 | (static_cast<unsigned char>(c) & 0x3F);
    }
  } else if (character >= 0x80) {
    return -1;
  }
  if (character > CharacterSet::kLast || is_half_of_pair(character)) return -1;
  text.remove_prefix(length);
  return character;
}

int32_t take_hex_escape(std::string_view& text) {
  if (!text.starts_with('x') && !text.starts_with('u')) return -1;
  const std::string_view digits = text.substr(1);
  const size_t count = text[0] == 'x' ? 2 : 4;
  size_t length = 1 + count;
  int32_t character = -1;
  if (text[0] == 'u' && digits.starts_with('{')) {
    const size_t end = digits.find('}');
    if (end == std::string_view::npos || end < 2 || end > 7) return -1;
    character = hex_number(digits.substr(1), end - 1);
    length = end + 2;
  } else {
    character = hex_number(digits, count);
  }
  if (character < 0) return -1;
  text.remove_prefix(length);
  if (character < 0xD800 || character > 0xDBFF || !text.starts_with("\\u")) return character;
  const int32_t second = hex_number(text.substr(2), 4);
  if (second < 0xDC00 || second > 0xDFFF) return character;
  text.remove_prefix(6);
  return 0x10000 + ((character - 0xD800) << 10) + (second - 0xDC00);
}

size_t group_name_length(std::string_view text) {
  const size_t begin = text.starts_with("?P<") ? 3 : 2;
  if (!text.starts_with(begin == 3 ? "?P<" : "?<")) return 0;
  const auto is_of_name = [](char c) {
    return word_characters().contains(static_cast<unsigned char>(c));
  };
  size_t end = begin;
  while (end < text.size() && is_of_name(text[end])) ++end;
  return end > begin && end < text.size() && text[end] == '>' ? end + 1 : 0;
}

}  // namespace sluice
