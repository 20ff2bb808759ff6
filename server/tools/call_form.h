// SPDX-License-Identifier: Apache-2.0
// How the models of a family write calls, for grammars that force calls: OutputParser reads what
// this describes. Values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

// A piece of what surrounds a call: text, a control token by its id, or a value of the model's
// choice.
struct CallPiece {
  enum class Kind : uint8_t {
    kFixed,     // `text` or `token`
    kNumber,    // a number of the model's choice, in decimal digits
    kJsonType,  // in front of a value: the JSON schema name of its type
    kKey,       // after a value: its key
  };

  std::string text = {};
  TokenId token = kInvalidToken;  // in place of `text`
  Kind kind = Kind::kFixed;

  bool operator==(const CallPiece&) const = default;
};

using CallPieces = std::vector<CallPiece>;

// How a call's arguments are written.
enum class ArgumentStyle : uint8_t {
  kJson,    // a JSON object
  kTagged,  // a key and a value at a time, as TaggedForm says
  kPython,  // key=value, key=value; JSON but for True, False and None
  kGemma,   // key:value,key:value, with `quote` around strings and none around keys
};

// kTagged: `key_begin` key `key_end` value `value_end`, consecutive. Strings are written as they
// are, other values as JSON.
struct TaggedForm {
  CallPieces key_begin = {};
  CallPieces key_end = {};       // before a string
  CallPieces json_key_end = {};  // before another value
  CallPieces value_end = {};
};

// How a family writes a call: `begin` name `after_name` arguments `end`; several follow each other
// with `separator` between, all of them inside of `open` and `close`.
struct CallForm {
  // The first piece of what precedes a call, or the beginning of its text: it announces calls
  // wherever it appears. kInvalidToken and no text: calls may begin without one.
  CallPiece marker = {};
  // Other texts that begin a call, though the family's models are not trained to write them.
  std::vector<std::string> other_markers = {};
  CallPieces open = {};
  CallPieces begin = {};       // `<tool_call>\n{"name": "`
  CallPieces after_name = {};  // `", "arguments": `
  CallPieces end = {};         // `}\n</tool_call>`
  CallPieces separator = {};
  CallPieces close = {};
  ArgumentStyle style = ArgumentStyle::kJson;
  TaggedForm tagged = {};  // kTagged
  CallPieces quote = {};   // kGemma
  bool is_single = false;  // the model's turn ends with a call

  [[nodiscard]] bool has_marker() const {
    return marker.token != kInvalidToken || !marker.text.empty();
  }
};

// The form of reasoning before calls.
struct ReasoningForm {
  CallPieces begin = {};
  CallPieces end = {};
  TokenId end_token = kInvalidToken;  // that spells the end; kInvalidToken: several do
  std::string newlines = {};          // that models write after the end
  // Around an answer without calls, if models mark it as such.
  CallPieces answer_begin = {};
  CallPieces answer_end = {};
};

}  // namespace sluice
