// SPDX-License-Identifier: Apache-2.0
// Structural tags, the grammar library's JSON for texts of which parts are bound: sequences of
// literal pieces, free text and JSON. One instance for a GrammarSpec, one thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/grammar_spec.h"
#include "server/parse/call_form.h"

namespace sluice {

class TagWriter {
 public:
  using Json = nlohmann::ordered_json;

  // `spec` gets the control tokens that are written; outlives the instance.
  explicit TagWriter(GrammarSpec& spec) : spec_(spec) {}

  // The functions append to `elements`, an array; literal texts that follow each other become one.
  void add_text(std::string_view text, Json& elements) const;
  // None of them is kJsonType.
  void add(const CallPieces& pieces, Json& elements);
  // Any text up to and with `end` (not empty), which it does not hold before.
  void add_free_text(const CallPieces& end, Json& elements);

  // Any text without `excluded`; behind each `marker` in it stands `behind`, behind the first one
  // the text ends unless it `repeats`.
  void add_text_with(const CallPiece& marker,
                     std::vector<std::string> excluded,
                     Json behind,
                     bool repeats,
                     Json& elements);
  // What `format` (of JSON with white space) says.
  void add_format(const GrammarSpec& format, Json& elements) const;

  struct JsonRules {
    bool is_exact = false;  // as CallableTool::is_strict
    std::string owner;      // errors name it: "tool 'f'"
    // Text that the JSON does not hold, not even in its strings; empty: none.
    std::string excluded = {};
  };

  // JSON of the schema.
  void add_json(Json schema, const JsonRules& rules, Json& elements) const;
  // The elements of `part`, or nothing.
  void add_optional(Json part, Json& elements) const;

  // One element of an array of them; an empty one is an empty text.
  static Json sequence(Json elements);
  // One of the elements of an array (not empty).
  static Json choice(Json elements);

 private:
  void note(TokenId token);

  GrammarSpec& spec_;
};

}  // namespace sluice
