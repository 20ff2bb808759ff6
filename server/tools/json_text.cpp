// SPDX-License-Identifier: Apache-2.0
#include "server/tools/json_text.h"

#include "engine/tokenizer/text/utf8.h"
#include "server/tools/parse_limits.h"

namespace sluice {

JsonSpan::Place JsonSpan::feed(char c) {
  if (in_string_) {
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (c == '\\') {
      is_escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      return depth_ == 0 ? Place::kLast : Place::kInside;
    }
    return Place::kInside;
  }
  switch (c) {
    case '"':
      in_string_ = true;
      return Place::kInside;
    case '{':
    case '[':
      ++depth_;
      return Place::kInside;
    case '}':
    case ']':
      if (depth_ == 0) return Place::kAfter;
      return --depth_ == 0 ? Place::kLast : Place::kInside;
    default:
      return depth_ == 0 && (c == ',' || is_json_space(c)) ? Place::kAfter : Place::kInside;
  }
}

void JsonString::feed_hex(char c, std::string& out) {
  const uint32_t digit = c >= '0' && c <= '9'   ? static_cast<uint32_t>(c - '0')
                         : c >= 'a' && c <= 'f' ? static_cast<uint32_t>(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? static_cast<uint32_t>(c - 'A' + 10)
                                                : 0;
  code_ = code_ << 4 | digit;
  if (--num_hex_ != 0) return;
  const bool is_low = code_ >= 0xDC00 && code_ < 0xE000;
  if (high_ != 0) {
    if (is_low) {
      append_utf8(0x10000 + ((high_ - 0xD800) << 10) + (code_ - 0xDC00), out);
    } else {
      out += kReplacementCharacter;
    }
    high_ = 0;
    if (is_low) return;
  }
  if (code_ >= 0xD800 && code_ < 0xDC00) {
    high_ = code_;
  } else if (is_low) {
    out += kReplacementCharacter;
  } else {
    append_utf8(code_, out);
  }
}

bool JsonString::feed(char c, std::string& out) {
  if (num_hex_ != 0) {
    feed_hex(c, out);
    return false;
  }
  if (is_escaped_) {
    is_escaped_ = false;
    if (c == 'u') {
      num_hex_ = 4;
      code_ = 0;
      return false;
    }
  } else if (c == '\\') {
    is_escaped_ = true;
    return false;
  } else {
    if (high_ != 0) out += kReplacementCharacter;
    high_ = 0;
    if (c == '"') return true;
    out += c;
    return false;
  }
  if (high_ != 0) out += kReplacementCharacter;
  high_ = 0;
  switch (c) {
    case 'n':
      out += '\n';
      break;
    case 't':
      out += '\t';
      break;
    case 'r':
      out += '\r';
      break;
    case 'b':
      out += '\b';
      break;
    case 'f':
      out += '\f';
      break;
    default:
      out += c;
  }
  return false;
}

void append_json_escaped(std::string_view bytes, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : bytes) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<uint8_t>(c) >= 0x20) {
          out += c;
        } else {
          out += "\\u00";
          out += kHex[static_cast<uint8_t>(c) >> 4];
          out += kHex[c & 15];
        }
    }
  }
}

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A validator of JSON: `at` moves over what was read.
struct JsonCheck {
  std::string_view text;
  size_t at = 0;

  [[nodiscard]] char peek() const { return at < text.size() ? text[at] : '\0'; }

  void skip_space() {
    while (at < text.size() && is_json_space(text[at])) ++at;
  }

  bool digits() {
    const size_t begin = at;
    while (is_digit(peek())) ++at;
    return at != begin;
  }

  bool string() {
    for (++at; at < text.size(); ++at) {
      const char c = text[at];
      if (c == '"') {
        ++at;
        return true;
      }
      if (c != '\\') continue;
      ++at;
      if (peek() == '\0' ||
          std::string_view("\"\\/bfnrtu").find(peek()) == std::string_view::npos) {
        return false;
      }
      if (peek() != 'u') continue;
      for (int i = 0; i < 4; ++i) {
        ++at;
        if (peek() == '\0' ||
            std::string_view("0123456789abcdefABCDEF").find(peek()) == std::string_view::npos) {
          return false;
        }
      }
    }
    return false;
  }

  std::optional<JsonTypes> number() {
    JsonTypes type = kJsonInteger;
    if (peek() == '-') ++at;
    if (peek() == '0') {
      ++at;
    } else if (!digits()) {
      return std::nullopt;
    }
    if (peek() == '.') {
      type = kJsonNumber;
      ++at;
      if (!digits()) return std::nullopt;
    }
    if (peek() == 'e' || peek() == 'E') {
      type = kJsonNumber;
      ++at;
      if (peek() == '+' || peek() == '-') ++at;
      if (!digits()) return std::nullopt;
    }
    return type;
  }

  // A value that holds no others.
  std::optional<JsonTypes> scalar() {
    if (peek() == '"') return string() ? std::optional(kJsonString) : std::nullopt;
    for (const auto& [word, type] : {std::pair<std::string_view, JsonTypes>{"true", kJsonBoolean},
                                     {"false", kJsonBoolean},
                                     {"null", kJsonNull}}) {
      if (!text.substr(at).starts_with(word)) continue;
      at += word.size();
      return type;
    }
    return number();
  }

  bool key() {
    skip_space();
    if (peek() != '"' || !string()) return false;
    skip_space();
    if (peek() != ':') return false;
    ++at;
    return true;
  }

  // After a value: the ends of what contains it, then a comma. False: broken.
  bool after_value(std::string& open) {
    while (!open.empty()) {
      skip_space();
      if (peek() == ',') {
        ++at;
        return open.back() == '[' || key();
      }
      if (peek() != (open.back() == '[' ? ']' : '}')) return false;
      open.pop_back();
      ++at;
    }
    return true;
  }
};

}  // namespace

std::optional<JsonTypes> json_type(std::string_view text) {
  JsonCheck check{text};
  std::string open;  // brackets around `at`
  std::optional<JsonTypes> outer;
  do {
    check.skip_space();
    const char first = check.peek();
    if (first == '{' || first == '[') {
      if (!outer) outer = first == '{' ? kJsonObject : kJsonArray;
      if (open.size() == kMaxArgumentDepth) return std::nullopt;
      open += first;
      ++check.at;
      check.skip_space();
      if (check.peek() != (first == '{' ? '}' : ']')) {
        if (first == '{' && !check.key()) return std::nullopt;
        continue;
      }
      open.pop_back();
      ++check.at;
    } else {
      const std::optional<JsonTypes> type = check.scalar();
      if (!type) return std::nullopt;
      if (!outer) outer = type;
    }
    if (!check.after_value(open)) return std::nullopt;
  } while (!open.empty());
  check.skip_space();
  return check.at == text.size() ? outer : std::nullopt;
}

}  // namespace sluice
