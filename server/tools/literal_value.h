// SPDX-License-Identifier: Apache-2.0
// One value of a call that is not written in JSON, rewritten as JSON while it is read: a Python
// literal, or Gemma's, whose keys have no quotes and whose strings are between markers. A value.
#pragma once

#include <cstdint>
#include <string>

#include "server/tools/argument_writer.h"

namespace sluice {

class LiteralValue {
 public:
  enum class Dialect : uint8_t { kPython, kGemma };
  enum class Place : uint8_t {
    kInside,
    kLast,    // the byte, or marker, is the value's last
    kAfter,   // the value had ended before this byte
    kBroken,  // the byte cannot be in a value
  };

  explicit LiteralValue(Dialect dialect) : dialect_(dialect) {}

  // Writes to a value that `arguments` has begun. White space before a value is passed over.
  Place feed(char c, const ArgumentWriter& arguments, PieceWriter& out);
  // Gemma's marker around strings.
  Place quote(const ArgumentWriter& arguments, PieceWriter& out);
  // Completes what is unfinished, so that the output is JSON.
  void close(const ArgumentWriter& arguments, PieceWriter& out);

  [[nodiscard]] bool in_string() const {
    return state_ == State::kString || state_ == State::kTripleString;
  }

 private:
  enum class State : uint8_t {
    kItem,     // before a value
    kFirst,    // after an opening bracket: a value, a key or the closing bracket
    kKey,      // before a key, after a comma
    kBareKey,  // Gemma: in a key
    kColon,
    kAtom,  // a number or word
    kString,
    kAfterQuote,  // Python: after two quotes; a third one begins a triple-quoted string
    kTripleString,
    kAfter,  // inside brackets, after a value
    kEnded,
  };

  Place begin_item(char c, const ArgumentWriter& arguments, PieceWriter& out);
  Place begin_string(char quote, const ArgumentWriter& arguments, PieceWriter& out);
  Place string(char c, const ArgumentWriter& arguments, PieceWriter& out);
  Place escape(char c, const ArgumentWriter& arguments, PieceWriter& out);
  Place atom(char c, const ArgumentWriter& arguments, PieceWriter& out);
  Place bare_key(char c, const ArgumentWriter& arguments, PieceWriter& out);
  Place after(char c, const ArgumentWriter& arguments, PieceWriter& out);
  Place close_bracket(const ArgumentWriter& arguments, PieceWriter& out);
  Place end_item();
  void give_comma(const ArgumentWriter& arguments, PieceWriter& out);
  void give_atom(const ArgumentWriter& arguments, PieceWriter& out);
  void give_code(const ArgumentWriter& arguments, PieceWriter& out);
  void give_lone_half(const ArgumentWriter& arguments, PieceWriter& out);

  [[nodiscard]] bool in_map() const { return !open_.empty() && open_.back() == '{'; }

  Dialect dialect_;
  State state_ = State::kItem;
  bool is_key_ = false;  // the string or atom is a key
  bool needs_comma_ = false;
  bool is_escaped_ = false;
  char quote_ = '"';
  uint8_t num_quotes_ = 0;  // of a triple string's end so far
  uint8_t num_digits_ = 0;  // of an escape, not read yet
  bool is_octal_ = false;
  uint32_t code_ = 0;
  uint32_t high_ = 0;  // first half of a surrogate pair
  std::string open_;   // '[' and '{' around the place
  std::string atom_;
};

}  // namespace sluice
