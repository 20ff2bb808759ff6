// SPDX-License-Identifier: Apache-2.0
// How the models of a family write calls, for those who make them write some: what this says,
// OutputParser reads. Values; any thread.
#pragma once

#include <string>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

// A piece of what stands around a call: a control token by its id, or text.
struct CallPiece {
  std::string text = {};
  TokenId token = kInvalidToken;  // in place of `text`

  bool operator==(const CallPiece&) const = default;
};

using CallPieces = std::vector<CallPiece>;

// How arguments are written that are no JSON object: `key_begin` key `key_end` value `value_end`,
// one behind the other. Strings are written as they are, other values as JSON.
struct TaggedForm {
  CallPieces key_begin = {};
  CallPieces key_end = {};       // behind which a string follows
  CallPieces json_key_end = {};  // behind which another value follows
  CallPieces value_end = {};
};

// How a family writes a call: `begin` name `behind_name` arguments `end`; several stand one behind
// the other with `separator` between, all of them inside of `open` and `close`.
struct CallForm {
  // The first piece of what stands before a call, or the beginning of its text: it announces calls
  // wherever it stands. kInvalidToken and no text: calls may begin without one.
  CallPiece marker = {};
  // Texts that begin a call as well, though the family's models are not taught to write them so.
  std::vector<std::string> other_markers = {};
  CallPieces open = {};
  CallPieces begin = {};        // `<tool_call>\n{"name": "`
  CallPieces behind_name = {};  // `", "arguments": `
  CallPieces end = {};          // `}\n</tool_call>`
  CallPieces separator = {};
  CallPieces close = {};
  bool is_tagged = false;  // false: arguments are a JSON object
  TaggedForm tagged = {};  // where they are not

  [[nodiscard]] bool has_marker() const {
    return marker.token != kInvalidToken || !marker.text.empty();
  }
};

// How reasoning stands before calls.
struct ReasoningForm {
  CallPieces begin = {};
  CallPieces end = {};
  TokenId end_token = kInvalidToken;  // that spells the end; kInvalidToken: several do
  std::string newlines = {};          // that models write behind the end
};

}  // namespace sluice
