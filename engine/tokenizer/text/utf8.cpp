// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/text/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/core/status.h"

namespace sluice {
namespace {

struct LeadByte {
  size_t length = 0;  // the character's length; 0: not a lead byte
  uint8_t second_low = 0x80;
  uint8_t second_high = 0xBF;
};

LeadByte classify_lead(uint8_t lead) {
  if (lead < 0x80) return {1};
  if (lead < 0xC2) return {0};
  if (lead < 0xE0) return {2};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

bool is_space(uint32_t code) {
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

}  // namespace

Utf8Part next_utf8_part(std::string_view text, size_t position) {
  const LeadByte lead = classify_lead(static_cast<uint8_t>(text[position]));
  if (lead.length == 0) return {1, Utf8Kind::kInvalid};
  for (size_t i = 1; i < lead.length; ++i) {
    if (position + i >= text.size()) return {i, Utf8Kind::kTruncated};
    const auto byte = static_cast<uint8_t>(text[position + i]);
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {i, Utf8Kind::kInvalid};
  }
  return {lead.length, Utf8Kind::kCharacter};
}

size_t skip_invalid_utf8(std::string_view text, size_t position) {
  while (position < text.size()) {
    const Utf8Part part = next_utf8_part(text, position);
    if (part.kind == Utf8Kind::kCharacter) break;
    position += part.length;
  }
  return position;
}

size_t leading_space_bytes(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    const Utf8Part part = next_utf8_part(text, position);
    if (part.kind != Utf8Kind::kCharacter) break;
    if (!is_space(decode_utf8(text.substr(position, part.length)))) break;
    position += part.length;
  }
  return position;
}

size_t trailing_space_bytes(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && end - begin < 4 && (text[begin] & 0xC0) == 0x80) --begin;
    const Utf8Part part = next_utf8_part(text.substr(0, end), begin);
    if (part.kind != Utf8Kind::kCharacter || begin + part.length != end) break;
    if (!is_space(decode_utf8(text.substr(begin, part.length)))) break;
    end = begin;
  }
  return text.size() - end;
}

std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content) {
  CHECK(!pattern.empty());
  std::string out;
  out.reserve(text.size() + text.size() / 3);
  for (size_t position = 0; position < text.size();) {
    const size_t found = std::min(text.find(pattern, position), text.size());
    out += text.substr(position, found - position);
    if (found == text.size()) break;
    out += content;
    position = found + pattern.size();
  }
  return out;
}

uint32_t decode_utf8(std::string_view character) {
  const auto byte = [&](size_t i) { return uint32_t{static_cast<uint8_t>(character[i])}; };
  const auto rest = [&](size_t i) { return byte(i) & 0x3F; };
  switch (character.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | rest(1);
    case 3:
      return (byte(0) & 0x0F) << 12 | rest(1) << 6 | rest(2);
    default:
      return (byte(0) & 0x07) << 18 | rest(1) << 12 | rest(2) << 6 | rest(3);
  }
}

void append_utf8(uint32_t code, std::string& out) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t find_invalid_utf8(std::string_view text, size_t position) {
  while (position < text.size()) {
    uint64_t eight = 0;
    if (text.size() - position >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + position, sizeof(eight));
      if ((eight & 0x8080808080808080ULL) == 0) {
        position += sizeof(eight);
        continue;
      }
    }
    const Utf8Part part = next_utf8_part(text, position);
    if (part.kind != Utf8Kind::kCharacter) return position;
    position += part.length;
  }
  return text.size();
}

}  // namespace sluice
