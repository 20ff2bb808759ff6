// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/lexer.h"

#include <array>
#include <utility>

#include "server/jinja/text.h"

namespace sluice::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

bool is_hex(char c) { return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

std::string normalise_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

// A character by its Unicode name, \N{BULLET}: names take tables that no template is worth.
bool has_named_character(std::string_view body) {
  for (size_t at = body.find('\\'); at != std::string_view::npos; at = body.find('\\', at + 2)) {
    if (body.substr(at + 1).starts_with('N')) return true;
  }
  return false;
}

// Python's escapes but for names of characters; one it does not know stays as written.
std::string unescape(std::string_view body) {
  std::string out;
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\' || i + 1 == body.size()) {
      out.push_back(body[i]);
      continue;
    }
    const char c = body[++i];
    constexpr std::string_view kFrom = "abfnrtv\\'\"";
    constexpr std::string_view kTo = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t at = kFrom.find(c); at != std::string_view::npos) {
      out.push_back(kTo[at]);
      continue;
    }
    if (c == '\n') continue;
    const bool octal = c >= '0' && c <= '7';
    const size_t want = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    size_t pos = octal ? i : i + 1;
    char32_t value = 0;
    size_t used = 0;
    if (octal) {
      for (; used < 3 && pos < body.size() && body[pos] >= '0' && body[pos] <= '7'; ++pos, ++used) {
        value = value * 8 + static_cast<char32_t>(body[pos] - '0');
      }
    } else {
      for (; used < want && pos < body.size() && is_hex(body[pos]); ++pos, ++used) {
        const char h = body[pos];
        value = value * 16 + static_cast<char32_t>(is_digit(h) ? h - '0' : (h | 32) - 'a' + 10);
      }
    }
    const bool surrogate = value >= 0xD800 && value < 0xE000;
    if ((octal || (want > 0 && used == want)) && value < 0x110000 && !surrogate) {
      append_utf8(out, value);
      i = pos - 1;
    } else {
      out.push_back('\\');
      out.push_back(c);
    }
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Expected<std::vector<Token>> run() {
    while (pos_ < source_.size()) SLUICE_TRY_VOID(next_tag());
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] bool at(std::string_view what) const {
    return source_.compare(pos_, what.size(), what) == 0;
  }

  [[nodiscard]] char peek(size_t ahead = 0) const {
    return pos_ + ahead < source_.size() ? source_[pos_ + ahead] : '\0';
  }

  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  [[nodiscard]] tl::unexpected<Error> error(const std::string& what) const {
    return make_error(ErrorCode::kInvalidArgument,
                      "template line " + std::to_string(line_) + ": " + what);
  }

  void advance(size_t to) {
    for (; pos_ < to; ++pos_) line_ += source_[pos_] == '\n' ? 1 : 0;
  }

  // Pushes the text before a tag, cut as its sign and lstrip_blocks say.
  void push_data(size_t end, char sign, bool is_print) {
    const std::string_view text = std::string_view(source_).substr(pos_, end - pos_);
    size_t keep = text.size();
    if (sign == '-') {
      keep = rstrip_end(text);
    } else if (sign != '+' && !is_print) {
      const size_t newline = text.rfind('\n');
      const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
      if ((start > 0 || line_starting_) && skip_space(text, start) == text.size()) keep = start;
    }
    if (keep > 0) push(TokenKind::kData, std::string(text.substr(0, keep)));
    advance(end);
  }

  // After a tag's closing marker: '-' eats all space, a block or comment eats one newline.
  void finish_tag(size_t end, char sign, bool eats_newline) {
    if (sign == '-') {
      end = skip_space(source_, end);
    } else if (sign != '+' && eats_newline && end < source_.size() && source_[end] == '\n') {
      ++end;
    }
    advance(end);
    line_starting_ = source_[end - 1] == '\n';
  }

  // From pos_: data up to the next tag, then the tag.
  Expected<void> next_tag() {
    size_t tag = pos_;
    for (; (tag = source_.find('{', tag)) != std::string::npos; ++tag) {
      const char second = tag + 1 < source_.size() ? source_[tag + 1] : '\0';
      if (second == '%' || second == '{' || second == '#') break;
    }
    if (tag == std::string::npos) {
      push(TokenKind::kData, source_.substr(pos_));
      advance(source_.size());
      return {};
    }
    const char type = source_[tag + 1];
    const char after = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const char sign = after == '-' || after == '+' ? after : '\0';
    push_data(tag, sign, type == '{');
    advance(tag + (sign != '\0' ? 3 : 2));
    if (type == '#') return comment();
    if (type == '%') {
      if (const size_t body = raw_begin(); body != std::string::npos) return raw(body);
    }
    push(type == '%' ? TokenKind::kBlockBegin : TokenKind::kPrintBegin, "");
    return expression(type == '%');
  }

  Expected<void> comment() {
    const size_t close = source_.find("#}", pos_);
    if (close == std::string::npos) return error("missing end of comment tag");
    const char sign = close > pos_ ? source_[close - 1] : '\0';
    finish_tag(close + 2, sign, /*eats_newline=*/true);
    return {};
  }

  // Where the text of a raw block starts, when the block tag at pos_ is one.
  [[nodiscard]] size_t raw_begin() const {
    size_t pos = skip_space(source_, pos_);
    if (source_.compare(pos, 3, "raw") != 0) return std::string::npos;
    pos = skip_space(source_, pos + 3);
    if (source_.compare(pos, 3, "-%}") == 0) return skip_space(source_, pos + 3);
    return source_.compare(pos, 2, "%}") == 0 ? pos + 2 : std::string::npos;
  }

  Expected<void> raw(size_t body) {
    advance(body);
    line_starting_ = source_[body - 1] == '\n';
    for (size_t tag = pos_; (tag = source_.find("{%", tag)) != std::string::npos; ++tag) {
      const char after = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      const char sign = after == '-' || after == '+' ? after : '\0';
      size_t pos = skip_space(source_, tag + (sign != '\0' ? 3 : 2));
      if (source_.compare(pos, 6, "endraw") != 0) continue;
      pos = skip_space(source_, pos + 6);
      const char end_sign = pos < source_.size() ? source_[pos] : '\0';
      if (end_sign == '-' || end_sign == '+') ++pos;
      if (source_.compare(pos, 2, "%}") != 0) continue;
      push_data(tag, sign, /*is_print=*/false);
      finish_tag(pos + 2, end_sign, /*eats_newline=*/true);
      return {};
    }
    return error("missing end of raw block");
  }

  // True when the tag closed here.
  bool close_tag(bool block) {
    const std::string_view close = block ? "%}" : "}}";
    const char c = peek();
    const bool has_sign = c == '-' || (block && c == '+');
    if (source_.compare(pos_ + (has_sign ? 1 : 0), 2, close) != 0) return false;
    push(block ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, "");
    finish_tag(pos_ + (has_sign ? 3 : 2), has_sign ? c : '\0', block);
    return true;
  }

  Expected<void> expression(bool block) {
    std::string open;
    while (true) {
      advance(skip_space(source_, pos_));
      if (pos_ >= source_.size()) return error("unexpected end of template");
      if (open.empty() && close_tag(block)) return {};
      const char c = peek();
      if (is_digit(c)) {
        number();
      } else if (is_name_start(c)) {
        const size_t begin = pos_;
        while (is_name_start(peek()) || is_digit(peek())) ++pos_;
        push(TokenKind::kName, source_.substr(begin, pos_ - begin));
      } else if (c == '\'' || c == '"') {
        SLUICE_TRY_VOID(string(c));
      } else {
        SLUICE_TRY_VOID(op(open));
      }
    }
  }

  size_t digits(size_t pos, std::string& out) const {
    while (pos < source_.size() &&
           (is_digit(source_[pos]) ||
            (source_[pos] == '_' && pos + 1 < source_.size() && is_digit(source_[pos + 1])))) {
      if (source_[pos] != '_') out.push_back(source_[pos]);
      ++pos;
    }
    return pos;
  }

  void number() {
    std::string text;
    const char base = static_cast<char>(peek(1) | 32);
    if (peek() == '0' && (base == 'x' || base == 'o' || base == 'b') && is_hex(peek(2))) {
      text = {'0', base};
      pos_ += 2;
      for (; is_hex(peek()) || (peek() == '_' && is_hex(peek(1))); ++pos_) {
        if (peek() != '_') text.push_back(peek());
      }
      push(TokenKind::kInteger, text);
      return;
    }
    size_t pos = digits(pos_, text);
    bool is_float = false;
    const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
    const auto char_at = [&](size_t i) { return i < source_.size() ? source_[i] : '\0'; };
    if (!after_dot && char_at(pos) == '.' && is_digit(char_at(pos + 1))) {
      is_float = true;
      text.push_back('.');
      pos = digits(pos + 1, text);
    }
    if (!after_dot && (char_at(pos) | 32) == 'e') {
      const bool sign = char_at(pos + 1) == '+' || char_at(pos + 1) == '-';
      if (is_digit(char_at(pos + (sign ? 2 : 1)))) {
        is_float = true;
        text.push_back('e');
        if (sign) text.push_back(char_at(pos + 1));
        pos = digits(pos + (sign ? 2 : 1), text);
      }
    }
    pos_ = pos;
    push(is_float ? TokenKind::kFloat : TokenKind::kInteger, text);
  }

  Expected<void> string(char quote) {
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return error("string is not closed");
    const auto body = std::string_view(source_).substr(pos_ + 1, end - pos_ - 1);
    if (has_named_character(body)) {
      return error("\\N in a string, a character by its name, is not supported");
    }
    push(TokenKind::kString, unescape(body));
    advance(end + 1);
    return {};
  }

  // `open` is the stack of brackets that wait for their partners.
  Expected<void> op(std::string& open) {
    static constexpr std::array<std::string_view, 6> kTwo = {"//", "**", "==", "!=", ">=", "<="};
    for (const std::string_view two : kTwo) {
      if (at(two)) {
        push(TokenKind::kOperator, std::string(two));
        pos_ += 2;
        return {};
      }
    }
    const char c = peek();
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      return error(std::string("unexpected character '") + c + "'");
    }
    constexpr std::string_view kOpen = "([{";
    constexpr std::string_view kClose = ")]}";
    if (const size_t which = kOpen.find(c); which != std::string_view::npos) {
      open.push_back(kClose[which]);
    } else if (kClose.find(c) != std::string_view::npos) {
      if (open.empty() || open.back() != c) return error(std::string("unexpected '") + c + "'");
      open.pop_back();
    }
    push(TokenKind::kOperator, std::string(1, c));
    ++pos_;
    return {};
  }

  std::string source_;
  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int32_t line_ = 1;
  bool line_starting_ = true;  // the last tag ended on a newline, or none came yet
};

}  // namespace

Expected<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(normalise_newlines(source)).run();
}

}  // namespace sluice::jinja
