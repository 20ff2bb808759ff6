// SPDX-License-Identifier: Apache-2.0
// The alphabet in which byte-level BPE vocabularies spell bytes (GPT-2's bytes_to_unicode): the
// printable bytes of Latin-1 stand for themselves, the other 68 are U+0100 and up, in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// UTF-8 of the character that stands for `byte`.
std::string spell_byte(uint8_t byte);

// The bytes `spelling` stands for; nullopt where a character is not in the alphabet.
std::optional<std::string> unspell_bytes(std::string_view spelling);

}  // namespace sluice
