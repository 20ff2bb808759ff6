// SPDX-License-Identifier: Apache-2.0
// Unicode's normalization forms (UAX #15) and lower case, in linear time but for the sorting of
// long runs of combining marks. The Unicode version is the one that defined the tokenizers' ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

enum class UnicodeForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// True: `text` is certain to equal its `form`; a quick look that may miss some.
bool is_surely_in_form(std::string_view text, UnicodeForm form);

// Both take valid UTF-8.
void append_unicode_form(std::string_view text, UnicodeForm form, std::string& out);
void append_lowercase(std::string_view text, std::string& out);

}  // namespace sluice
