// SPDX-License-Identifier: Apache-2.0
#include "server/tools/literal_value.h"

#include <algorithm>

#include "engine/core/hex.h"
#include "engine/tokenizer/text/utf8.h"
#include "server/tools/json_text.h"
#include "server/tools/parse_limits.h"

namespace sluice {
namespace {

bool is_octal_digit(char c) { return c >= '0' && c <= '7'; }

// JSON of a word or number, in Python's spellings, too; empty: it has none.
std::string json_of_atom(std::string_view atom) {
  if (atom == "True") return "true";
  if (atom == "False") return "false";
  if (atom == "None") return "null";
  if (json_type(atom)) return std::string(atom);
  std::string number;
  for (const char c : atom) {
    if (c != '_') number += c;
  }
  if (number.starts_with('+')) number.erase(0, 1);
  const size_t digits = number.starts_with('-') ? 1 : 0;
  if (number.compare(digits, 1, ".") == 0) number.insert(digits, "0");
  if (number.ends_with('.')) number += '0';
  return json_type(number) ? number : std::string();
}

}  // namespace

void LiteralValue::give_comma(const ArgumentWriter& arguments, PieceWriter& out) {
  if (needs_comma_) arguments.raw(", ", out);
  needs_comma_ = false;
}

LiteralValue::Place LiteralValue::end_item() {
  if (open_.empty()) {
    state_ = State::kEnded;
    return Place::kLast;
  }
  state_ = is_key_ ? State::kColon : State::kAfter;
  is_key_ = false;
  return Place::kInside;
}

void LiteralValue::give_atom(const ArgumentWriter& arguments, PieceWriter& out) {
  const std::string json = json_of_atom(atom_);
  if (!json.empty() && !is_key_) {
    arguments.raw(json, out);
  } else {
    arguments.raw("\"", out);
    arguments.escaped(atom_, out);
    arguments.raw("\"", out);
  }
  atom_.clear();
}

LiteralValue::Place LiteralValue::begin_string(char quote,
                                               const ArgumentWriter& arguments,
                                               PieceWriter& out) {
  give_comma(arguments, out);
  arguments.raw("\"", out);
  state_ = State::kString;
  quote_ = quote;
  num_quotes_ = dialect_ == Dialect::kPython ? 1 : 0;  // just after the opening one
  return Place::kInside;
}

LiteralValue::Place LiteralValue::begin_item(char c,
                                             const ArgumentWriter& arguments,
                                             PieceWriter& out) {
  if (c == '"' || c == '\'') {
    if (dialect_ == Dialect::kPython) return begin_string(c, arguments, out);
    return Place::kBroken;
  }
  const bool is_list = c == '[' || (c == '(' && dialect_ == Dialect::kPython);
  if (is_list || c == '{') {
    if (is_key_ || open_.size() == kMaxArgumentDepth) return Place::kBroken;
    give_comma(arguments, out);
    open_ += is_list ? '[' : '{';
    arguments.raw(is_list ? "[" : "{", out);
    state_ = State::kFirst;
    return Place::kInside;
  }
  if (std::string_view(")]},:=").find(c) != std::string_view::npos) return Place::kBroken;
  give_comma(arguments, out);
  state_ = State::kAtom;
  atom_ = c;
  return Place::kInside;
}

LiteralValue::Place LiteralValue::close_bracket(const ArgumentWriter& arguments, PieceWriter& out) {
  arguments.raw(in_map() ? "}" : "]", out);
  open_.pop_back();
  needs_comma_ = false;
  is_key_ = false;
  return end_item();
}

// After a value inside brackets, or after their opening one.
LiteralValue::Place LiteralValue::after(char c, const ArgumentWriter& arguments, PieceWriter& out) {
  if (in_map() ? c == '}' : c == ']' || c == ')') return close_bracket(arguments, out);
  if (c != ',') return Place::kBroken;
  needs_comma_ = true;
  state_ = in_map() ? State::kKey : State::kFirst;
  return Place::kInside;
}

void LiteralValue::give_lone_half(const ArgumentWriter& arguments, PieceWriter& out) {
  if (high_ != 0) arguments.escaped(kReplacementCharacter, out);
  high_ = 0;
}

void LiteralValue::give_code(const ArgumentWriter& arguments, PieceWriter& out) {
  std::string bytes;
  const bool is_low = code_ >= 0xDC00 && code_ < 0xE000;
  if (is_low && high_ != 0) {
    append_utf8(0x10000 + ((high_ - 0xD800) << 10) + (code_ - 0xDC00), bytes);
    high_ = 0;
  } else {
    give_lone_half(arguments, out);
    if (code_ >= 0xD800 && code_ < 0xDC00) {
      high_ = code_;
    } else if (is_low || code_ > 0x10FFFF) {
      bytes = kReplacementCharacter;
    } else {
      append_utf8(code_, bytes);
    }
  }
  arguments.escaped(bytes, out);
}

// A byte after a backslash, or a digit of the escape that it began.
LiteralValue::Place LiteralValue::escape(char c,
                                         const ArgumentWriter& arguments,
                                         PieceWriter& out) {
  if (num_digits_ > 0) {
    const int digit = hex_digit(c);
    if (digit < 0 || (is_octal_ && !is_octal_digit(c))) {
      num_digits_ = 0;
      give_code(arguments, out);
      return string(c, arguments, out);
    }
    code_ = code_ * (is_octal_ ? 8 : 16) + static_cast<uint32_t>(digit);
    if (--num_digits_ == 0) give_code(arguments, out);
    return Place::kInside;
  }
  is_escaped_ = false;
  code_ = 0;
  is_octal_ = is_octal_digit(c);
  if (c == 'x' || c == 'u' || c == 'U') {
    num_digits_ = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    return Place::kInside;
  }
  if (is_octal_) {
    num_digits_ = 2;
    code_ = static_cast<uint32_t>(c - '0');
    return Place::kInside;
  }
  give_lone_half(arguments, out);
  constexpr std::string_view kLetters = "abfnrtv\\'\"";
  constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
  const size_t letter = kLetters.find(c);
  if (letter != std::string_view::npos) {
    arguments.escaped(kMeanings.substr(letter, 1), out);
  } else if (c != '\n') {  // a continued line; else not an escape of Python
    arguments.escaped("\\", out);
    arguments.escaped({&c, 1}, out);
  }
  return Place::kInside;
}

LiteralValue::Place LiteralValue::string(char c,
                                         const ArgumentWriter& arguments,
                                         PieceWriter& out) {
  if (dialect_ == Dialect::kGemma) {
    arguments.escaped({&c, 1}, out);
    return Place::kInside;
  }
  const bool is_triple = state_ == State::kTripleString;
  if (is_escaped_ || num_digits_ > 0) return escape(c, arguments, out);
  if (is_triple && c == quote_) {
    if (++num_quotes_ < 3) return Place::kInside;
  } else if (is_triple && num_quotes_ > 0) {
    arguments.escaped(std::string(num_quotes_, quote_), out);
    num_quotes_ = 0;
  } else if (c == quote_ && num_quotes_ > 0) {
    state_ = State::kAfterQuote;
    return Place::kInside;
  }
  if (!is_triple) num_quotes_ = 0;
  if (c == '\\') {
    is_escaped_ = true;
    return Place::kInside;
  }
  give_lone_half(arguments, out);
  if (c == quote_ && (!is_triple || num_quotes_ == 3)) {
    arguments.raw("\"", out);
    return end_item();
  }
  arguments.escaped({&c, 1}, out);
  return Place::kInside;
}

LiteralValue::Place LiteralValue::atom(char c, const ArgumentWriter& arguments, PieceWriter& out) {
  const bool ends = std::string_view(",)]}").find(c) != std::string_view::npos ||
                    (c == ':' && is_key_) || is_json_space(c);
  if (!ends) {
    if (std::string_view("([{\"'=").find(c) != std::string_view::npos ||
        atom_.size() > kMaxBufferedBytes) {
      return Place::kBroken;
    }
    atom_ += c;
    return Place::kInside;
  }
  give_atom(arguments, out);
  if (end_item() == Place::kLast) return Place::kAfter;
  return feed(c, arguments, out);
}

LiteralValue::Place LiteralValue::bare_key(char c,
                                           const ArgumentWriter& arguments,
                                           PieceWriter& out) {
  if (c != ':') {
    if (atom_.size() > kMaxBufferedBytes) return Place::kBroken;
    atom_ += c;
    return Place::kInside;
  }
  give_comma(arguments, out);
  is_key_ = true;
  give_atom(arguments, out);
  is_key_ = false;
  arguments.raw(": ", out);
  state_ = State::kItem;
  return Place::kInside;
}

LiteralValue::Place LiteralValue::feed(char c, const ArgumentWriter& arguments, PieceWriter& out) {
  switch (state_) {
    case State::kString:
    case State::kTripleString:
      return string(c, arguments, out);
    case State::kAtom:
      return atom(c, arguments, out);
    case State::kBareKey:
      return bare_key(c, arguments, out);
    case State::kAfterQuote:
      if (c == quote_) {
        state_ = State::kTripleString;
        num_quotes_ = 0;
        return Place::kInside;
      }
      arguments.raw("\"", out);
      return end_item() == Place::kLast ? Place::kAfter : feed(c, arguments, out);
    case State::kEnded:
      return Place::kAfter;
    default:
      break;
  }
  if (is_json_space(c)) return Place::kInside;
  switch (state_) {
    case State::kColon:
      if (c != ':') return Place::kBroken;
      arguments.raw(": ", out);
      state_ = State::kItem;
      return Place::kInside;
    case State::kAfter:
      return after(c, arguments, out);
    case State::kFirst:
    case State::kKey:
      if (in_map() ? c == '}' : c == ']' || c == ')') return close_bracket(arguments, out);
      if (!in_map()) return begin_item(c, arguments, out);
      if (dialect_ == Dialect::kGemma) {
        state_ = State::kBareKey;
        return bare_key(c, arguments, out);
      }
      is_key_ = true;
      return begin_item(c, arguments, out);
    default:
      return begin_item(c, arguments, out);
  }
}

LiteralValue::Place LiteralValue::quote(const ArgumentWriter& arguments, PieceWriter& out) {
  if (dialect_ != Dialect::kGemma) return Place::kBroken;
  if (state_ == State::kString) {
    arguments.raw("\"", out);
    return end_item();
  }
  if (state_ == State::kFirst && in_map()) is_key_ = true;
  if (state_ == State::kKey) is_key_ = true;
  if (state_ != State::kItem && state_ != State::kFirst && state_ != State::kKey) {
    return Place::kBroken;
  }
  return begin_string('"', arguments, out);
}

void LiteralValue::close(const ArgumentWriter& arguments, PieceWriter& out) {
  if (state_ == State::kEnded) return;
  if (in_string() || state_ == State::kAfterQuote) {
    if (num_digits_ > 0) give_code(arguments, out);
    give_lone_half(arguments, out);
    arguments.raw("\"", out);
    if (is_key_) arguments.raw(": null", out);
  } else if (state_ == State::kAtom) {
    give_atom(arguments, out);
    if (is_key_) arguments.raw(": null", out);
  } else if (state_ == State::kColon) {
    arguments.raw(": null", out);
  } else if (state_ == State::kItem) {
    arguments.raw("null", out);
  }
  for (; !open_.empty(); open_.pop_back()) arguments.raw(in_map() ? "}" : "]", out);
  state_ = State::kEnded;
}

}  // namespace sluice
