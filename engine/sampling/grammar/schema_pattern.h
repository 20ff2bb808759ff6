// SPDX-License-Identifier: Apache-2.0
// Patterns of JSON schemas, which are searched for in a string, as expressions that match all of
// the text between a JSON string's quotes. The strings that match have no escapes in them, so that
// text and string are the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Nothing: the pattern has what is not known here (lookaround, references, borders of words,
// properties of characters, anchors inside), or a count above `max_count`.
std::optional<std::string> pattern_of_whole_string(std::string_view pattern, int64_t max_count);

// Any `min` to `max` characters; `max` < 0: without bound.
std::string pattern_of_length(int64_t min, int64_t max);

}  // namespace sluice
