// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/exact_regex.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "engine/sampling/grammar/character_set.h"
#include "engine/sampling/grammar/schema_pattern.h"
#include "engine/sampling/grammar/written_character.h"

namespace sluice {
namespace {

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
      if (const size_t name = c == '(' ? group_name_length(rest_.substr(1)) : 0; name > 0) {
        out_ += "(?:";
        rest_.remove_prefix(1 + name);
        is_behind_piece_ = false;
        return;
      }
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
    if (!text.starts_with('\\')) return -1;
    std::string_view rest = text.substr(1);
    int32_t character = -1;
    if (rest.starts_with('U')) {
      character = hex_number(rest.substr(1), 8);
      if (character >= 0) rest.remove_prefix(9);
    } else if (rest.starts_with('0')) {
      size_t length = 1;
      for (character = 0; length < std::min<size_t>(3, rest.size()); ++length) {
        if (rest[length] < '0' || rest[length] > '7') break;
        character = 8 * character + (rest[length] - '0');
      }
      rest.remove_prefix(length);
    } else {
      character = take_hex_escape(rest);
    }
    if (character >= 0) text = rest;
    if (!is_half_of_pair(character)) return character;
    error_ = "the regular expression has half of a surrogate pair";
    return 0;
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
    const int32_t character = take_character(text);
    if (character < 0) return std::nullopt;
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
