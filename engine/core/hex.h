// SPDX-License-Identifier: Apache-2.0
// Bytes as lower-case hexadecimal digits, the high half of each byte first, and back. Functions
// without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

std::string to_hex(std::span<const uint8_t> bytes);

// Whether all characters are lower-case hexadecimal digits; true for the empty text.
bool is_hex(std::string_view text);

// Returns false, leaving `bytes` in any state, unless the text has two hexadecimal digits, of
// either case, for each byte.
bool from_hex(std::string_view text, std::span<uint8_t> bytes);

// Returns the value of a hexadecimal digit of either case; -1: it is none.
int hex_digit(char c);

// Decodes a URL's "org%2Fname" to "org/name"; a % that no two digits follow stays.
std::string percent_decoded(std::string_view text);

}  // namespace sluice
