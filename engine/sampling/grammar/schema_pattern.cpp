// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/schema_pattern.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/sampling/grammar/character_set.h"
#include "engine/sampling/grammar/written_character.h"

namespace sluice {
namespace {

constexpr int64_t kEndless = StringSize::kEndless;

// Any character as JSON writes it between quotes. Half of a surrogate pair is none; a whole pair
// has two escapes, and is one character only without them.
constexpr std::string_view kAnyCharacter =
    R"((?:[^"\\\x00-\x1f\ud800-\udfff]|\\(?:["\\/bfnrt]|u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|)"
    R"([dD][0-7][0-9a-fA-F]{2}))))";

// What JSON has a short escape for, and its letter.
constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
constexpr std::string_view kLetters = "\"\\bfnrt";

// White space and ends of lines of ECMA-262.
const CharacterSet& pattern_space() {
  static const CharacterSet set = [] {
    CharacterSet all("\t\n\v\f\r ");
    for (const int32_t c : {0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF}) {
      all.add(c, c);
    }
    all.add(0x2000, 0x200A);
    return all;
  }();
  return set;
}

const CharacterSet& line_ends() {
  static const CharacterSet set = [] {
    CharacterSet all("\n\r");
    all.add(0x2028, 0x2029);
    return all;
  }();
  return set;
}

// The characters of \d, \W and the like; nothing for other letters.
std::optional<CharacterSet> named_set(char letter) {
  switch (letter) {
    case 'd':
      return decimal_digits();
    case 'D':
      return decimal_digits().complement();
    case 'w':
      return word_characters();
    case 'W':
      return word_characters().complement();
    case 's':
      return pattern_space();
    case 'S':
      return pattern_space().complement();
    default:
      return std::nullopt;
  }
}

// "u00" and the digits of control characters in `set` that have no short escape. No two branches
// begin alike, so that a text has one derivation and its masks know whole tokens.
std::string long_escapes(const CharacterSet& set) {
  std::string out;
  for (const char high : {'0', '1'}) {
    CharacterSet digits;
    for (int32_t low = 0; low < 16; ++low) {
      const int32_t c = 16 * (high - '0') + low;
      const bool is_short = kEscaped.find(static_cast<char>(c)) != std::string_view::npos;
      if (!set.contains(c) || is_short) continue;
      if (low < 10) {
        digits.add('0' + low, '0' + low);
      } else {
        digits.add('a' + low - 10, 'a' + low - 10);
        digits.add('A' + low - 10, 'A' + low - 10);
      }
    }
    if (digits.is_empty()) continue;
    out += (out.empty() ? "" : "|") + std::string(1, high) + digits.expression();
  }
  return out.empty() ? out : "u00(?:" + out + ')';
}

// One character of `set` as JSON writes it: as it is where that may be, else escaped.
std::string json_character(const CharacterSet& set) {
  static const CharacterSet must_escape = [] {
    CharacterSet all(0, 0x1F);
    all.add(CharacterSet("\"\\"));
    return all;
  }();
  const CharacterSet plain = set.without(must_escape);
  CharacterSet letters;
  for (size_t i = 0; i < kEscaped.size(); ++i) {
    if (set.contains(kEscaped[i])) letters.add(kLetters[i], kLetters[i]);
  }
  std::string escapes = long_escapes(set);
  if (!letters.is_empty()) {
    escapes = letters.expression() + (escapes.empty() ? "" : "|") + escapes;
  }
  if (escapes.empty()) return plain.expression();
  escapes = R"(\\(?:)" + escapes + ')';
  return plain.is_empty() ? "(?:" + escapes + ')'
                          : "(?:" + plain.expression() + '|' + escapes + ')';
}

// "{2,5}", "{2,}".
std::string braces(int64_t min, int64_t max) {
  return '{' + std::to_string(min) + ',' + (max == kEndless ? "" : std::to_string(max)) + '}';
}

int64_t sum(int64_t a, int64_t b) { return a > kEndless - b ? kEndless : a + b; }

// Multiplies; kEndless times 0 is 0.
int64_t product(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return 0;
  return a > kEndless / b ? kEndless : a * b;
}

class PatternWriter {
 public:
  PatternWriter(std::string_view pattern, int64_t max_count)
      : rest_(pattern), max_count_(max_count) {}

  std::optional<std::string> whole(const StringSize& size) {
    const StringSize own = alternatives(0);
    if (failed_ || !rest_.empty() || !fit(own, size)) return std::nullopt;
    return std::move(out_);
  }

 private:
  static constexpr int kDeepest = 32;

  // A piece of the outermost sequence whose size is open: characters of one class.
  struct OpenPiece {
    size_t begin = 0;  // of its quantifier in out_
    size_t end = 0;
    StringSize counts;
  };

  // Bounds that the expression keeps by itself change nothing; else its one open piece takes them.
  bool fit(const StringSize& own, const StringSize& size) {
    if (own.min >= size.min && own.max <= size.max) return true;
    if (num_alternatives_ != 1 || num_open_ != 1 || !open_piece_) return false;
    const StringSize counts = open_piece_->counts;
    const int64_t fixed = own.min - counts.min;
    const int64_t min = std::max(counts.min, size.min - fixed);
    const int64_t max = size.max == kEndless ? counts.max : std::min(counts.max, size.max - fixed);
    if (min > max || max < 0 || min > max_count_) return false;
    out_.replace(open_piece_->begin, open_piece_->end - open_piece_->begin, braces(min, max));
    return true;
  }

  char peek() const { return rest_.empty() ? '\0' : rest_[0]; }

  char take() {
    if (rest_.empty()) {
      failed_ = true;
      return '\0';
    }
    const char c = rest_[0];
    rest_.remove_prefix(1);
    return c;
  }

  void fail() { failed_ = true; }

  // The outermost ones are searched for: what an anchor does not bind may be inside other text.
  StringSize alternatives(int depth) {
    if (depth > kDeepest) fail();
    StringSize size{.min = kEndless, .max = 0};
    out_ += '(';
    while (!failed_) {
      const StringSize one = sequence(depth);
      size = {.min = std::min(size.min, one.min), .max = std::max(size.max, one.max)};
      if (depth == 0) ++num_alternatives_;
      if (peek() != '|') break;
      take();
      out_ += '|';
    }
    out_ += ')';
    return size;
  }

  StringSize sequence(int depth) {
    StringSize size{.min = 0, .max = 0};
    const bool is_outer = depth == 0;
    bool is_open = is_outer;
    if (is_outer && peek() == '^') {
      take();
      is_open = false;
    }
    if (is_open) any_text(size);
    bool is_closed = false;
    while (!failed_ && !rest_.empty() && peek() != '|' && peek() != ')') {
      if (is_outer && peek() == '$') {
        take();
        is_closed = true;
        if (!rest_.empty() && peek() != '|') fail();
        break;
      }
      const StringSize one = piece(depth);
      size = {.min = sum(size.min, one.min), .max = sum(size.max, one.max)};
    }
    if (is_outer && !is_closed) any_text(size);
    return size;
  }

  void any_text(StringSize& size) {
    out_ += kAnyCharacter;
    ++num_open_;
    open_piece_ = OpenPiece{.begin = out_.size(), .end = out_.size() + 1, .counts = {}};
    out_ += '*';
    size.max = kEndless;
  }

  StringSize piece(int depth) {
    const StringSize one = atom(depth);
    const size_t begin = out_.size();
    const StringSize counts = quantifier();
    const StringSize size{.min = product(one.min, counts.min), .max = product(one.max, counts.max)};
    if (depth == 0 && size.min != size.max) {
      ++num_open_;
      open_piece_.reset();
      if (one.min == 1 && one.max == 1) {
        open_piece_ = OpenPiece{.begin = begin, .end = out_.size(), .counts = counts};
      }
    }
    return size;
  }

  // Reads how often the piece before it may occur.
  StringSize quantifier() {
    StringSize count{.min = 1, .max = 1};
    const char c = peek();
    if (c == '?') {
      take();
      out_ += kOptionalPiece;
      count.min = 0;
    } else if (c == '*' || c == '+') {
      out_ += take();
      count = {.min = c == '+' ? 1 : 0, .max = kEndless};
    } else if (c == '{') {
      count = counts();
    } else {
      return count;
    }
    if (peek() == '?') take();  // how much is taken first does not change what matches
    if (peek() == '*' || peek() == '+' || peek() == '{') fail();
    return count;
  }

  int64_t number() {
    int64_t value = -1;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc() || value < 0 || value > max_count_) {
      fail();
      return 0;
    }
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return value;
  }

  StringSize counts() {
    take();
    const int64_t min = number();
    int64_t max = min;
    if (peek() == ',') {
      take();
      max = peek() == '}' ? kEndless : number();
    }
    if (take() != '}' || max < min) fail();
    out_ += braces(min, max);
    return {.min = min, .max = max};
  }

  StringSize atom(int depth) {
    if (peek() == '(') {
      take();
      if (const size_t name = group_name_length(rest_); name > 0) {
        rest_.remove_prefix(name);
      } else if (peek() == '?') {
        take();
        if (take() != ':') fail();
      }
      const StringSize size = alternatives(depth + 1);
      if (take() != ')') fail();
      return size;
    }
    character();
    return {.min = 1, .max = 1};
  }

  void character() {
    switch (const int32_t c = take_any()) {
      case '[':
        return character_class();
      case '.':
        return write(line_ends().complement());
      case '\\':
        return write(escape());
      case '^':
      case '$':
      case '*':
      case '+':
      case '?':
      case '{':
      case ')':
        return fail();
      default:
        write(CharacterSet(c, c));
    }
  }

  void write(const CharacterSet& set) {
    if (set.is_empty()) return fail();
    if (!failed_) out_ += json_character(set);
  }

  // Takes a character of any size.
  int32_t take_any() {
    const int32_t c = take_character(rest_);
    if (c < 0) fail();
    return std::max(c, 0);
  }

  // The characters of an escape, whose backslash has been taken.
  CharacterSet escape() {
    static constexpr std::string_view kControlLetters = "fnrtv";
    static constexpr std::string_view kControls = "\f\n\r\t\v";
    static constexpr std::string_view kPunctuation = R"(^$.|?*+()[]{}-/\"!#%&',:;<=>@_`~ )";
    if (peek() == 'x' || peek() == 'u') return hex_escape();
    const char c = take();
    if (const std::optional<CharacterSet> set = named_set(c)) return *set;
    if (const size_t at = kControlLetters.find(c); at != std::string_view::npos) {
      return CharacterSet(kControls[at], kControls[at]);
    }
    if (kPunctuation.find(c) == std::string_view::npos) fail();
    return CharacterSet(c, c);
  }

  CharacterSet hex_escape() {
    const int32_t c = take_hex_escape(rest_);
    if (c < 0 || is_half_of_pair(c)) fail();
    return failed_ ? CharacterSet() : CharacterSet(c, c);
  }

  CharacterSet class_member() {
    const int32_t c = take_any();
    return c == '\\' ? escape() : CharacterSet(c, c);
  }

  void character_class() {
    bool is_negated = false;
    if (peek() == '^') {
      take();
      is_negated = true;
    }
    CharacterSet set;
    while (!failed_ && peek() != ']') {
      const CharacterSet from = class_member();
      set.add(from);
      if (peek() != '-' || rest_.size() < 2 || rest_[1] == ']') continue;
      take();
      const CharacterSet to = class_member();
      const bool is_range = from.is_single() && to.is_single() && from.first() <= to.first();
      if (!is_range) return fail();
      set.add(from.first(), to.first());
    }
    if (take() != ']') return fail();
    write(is_negated ? set.complement() : set);
  }

  std::string_view rest_;
  const int64_t max_count_;
  std::string out_;
  int num_alternatives_ = 0;             // of the outermost
  int num_open_ = 0;                     // pieces of the outermost whose size is open
  std::optional<OpenPiece> open_piece_;  // the latest of them, where it is of one class
  bool failed_ = false;
};

}  // namespace

std::optional<std::string> pattern_of_whole_string(std::string_view pattern,
                                                   int64_t max_count,
                                                   const StringSize& size) {
  return PatternWriter(pattern, max_count).whole(size);
}

std::string pattern_of_length(const StringSize& size) {
  return std::string(kAnyCharacter) + braces(size.min, size.max);
}

}  // namespace sluice
