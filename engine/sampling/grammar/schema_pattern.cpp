// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/schema_pattern.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

namespace sluice {
namespace {

constexpr int64_t kEndless = StringSize::kEndless;

// A character of a string that needs no escape in JSON.
constexpr std::string_view kPlain = R"([^"\\\x00-\x1f])";
// Characters that negated classes leave out too, for the same reason.
constexpr std::string_view kNeverPlain = R"("\\\x00-\x1f)";

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
    const bool is_ascii = std::ranges::all_of(rest_, [](char c) { return c >= 0x20 && c <= 0x7E; });
    if (!is_ascii) return std::nullopt;
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
    out_ += kPlain;
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
      if (peek() == '?') {
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
    const char c = take();
    switch (c) {
      case '[':
        return character_class();
      case '.':
        out_ += kPlain;
        return;
      case '\\':
        return escape();
      case '^':
      case '$':
      case '*':
      case '+':
      case '?':
      case '{':
      case ')':
        return fail();
      case '"':
        return fail();
      default:
        literal(c);
    }
  }

  void literal(char c) {
    static constexpr std::string_view kSpecial = R"(\^$.|?*+()[]{}-/)";
    if (kSpecial.find(c) != std::string_view::npos) out_ += '\\';
    out_ += c;
  }

  // The inside of a class for \d, \w and \s, or nothing.
  static std::string_view named(char c) {
    switch (c) {
      case 'd':
        return "0-9";
      case 'w':
        return "a-zA-Z0-9_";
      case 's':
        return " ";  // the others are escaped in JSON
      default:
        return {};
    }
  }

  // \D, \W and \S: the inside of a negated class.
  static std::string_view unnamed(char c) {
    switch (c) {
      case 'D':
        return "0-9";
      case 'W':
        return "a-zA-Z0-9_";
      case 'S':
        return " \\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff";
      default:
        return {};
    }
  }

  static bool is_escapable(char c) {
    static constexpr std::string_view kPunctuation = R"(^$.|?*+()[]{}-/!#%&',:;<=>@_`~ )";
    return kPunctuation.find(c) != std::string_view::npos;
  }

  void escape() {
    const char c = take();
    if (const std::string_view inside = named(c); !inside.empty()) {
      out_ += '[';
      out_ += inside;
      out_ += ']';
    } else if (const std::string_view outside = unnamed(c); !outside.empty()) {
      out_ += "[^";
      out_ += outside;
      out_ += kNeverPlain;
      out_ += ']';
    } else if (is_escapable(c)) {
      literal(c);
    } else {
      fail();
    }
  }

  // One character of a class; -1 with a name such as \d, which has been written.
  int class_member(std::string& inside) {
    const char c = take();
    if (c != '\\') return static_cast<unsigned char>(c);
    const char escaped = take();
    if (const std::string_view group = named(escaped); !group.empty()) {
      inside += group;
      return -1;
    }
    // A backslash in the string would be escaped.
    if (escaped == '\\' || escaped == '"') return -1;
    if (!is_escapable(escaped)) fail();
    return static_cast<unsigned char>(escaped);
  }

  static void add_range(int from, int to, std::string& inside) {
    const auto add = [&](int c) {
      if (std::string_view(R"(\]^-[)").find(static_cast<char>(c)) != std::string_view::npos) {
        inside += '\\';
      }
      inside += static_cast<char>(c);
    };
    add(from);
    if (to == from) return;
    inside += '-';
    add(to);
  }

  // Without quote and backslash, which JSON escapes.
  static void add_plain_range(int from, int to, std::string& inside) {
    for (const int hole : {static_cast<int>('"'), static_cast<int>('\\')}) {
      if (from > hole || to < hole) continue;
      if (from < hole) add_plain_range(from, hole - 1, inside);
      if (to > hole) add_plain_range(hole + 1, to, inside);
      return;
    }
    add_range(from, to, inside);
  }

  void character_class() {
    bool is_negated = false;
    if (peek() == '^') {
      take();
      is_negated = true;
    }
    std::string inside;
    while (!failed_ && peek() != ']') {
      const int from = class_member(inside);
      if (from < 0) continue;
      int to = from;
      if (peek() == '-' && rest_.size() > 1 && rest_[1] != ']') {
        take();
        to = class_member(inside);
        if (to < from) fail();
      }
      if (!failed_) add_plain_range(from, to, inside);
    }
    if (take() != ']') return fail();
    if (is_negated) {
      out_ += "[^" + inside + std::string(kNeverPlain) + "]";
    } else if (inside.empty()) {
      fail();
    } else {
      out_ += '[' + inside + ']';
    }
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
  return std::string(kPlain) + braces(size.min, size.max);
}

}  // namespace sluice
