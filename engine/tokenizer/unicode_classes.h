// SPDX-License-Identifier: Apache-2.0
// Makes the regular expressions of tokenizers mean the same under any PCRE2: its \s and its Unicode
// tables differ from those of the library that defined the ids (Oniguruma, Unicode 16).
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// Rewrites \s, \S (outside brackets) and \p{..} as explicit classes. `pattern` has no nested
// brackets and no negated property; the rows of pretokenizer.cpp are written so.
std::string expand_unicode_classes(std::string_view pattern);

}  // namespace sluice
