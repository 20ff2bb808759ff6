// SPDX-License-Identifier: Apache-2.0
// Makes tokenizers' regular expressions independent of PCRE2's version: its \s and its Unicode
// tables differ from those of the library that defined the ids (Oniguruma, Unicode 16).
#pragma once

#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

// Rewrites \s, \w, \p{..} and their negations as explicit classes, and \uXXXX for PCRE2. Nested
// sets and constructs with another meaning in PCRE2 are kUnsupported.
Expected<std::string> expand_unicode_classes(std::string_view pattern);

}  // namespace sluice
