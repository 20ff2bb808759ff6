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
  // What may stand before the calls: reasoning with its markers.
  std::optional<ReasoningForm> reasoning = {};
  std::string newlines = {};  // what may stand before them without reasoning; empty: nothing
};

// An answer with calls of `tools` (not empty). What the engine's grammars cannot
// keep is the engine's error; kUnsupported: a strict schema that a form with tags cannot keep, by
// keyword and JSON pointer.
Expected<GrammarSpec> tool_call_grammar(const CallForm& form,
                                        std::span<const CallableTool> tools,
                                        const CallRules& rules);

}  // namespace sluice
