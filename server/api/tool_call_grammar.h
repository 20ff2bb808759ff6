// SPDX-License-Identifier: Apache-2.0
// The grammar of an answer that must be calls of tools, in the way that a family of models writes
// them: OutputParser gets what this has forced. Pure functions; any thread.
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

struct CallRules {
  bool allows_several = true;  // false: exactly one call
  // What may stand before the calls: reasoning with its markers.
  std::optional<ReasoningForm> reasoning = {};
  std::string newlines = {};  // what may stand before them without reasoning; empty: nothing
};

// An answer of one call at least, of one of `tools` (not empty). What the engine's grammars cannot
// keep is the engine's error; kUnsupported: a strict schema that a form with tags cannot keep, by
// keyword and JSON pointer.
Expected<GrammarSpec> tool_call_grammar(const CallForm& form,
                                        std::span<const CallableTool> tools,
                                        const CallRules& rules);

}  // namespace sluice
