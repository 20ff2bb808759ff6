// SPDX-License-Identifier: Apache-2.0
// A UTF-8 string that remembers which of its bytes came out of the inputs of a render. Only bytes
// that the template wrote may become special tokens, so every string operation of the engine is
// built from the two that carry the ranges: append and substr.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::jinja {

enum class Origin : uint8_t { kTemplate, kInput };

struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

class Text {
 public:
  Text() = default;
  Text(std::string bytes, Origin origin);

  [[nodiscard]] std::string_view view() const { return bytes_; }

  [[nodiscard]] size_t size() const { return bytes_.size(); }

  [[nodiscard]] bool empty() const { return bytes_.empty(); }

  [[nodiscard]] bool any_input() const { return !input_.empty(); }

  // Sorted, disjoint, not touching: the bytes that came from inputs.
  [[nodiscard]] const std::vector<ByteRange>& input_ranges() const { return input_; }

  [[nodiscard]] Origin origin_at(size_t byte) const;

  // kInput when any byte is: for results that cannot be followed byte by byte.
  [[nodiscard]] Origin overall() const { return any_input() ? Origin::kInput : Origin::kTemplate; }

  [[nodiscard]] size_t memory_bytes() const {
    return bytes_.size() + input_.size() * sizeof(ByteRange);
  }

  // Bytes [begin, end) with their ranges.
  [[nodiscard]] Text substr(size_t begin, size_t end) const;

  void append(const Text& other) { append(other, 0, other.size()); }

  void append(const Text& other, size_t begin, size_t end);
  void append(std::string_view bytes, Origin origin);

 private:
  void add_input(size_t begin, size_t end);

  std::string bytes_;
  std::vector<ByteRange> input_;
};

// One code point of UTF-8; a malformed byte counts as one character of its own.
struct CodePoint {
  char32_t value = 0;
  size_t size = 1;  // bytes
};

CodePoint decode_at(std::string_view text, size_t pos);
void append_utf8(std::string& out, char32_t value);
size_t count_characters(std::string_view text);
// Byte offset of character `index`; the size of the text when there are fewer.
size_t byte_offset(std::string_view text, size_t index);

// What Python's str.isspace() says.
bool is_space(char32_t value);
size_t skip_space(std::string_view text, size_t pos);
// The next line break as Python's str.splitlines() sees it; both are text.size() where none is
// left.
ByteRange find_line_break(std::string_view text, size_t pos);
// End of the text once trailing white space is cut.
size_t rstrip_end(std::string_view text);

}  // namespace sluice::jinja
