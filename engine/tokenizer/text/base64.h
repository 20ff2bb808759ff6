// SPDX-License-Identifier: Apache-2.0
// Converts binary values that tokenizer files store as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// RFC 4648, with or without padding; nullopt: a character is outside the alphabet.
std::optional<std::string> decode_base64(std::string_view text);

// Encodes with padding.
std::string encode_base64(std::string_view bytes);

}  // namespace sluice
