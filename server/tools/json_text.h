// SPDX-License-Identifier: Apache-2.0
// JSON byte by byte, as far as finding calls requires: the end of a value, the content of a string,
// whether a text is JSON. Values; no allocation but for the decoded text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/tools/tool_schemas.h"

namespace sluice {

constexpr bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Without JSON's white space at both ends.
constexpr std::string_view without_space_around(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

// Finds the end of a value whose bytes are fed one by one. Nesting is counted regardless of the
// kind of bracket: broken JSON ends where its brackets balance.
class JsonSpan {
 public:
  enum class Place : uint8_t {
    kInside,  // the byte is of the value, which continues
    kLast,    // the byte is the value's last
    kAfter,   // the value, a number or a word, had ended before this byte
  };

  // The first byte is not white space.
  Place feed(char c);

  [[nodiscard]] bool in_string() const { return in_string_; }

  // The next byte belongs to an escape.
  [[nodiscard]] bool is_escaped() const { return is_escaped_; }

 private:
  int32_t depth_ = 0;
  bool in_string_ = false;
  bool is_escaped_ = false;
};

// Decodes a string whose bytes, after the opening quote, are fed one by one.
class JsonString {
 public:
  // True: the byte was the closing quote. Decoded bytes are appended to `out`; a lone half of a
  // surrogate pair is U+FFFD, an unknown escape its character.
  bool feed(char c, std::string& out);

 private:
  void feed_hex(char c, std::string& out);

  bool is_escaped_ = false;
  uint8_t num_hex_ = 0;  // digits not read yet
  uint32_t code_ = 0;
  uint32_t high_ = 0;  // first half of a pair, whose second may follow
};

// The type of the JSON value that `text` is, white space around it apart and strings with raw
// control characters allowed, which PieceWriter escapes; nullopt: it is not JSON, or is nested
// deeper than kMaxArgumentDepth. Not recursive.
std::optional<JsonTypes> json_type(std::string_view text);

// Bytes of a string's content as JSON spells them: quotes, backslashes and control characters are
// escaped, all else is as it was.
void append_json_escaped(std::string_view bytes, std::string& out);

}  // namespace sluice
