// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/text/byte_level.h"

#include <array>

namespace sluice {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr int kNumCharacters = 256 + 68;  // one past the last code point of the alphabet

struct Alphabet {
  std::array<uint16_t, 256> character_of{};
  std::array<int16_t, kNumCharacters> byte_of{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.byte_of) byte = -1;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const int character = stands_for_itself(byte) ? byte : next++;
    alphabet.character_of[byte] = static_cast<uint16_t>(character);
    alphabet.byte_of[character] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string spell_byte(uint8_t byte) {
  const int character = kAlphabet.character_of[byte];
  if (character < 0x80) return std::string(1, static_cast<char>(character));
  return {static_cast<char>(0xC0 | (character >> 6)), static_cast<char>(0x80 | (character & 0x3F))};
}

std::string spell_bytes(std::string_view bytes) {
  std::string spelling;
  for (const char byte : bytes) spelling += spell_byte(static_cast<uint8_t>(byte));
  return spelling;
}

std::optional<std::string> unspell_bytes(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t i = 0; i < spelling.size(); ++i) {
    int character = static_cast<uint8_t>(spelling[i]);
    if (character >= 0x80) {
      // The whole alphabet is below U+0144, so every other character has two bytes.
      if ((character & 0xE0) != 0xC0 || ++i == spelling.size()) return std::nullopt;
      const int tail = static_cast<uint8_t>(spelling[i]);
      if ((tail & 0xC0) != 0x80) return std::nullopt;
      character = ((character & 0x1F) << 6) | (tail & 0x3F);
    }
    if (character >= kNumCharacters || kAlphabet.byte_of[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[character]));
  }
  return bytes;
}

}  // namespace sluice
