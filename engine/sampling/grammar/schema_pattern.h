// SPDX-License-Identifier: Apache-2.0
// Patterns of JSON schemas, which are searched for in a string, as expressions that match all of
// the text between a JSON string's quotes, where an escape is one character. Of a pattern's
// characters those are escaped that JSON asks it for; where any may be, others are escaped too.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// In place of "?", after which XGrammar as released lets the loop at a piece's end begin without
// the piece: "(:a+)?" would match "a".
inline constexpr std::string_view kOptionalPiece = "{0,1}";

// The least and the greatest number of characters of a string.
struct StringSize {
  static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

  int64_t min = 0;
  int64_t max = kEndless;
};

// The strings of `size` that match. Nothing: the pattern has what is not known here (lookaround,
// references, borders of words, properties of characters, anchors inside), a count above
// `max_count`, or `size` binds it and there is not one place for that: a single class whose count
// is open, outside of groups, where all else has one length.
std::optional<std::string> pattern_of_whole_string(std::string_view pattern,
                                                   int64_t max_count,
                                                   const StringSize& size = {});

// An expression for any characters.
std::string pattern_of_length(const StringSize& size);

}  // namespace sluice
