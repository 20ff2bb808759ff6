// SPDX-License-Identifier: Apache-2.0
// Binary values that tokenizer files hold as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// RFC 4648, with or without padding; nullopt: a character is not of its alphabet.
std::optional<std::string> decode_base64(std::string_view text);

// With padding.
std::string encode_base64(std::string_view bytes);

}  // namespace sluice
