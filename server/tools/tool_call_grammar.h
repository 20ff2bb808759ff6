// SPDX-License-Identifier: Apache-2.0
// The grammar of an answer whose calls of tools must have the form of a model family, and arguments
// that follow schemas: OutputParser reads what this has forced. Pure functions; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/core/grammar_spec.h"
#include "engine/core/status.h"
#include "server/tools/call_form.h"

namespace sluice {

struct CallableTool {
  std::string name;
  std::string parameters = {};  // a JSON schema; empty: any object
  // Arguments follow the schema exactly, or the schema is refused. False: keywords without an exact
  // form in the grammar are left out of the schema.
  bool is_strict = false;
};

// The part of an answer before the constrained part.
struct BeforeAnswer {
  std::optional<ReasoningForm> reasoning = {};  // with its markers, or nothing
  bool in_reasoning = false;  // the prompt has begun it: its text and end follow
  std::string newlines = {};  // allowed before an answer without reasoning
};

// The alternatives of an answer to calls.
enum class BesideCalls : uint8_t {
  kNothing,  // at least one call is required
  kText,     // any text with calls inside; needs a form with a marker
  kFormat,   // text of another grammar instead of calls
};

struct CallRules {
  BesideCalls beside = BesideCalls::kNothing;
  GrammarSpec format = {};     // kFormat: the other grammar; JSON with white space
  bool allows_several = true;  // false: exactly one call
  BeforeAnswer before = {};
};

// Returns the grammar of an answer with calls of `tools` (not empty). The engine reports what its
// grammars cannot keep; kUnsupported: a strict schema that a form with tags cannot keep, by keyword
// and JSON pointer.
Expected<GrammarSpec> tool_call_grammar(const CallForm& form,
                                        std::span<const CallableTool> tools,
                                        const CallRules& rules);

// Returns the grammar of an answer of JSON after `before`; `format`: JSON with white space.
GrammarSpec format_grammar(const GrammarSpec& format, const BeforeAnswer& before);

}  // namespace sluice
