// SPDX-License-Identifier: Apache-2.0
// Structural tags, the grammar library's JSON for texts with constrained parts: sequences of
// literal pieces, free text and JSON. One instance for a GrammarSpec, one thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/grammar_spec.h"
#include "engine/core/status.h"
#include "server/tools/call_form.h"

namespace sluice {

class TagWriter {
 public:
  using Json = nlohmann::ordered_json;

  // `spec` collects the control tokens that are written; it outlives the instance.
  explicit TagWriter(GrammarSpec& spec) : spec_(spec) {}

  // Appends to `elements`, an array, as all functions here do; adjacent literal texts become one.
  void add_text(std::string_view text, Json& elements) const;
  // No piece may be kJsonType.
  void add(const CallPieces& pieces, Json& elements);
  // Appends any text up to and including `end` (not empty), which occurs only there.
  void add_free_text(const CallPieces& end, Json& elements);

  // Appends any text without `excluded`; `behind` follows each `marker` in it. The text ends after
  // the first marker unless it `repeats`.
  void add_text_with(const CallPiece& marker,
                     std::vector<std::string> excluded,
                     Json behind,
                     bool repeats,
                     Json& elements);
  // Appends the constraint of `format` (if JSON, with white space).
  void add_format(const GrammarSpec& format, Json& elements) const;

  struct JsonRules {
    bool is_exact = false;  // see CallableTool::is_strict
    std::string owner;      // errors name it: "tool 'f'"
    // Text that the JSON must not hold, even in its strings; empty: none.
    std::string excluded = {};
  };

  // Appends JSON of the schema.
  void add_json(Json schema, const JsonRules& rules, Json& elements) const;
  // Appends the elements of `part`, or nothing.
  void add_optional(Json part, Json& elements) const;

  // Spends the budget for output that may be far larger than its schema: `bytes`, or copies of a
  // part. kInvalidArgument: too much for one grammar.
  Expected<void> spend(const Json& part);
  Expected<void> spend(int64_t bytes);

  // Returns one element for an array of them; an empty array is an empty text.
  static Json sequence(Json elements);
  // Returns a choice between the elements of an array (not empty).
  static Json choice(Json elements);

 private:
  void note(TokenId token);

  GrammarSpec& spec_;
  int64_t room_ = int64_t{32} << 20;  // bytes that are left
};

}  // namespace sluice
