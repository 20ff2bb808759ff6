// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/exact_regex.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "engine/core/hex.h"
#include "engine/sampling/grammar/character_set.h"
#include "engine/sampling/grammar/schema_pattern.h"

namespace sluice {
namespace {

// The number of exactly `count` hexadecimal digits at the front; -1: there are fewer.
int32_t hex_number(std::string_view text, size_t count) {
  if (text.size() < count) return -1;
  int32_t value = 0;
  for (const char c : text.substr(0, count)) {
    if (hex_digit(c) < 0 || value > CharacterSet::kLast) return -1;
    value = 16 * value + hex_digit(c);
  }
  return value <= CharacterSet::kLast ? value : -1;
}

constexpr bool is_half(int32_t character) { return character >= 0xD800 && character <= 0xDFFF; }

// White space as XGrammar has it for \s, so that classes and escapes alone agree.
const CharacterSet& white_space() {
  static const CharacterSet set = [] {
    CharacterSet all("\t\n\v\f\r ");
    all.add(0xA0, 0xA0);
    return all;
  }();
  return set;
}

// The characters of \d, \D and the like; null for other letters.
const CharacterSet* escaped_set(char letter) {
  static const CharacterSet no_digit = decimal_digits().complement();
  static const CharacterSet no_word = word_characters().complement();
  static const CharacterSet no_space = white_space().complement();
  switch (letter) {
    case 'd':
      return &decimal_digits();
    case 'w':
      return &word_characters();
    case 's':
      return &white_space();
    case 'D':
      return &no_digit;
    case 'W':
      return &no_word;
    case 'S':
      return &no_space;
    default:
      return nullptr;
  }
}

class RegexRewriter {
 public:
  RegexRewriter(std::string_view regex, int64_t max_count) : rest_(regex), max_count_(max_count) {}

  Expected<std::string> rewrite() {
    while (!rest_.empty() && error_.empty()) one();
    if (!error_.empty()) return make_error(ErrorCode::kUnsupported, error_);
    return std::move(out_);
  }

 private:
  void one() {
    const char c = rest_[0];
    if (c == '[') {
      is_behind_piece_ = true;
      if (const std::optional<std::string> text = character_class()) {
        out_ += *text;
        return;
      }
      copy_class();
    } else if (c == '\\' && rest_.size() > 1) {
      is_behind_piece_ = true;
      escape();
    } else if (c == '.') {
      is_behind_piece_ = true;
      out_ += CharacterSet(0, CharacterSet::kLast).expression();
      rest_.remove_prefix(1);
    } else if (c == '?' && is_behind_piece_) {
      is_behind_piece_ = false;
      out_ += kOptionalPiece;
      rest_.remove_prefix(1);
    } else {
      if (c == '{') check_counts();
      // A quantifier after these is one of a quantifier, or of a group.
      is_behind_piece_ = std::string_view("(|*+?{}^").find(c) == std::string_view::npos;
      copy(1);
    }
  }

  void copy(size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(std::min(count, rest_.size()));
  }

  void check_counts() {
    int64_t count = 0;
    for (const char c : rest_.substr(1)) {
      if (c == '}') break;
      constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 16;
      count = c >= '0' && c <= '9' ? std::min(10 * count + (c - '0'), kMost) : 0;
      if (count > max_count_) {
        error_ = "the regular expression counts more than " + std::to_string(max_count_);
        return;
      }
    }
  }

  // The character of the escape at the front of `text`, which is taken away; -1: it is none.
  int32_t escaped_character(std::string_view& text) {
    if (text.size() < 2 || text[0] != '\\') return -1;
    size_t length = 0;
    int32_t character = -1;
    const std::string_view digits = text.substr(2);
    switch (text[1]) {
      case 'x':
        character = hex_number(digits, 2);
        length = 4;
        break;
      case 'U':
        character = hex_number(digits, 8);
        length = 10;
        break;
      case 'u':
        if (digits.starts_with('{')) {
          const size_t end = digits.find('}');
          if (end == std::string_view::npos || end < 2 || end > 7) return -1;
          character = hex_number(digits.substr(1), end - 1);
          length = end + 3;
        } else {
          character = hex_number(digits, 4);
          length = 6;
        }
        break;
      case '0':
        character = 0;
        length = 2;
        while (length < 4 && length < text.size() && text[length] >= '0' && text[length] <= '7') {
          character = 8 * character + (text[length++] - '0');
        }
        break;
      default:
        return -1;
    }
    if (character < 0) return -1;
    text.remove_prefix(length);
    return is_half(character) ? whole_pair(character, text) : character;
  }

