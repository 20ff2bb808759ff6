// SPDX-License-Identifier: Apache-2.0
// The grammar of an answer whose calls of tools must be as a family of models writes them, and
// their arguments as schemas say: OutputParser gets what this has forced. Pure functions; any
// thread.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/core/grammar_spec.h"
#include "engine/core/status.h"
#include "server/parse/call_form.h"

namespace sluice {

struct CallableTool {
  std::string name;
  std::string parameters = {};  // a JSON schema; empty: any object
  // Arguments follow the schema exactly, or the schema is refused. False: what has no exact form in
  // the grammar is left out of the schema.
  bool is_strict = false;
};

// What stands before the part of an answer that is bound.
struct BeforeAnswer {
  std::optional<ReasoningForm> reasoning = {};  // with its markers, or nothing
  bool in_reasoning = false;  // the prompt has begun it: its text and its end stand there
  std::string newlines = {};  // what may stand there without reasoning; empty: nothing
};

// What else than calls the answer may be.
enum class BesideCalls : uint8_t {
  kNothing,  // it is one call at least
  kText,     // any text, with calls inside of it; needs a form with a marker
  kFormat,   // text of another grammar in their place
};

struct CallRules {
  BesideCalls beside = BesideCalls::kNothing;
  GrammarSpec format = {};     // kFormat: the other grammar, of JSON with white space
  bool allows_several = true;  // false: exactly one call
  BeforeAnswer before = {};
};

// An answer with calls of `tools` (not empty). What the engine's grammars cannot
// keep is the engine's error; kUnsupported: a strict schema that a form with tags cannot keep, by
// keyword and JSON pointer.
Expected<GrammarSpec> tool_call_grammar(const CallForm& form,
                                        std::span<const CallableTool> tools,
                                        const CallRules& rules);

// An answer of JSON behind what stands before it; `format`: of JSON with white space.
GrammarSpec format_grammar(const GrammarSpec& format, const BeforeAnswer& before);

}  // namespace sluice
