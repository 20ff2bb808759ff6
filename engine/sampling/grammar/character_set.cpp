// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/character_set.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr int32_t kFirstSurrogate = 0xD800;
constexpr int32_t kLastSurrogate = 0xDFFF;
constexpr int32_t kCaret = '^';

// Raw where an escape would read on: "\x01" before "a". Larger ones are followed by none of ASCII.
void write_member(int32_t character, std::string& out) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  if (character == 0) {
    out += "\\0";
  } else if (character == '\n' || character == '\r') {
    out += character == '\n' ? "\\n" : "\\r";
  } else if (character < 0x7F) {
    const auto c = static_cast<char>(character);
    if (std::string_view(R"(\]^-[)").find(c) != std::string_view::npos) out += '\\';
    out += c;
  } else if (character <= 0xFFFF) {
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) {
      out += kHex[static_cast<size_t>(character >> shift & 15)];
    }
  } else {
    out += "\\u{";
    for (int shift = 20; shift >= 0; shift -= 4) {
      if (shift < 20 || character >> 20 != 0) {
        out += kHex[static_cast<size_t>(character >> shift & 15)];
      }
    }
    out += '}';
  }
}

void write_range(int32_t from, int32_t to, std::string& out) {
  if (from > to) return;
  write_member(from, out);
  if (from == to) return;
  if (to > from + 1) out += '-';
  write_member(to, out);
}

}  // namespace

CharacterSet::CharacterSet(std::string_view text) {
  for (const char c : text) add(c, c);
}

void CharacterSet::add(int32_t from, int32_t to) {
  if (from < kFirstSurrogate && to >= kFirstSurrogate) {
    add(from, kFirstSurrogate - 1);
    from = kFirstSurrogate;
  }
  if (from >= kFirstSurrogate && from <= kLastSurrogate) from = kLastSurrogate + 1;
  if (from > to) return;
  // All that the new range touches becomes one with it.
  const auto first = std::ranges::find_if(
      ranges_, [&](const auto& range) { return range.second + 1 >= from; });
  auto last = first;
  while (last != ranges_.end() && last->first <= to + 1) {
    from = std::min(from, last->first);
    to = std::max(to, last->second);
    ++last;
  }
  ranges_.insert(ranges_.erase(first, last), {from, to});
}

void CharacterSet::add(const CharacterSet& other) {
  for (const auto& [from, to] : other.ranges_) add(from, to);
}

CharacterSet CharacterSet::complement() const {
  CharacterSet out;
  int32_t next = 0;
  for (const auto& [from, to] : ranges_) {
    if (from > next) out.add(next, from - 1);
    next = to + 1;
  }
  if (next <= kLast) out.add(next, kLast);
  return out;
}

CharacterSet CharacterSet::without(const CharacterSet& other) const {
  CharacterSet out = complement();
  out.add(other);
  return out.complement();
}

bool CharacterSet::contains(int32_t character) const {
  return std::ranges::any_of(ranges_, [&](const auto& range) {
    return range.first <= character && character <= range.second;
  });
}

std::string CharacterSet::expression() const {
  const bool begins_with_caret = ranges_.front().first == kCaret;
  if (is_single()) {
    const int32_t c = first();
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                          (c >= 'a' && c <= 'z') || c == ' ' || c == '_' || c == ',' || c == ':';
    if (is_plain) return {static_cast<char>(c)};
    if (c == kCaret) return "\\^";
  }
  std::string out = "[";
  for (const auto& [from, to] : ranges_) {
    write_range(from + (from == kCaret && begins_with_caret ? 1 : 0), to, out);
  }
  if (begins_with_caret) out += "\\^";
  return out + ']';
}

const CharacterSet& decimal_digits() {
  static const CharacterSet set('0', '9');
  return set;
}

const CharacterSet& word_characters() {
  static const CharacterSet set = [] {
    CharacterSet all('0', '9');
    all.add('A', 'Z');
    all.add('a', 'z');
    all.add('_', '_');
    return all;
  }();
  return set;
}

}  // namespace sluice