  // Both halves of a pair are one character.
  int32_t whole_pair(int32_t first, std::string_view& text) {
    const int32_t second = text.starts_with("\\u") ? hex_number(text.substr(2), 4) : -1;
    if (first >= 0xDC00 || second < 0xDC00 || second > 0xDFFF) {
      error_ = "the regular expression has half of a surrogate pair";
      return 0;
    }
    text.remove_prefix(6);
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  void escape() {
    if (const CharacterSet* set = escaped_set(rest_[1])) {
      out_ += set->expression();
      rest_.remove_prefix(2);
    } else if (const int32_t character = escaped_character(rest_); character >= 0) {
      if (error_.empty()) out_ += CharacterSet(character, character).expression();
    } else {
      copy(2);
    }
  }

  // One character of a class, or all of an escape such as \d; nullopt: it is not known here.
  std::optional<CharacterSet> class_member(std::string_view& text) {
    if (text.empty()) return std::nullopt;
    if (text[0] == '\\') return escaped_member(text);
    int32_t character = static_cast<unsigned char>(text[0]);
    size_t length = 1;
    if (character >= 0xC0) {
      length = character >= 0xF0 ? 4 : character >= 0xE0 ? 3 : 2;
      character &= 0xFF >> (length + 1);
      if (text.size() < length) return std::nullopt;
      for (size_t i = 1; i < length; ++i) {
        character = character << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
      }
    } else if (character >= 0x80) {
      return std::nullopt;
    }
    text.remove_prefix(length);
    return CharacterSet(character, character);
  }

  std::optional<CharacterSet> escaped_member(std::string_view& text) {
    static constexpr std::string_view kLetters = "abefnrtv";
    static constexpr std::string_view kMeant = "\a\b\x1B\f\n\r\t\v";
    if (text.size() < 2) return std::nullopt;
    const char c = text[1];
    if (const CharacterSet* set = escaped_set(c)) {
      text.remove_prefix(2);
      return *set;
    }
    if (const int32_t character = escaped_character(text); character >= 0) {
      return CharacterSet(character, character);
    }
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool is_mark = c > ' ' && c < 0x7F && !is_letter && (c < '0' || c > '9');
    const size_t at = kLetters.find(c);
    if (!is_mark && c != ' ' && at == std::string_view::npos) return std::nullopt;
    text.remove_prefix(2);
    const char meant = at == std::string_view::npos ? c : kMeant[at];
    return CharacterSet(meant, meant);
  }

  // Takes the class at the front and writes it anew; nullopt, with nothing taken: it is not known
  // here.
  std::optional<std::string> character_class() {
    std::string_view text = rest_.substr(1);
    const bool is_negated = text.starts_with('^');
    if (is_negated) text.remove_prefix(1);
    CharacterSet set;
    for (bool is_first = true; is_first || !text.starts_with(']'); is_first = false) {
      const std::optional<CharacterSet> from = class_member(text);
      if (!from || !error_.empty()) return std::nullopt;
      set.add(*from);
      if (text.size() < 2 || text[0] != '-' || text[1] == ']') continue;
      text.remove_prefix(1);
      const std::optional<CharacterSet> to = class_member(text);
      if (!from->is_single() || (to && !to->is_single())) {
        error_ = "the regular expression has a range with more than a character at an end";
      }
      if (!to || !error_.empty() || to->first() < from->first()) return std::nullopt;
      set.add(from->first(), to->first());
    }
    if (is_negated) set = set.complement();
    if (set.is_empty()) {
      error_ = "the regular expression has a class without a character";
      return std::nullopt;
    }
    rest_ = text.substr(1);
    return set.expression();
  }

  void copy_class() {
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != ']') end += rest_[end] == '\\' ? 2 : 1;
    copy(end + 1);
  }

  std::string_view rest_;
  const int64_t max_count_;
  std::string out_;
  std::string error_;
  bool is_behind_piece_ = false;
};

}  // namespace

Expected<std::string> exact_regex(std::string_view regex, int64_t max_count) {
  return RegexRewriter(regex, max_count).rewrite();
}

std::string exact_ebnf(std::string_view grammar) {
  std::string out;
  for (size_t at = 0; at < grammar.size(); ++at) {
    out += grammar[at];
    if (grammar[at] != '\\' || at + 1 == grammar.size()) continue;
    if (grammar[at + 1] == 'x' && hex_number(grammar.substr(at + 2), 2) >= 0) {
      out += "u00";
    } else {
      out += grammar[at + 1];
    }
    ++at;
  }
  return out;
}

}  // namespace sluice
