// SPDX-License-Identifier: Apache-2.0
// Decides whether a marker inside a value of a call ends it, or is text of the value that spells
// one: it ends the value if something follows that the family's grammar allows there. A value; used
// by MarkerScanner, which holds the symbols from the marker on until the decision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/tools/output_format.h"

namespace sluice {

// The position in an output, as readers of calls report it.
enum class ValuePlace : uint8_t {
  kNone,     // not in a value that could hold a marker
  kTagged,   // text up to kValueEnd or kRawEnd
  kElement,  // text up to kValueEnd with the element's name
  kQuoted,   // text up to kQuote
  kTurnTag,  // text up to <|close|>argument
  kLiteral,  // a string of JSON or Python, which its own quotes end
};

struct ValueState {
  ValuePlace place = ValuePlace::kNone;
  std::string_view tag = {};  // kElement: the element's name
};

class ValueEnd {
 public:
  enum class Verdict : uint8_t { kEnd, kText, kUndecided };

  // `role`: the marker's; `num_symbols`: its length.
  ValueEnd(const ValueState& value, Role role, size_t num_symbols);

  // `held`: the marker and all input after it so far, extended at each call; `is_whole`: the input
  // has ended.
  Verdict read(const OutputFormat& format, std::u16string_view held, bool is_whole);

 private:
  enum class Stage : uint8_t {
    kTag,  // the name in an element's end tag, up to kKeyEnd, or in a turn's, up to kHeaderEnd
    kParameters,  // after a value: the next one, or the call's end
    kArguments,   // the same in turn tags
    kTurn,        // in a tag after an argument
    kSection,     // after a call
    kAfter,       // after all calls
    kContent,     // text after all calls: content, unless a value ends in it
    kAgain,       // after such an end
    kQuote,       // after a quote
    kComma,       // after a quote and a comma
    kKey,         // in what follows the comma
    kBracket,     // after a quote and a bracket
    kNever,       // the marker does not end a value
  };

  [[nodiscard]] Roles looked_for() const;
  Verdict step(const OutputFormat& format, char c);
  Verdict step(const OutputFormat& format, Role role);
  Verdict quoted(char c);
  Verdict content(Role role);
  Verdict turn_tag();

  Stage stage_ = Stage::kNever;
  bool is_strict_ = false;   // text after all calls cannot be content
  bool is_closing_ = true;   // kTurn: of an end tag
  bool has_closed_ = false;  // kTurn: the argument's call has ended
  size_t at_;
  size_t content_begin_ = 0;
  std::string tag_;
  std::string name_;
};

}  // namespace sluice
