// SPDX-License-Identifier: Apache-2.0
// The alphabet of byte-level BPE vocabularies (GPT-2's bytes_to_unicode): the printable bytes of
// Latin-1 stand for themselves, the other 68 are U+0100 and up, in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Returns the UTF-8 of the character for `byte`.
std::string spell_byte(uint8_t byte);
// Returns those of several bytes.
std::string spell_bytes(std::string_view bytes);

// Returns the bytes of `spelling`; nullopt where a character is outside the alphabet.
std::optional<std::string> unspell_bytes(std::string_view spelling);

}  // namespace sluice
