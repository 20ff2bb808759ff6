// SPDX-License-Identifier: Apache-2.0
// Unicode's normalization forms (UAX #15) and mapping or removal of single characters, in linear
// time. The Unicode version is the one that defined the tokenizers' ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

enum class UnicodeForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// True: `text` certainly equals its `form`; a quick check with false negatives.
bool is_surely_in_form(std::string_view text, UnicodeForm form);

// Characters removed by StripAccents, and by BertNormalizer's strip_accents and clean_text.
enum class OmittedCharacters : uint8_t { kMarks, kBertMarks, kBertControls };

// These functions take valid UTF-8.
void append_unicode_form(std::string_view text, UnicodeForm form, std::string& out);
void append_lowercase(std::string_view text, std::string& out);
void append_without(std::string_view text, OmittedCharacters omitted, std::string& out);

}  // namespace sluice
