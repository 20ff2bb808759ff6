// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/text.h"

#include <algorithm>

namespace sluice::jinja {

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (origin == Origin::kInput) add_input(0, bytes_.size());
}

Origin Text::origin_at(size_t byte) const {
  const auto after = std::upper_bound(
      input_.begin(), input_.end(), byte, [](size_t at, const ByteRange& r) { return at < r.end; });
  return after != input_.end() && after->begin <= byte ? Origin::kInput : Origin::kTemplate;
}

void Text::add_input(size_t begin, size_t end) {
  if (begin == end) return;
  if (!input_.empty() && input_.back().end == begin) {
    input_.back().end = end;
  } else {
    input_.push_back({begin, end});
  }
}

Text Text::substr(size_t begin, size_t end) const {
  Text out;
  out.append(*this, begin, end);
  return out;
}

void Text::append(const Text& other, size_t begin, size_t end) {
  if (begin >= end) return;
  const size_t base = bytes_.size();
  auto range = std::upper_bound(
      other.input_.begin(), other.input_.end(), begin, [](size_t at, const ByteRange& r) {
        return at < r.end;
      });
  std::vector<ByteRange> moved;
  for (; range != other.input_.end() && range->begin < end; ++range) {
    moved.push_back(
        {std::max(range->begin, begin) - begin + base, std::min(range->end, end) - begin + base});
  }
  bytes_.append(other.bytes_, begin, end - begin);
  for (const ByteRange& r : moved) add_input(r.begin, r.end);
}

void Text::append(std::string_view bytes, Origin origin) {
  const size_t base = bytes_.size();
  bytes_.append(bytes);
  if (origin == Origin::kInput) add_input(base, bytes_.size());
}

CodePoint decode_at(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(pos);
  if (lead < 0x80) return {lead, 1};
  const size_t size = lead >= 0xF0 && lead < 0xF5   ? 4
                      : lead >= 0xE0 && lead < 0xF0 ? 3
                      : lead >= 0xC2 && lead < 0xE0 ? 2
                                                    : 0;
  if (size == 0 || pos + size > text.size()) return {0xFFFD, 1};
  char32_t value = lead & (0xFFU >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(pos + i) & 0xC0) != 0x80) return {0xFFFD, 1};
    value = (value << 6) | (byte(pos + i) & 0x3FU);
  }
  return {value, size};
}

void append_utf8(std::string& out, char32_t value) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (value < 0x80) {
    put(value);
  } else if (value < 0x800) {
    put(0xC0 | (value >> 6));
    put(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    put(0xE0 | (value >> 12));
    put(0x80 | ((value >> 6) & 0x3F));
    put(0x80 | (value & 0x3F));
  } else {
    put(0xF0 | (value >> 18));
    put(0x80 | ((value >> 12) & 0x3F));
    put(0x80 | ((value >> 6) & 0x3F));
    put(0x80 | (value & 0x3F));
  }
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); pos += decode_at(text, pos).size) ++count;
  return count;
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) pos += decode_at(text, pos).size;
  return pos;
}

bool is_space(char32_t value) {
  return (value >= 9 && value <= 13) || (value >= 0x1C && value <= 0x20) || value == 0x85 ||
         value == 0xA0 || value == 0x1680 || (value >= 0x2000 && value <= 0x200A) ||
         value == 0x2028 || value == 0x2029 || value == 0x202F || value == 0x205F ||
         value == 0x3000;
}

size_t skip_space(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    const CodePoint point = decode_at(text, pos);
    if (!is_space(point.value)) break;
    pos += point.size;
  }
  return pos;
}

ByteRange find_line_break(std::string_view text, size_t pos) {
  while (pos < text.size()) {
    const CodePoint point = decode_at(text, pos);
    const char32_t c = point.value;
    const bool is_break = (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                          c == 0x2028 || c == 0x2029;
    if (is_break) {
      const bool is_pair = c == '\r' && pos + 1 < text.size() && text[pos + 1] == '\n';
      return {pos, pos + point.size + (is_pair ? 1 : 0)};
    }
    pos += point.size;
  }
  return {text.size(), text.size()};
}

size_t rstrip_end(std::string_view text) {
  size_t end = 0;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint point = decode_at(text, pos);
    pos += point.size;
    if (!is_space(point.value)) end = pos;
  }
  return end;
}

}  // namespace sluice::jinja
