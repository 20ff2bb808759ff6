// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/utf8.h"

#include <cstdint>
#include <cstring>

namespace sluice {
namespace {

struct LeadByte {
  size_t length = 0;  // of the whole character; 0: no character starts with this byte
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
