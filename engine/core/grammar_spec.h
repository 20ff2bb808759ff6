// SPDX-License-Identifier: Apache-2.0
// The constraint on an answer's text as requested: the unparsed text of a schema, an expression or
// a grammar. Front ends create it and bound its size; the engine compiles it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

enum class GrammarKind : uint8_t {
  kNone,           // any text
  kJsonSchema,     // `text`: a JSON schema
  kAnyObject,      // any JSON object; `text` is empty
  kRegex,          // `text`: an expression that matches all of the answer
  kEbnf,           // `text`: a grammar in EBNF with the rule root
  kLark,           // `text`: a grammar in Lark's notation with the rule start
  kStructuralTag,  // `text`: JSON in the grammar library's format
};

struct GrammarSpec {
  GrammarKind kind = GrammarKind::kNone;
  std::string text;
  bool allows_whitespace = true;  // between the tokens of JSON
  // For kJsonSchema: what cannot be enforced exactly is left out, and the grammar is wider than the
  // schema. For kStructuralTag: applies to its schemas that do not say so (structural_tag_gate.h).
  bool is_best_effort = false;
  // The answer is free up to and including these tokens, such as the end of its reasoning; empty:
  // bound from its first token on.
  std::vector<TokenId> begins_after;
  // Control tokens that the text names by id; no others occur where the answer is bound.
  std::vector<TokenId> control_tokens;
  std::string param;  // request field for errors: "response_format"

  [[nodiscard]] bool is_set() const { return kind != GrammarKind::kNone; }

  bool operator==(const GrammarSpec&) const = default;
};

}  // namespace sluice
