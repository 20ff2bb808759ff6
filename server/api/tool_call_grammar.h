// SPDX-License-Identifier: Apache-2.0
// The grammar of an answer that must be calls of tools, in the way that a family of models writes
// them: whoever reads the calls gets what this has forced.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/core/grammar_spec.h"
#include "engine/core/types.h"

namespace sluice {

// A piece of what stands around a call: a control token by its id, or text.
struct CallPiece {
  std::string text = {};
  TokenId token = kInvalidToken;  // in place of `text`
};

// How a family writes a call: `begin` name `behind_name` arguments `end`; several stand one behind
// the other with `separator` between, all of them inside of `open` and `close`.
struct CallForm {
  std::vector<CallPiece> open;
  std::vector<CallPiece> begin;        // `<tool_call>\n{"name": "`
  std::vector<CallPiece> behind_name;  // `", "arguments": `
  std::vector<CallPiece> end;          // `}\n</tool_call>`
  std::vector<CallPiece> separator;
  std::vector<CallPiece> close;
  // Of the arguments: "json", or a tagged form that the grammar library knows, such as "qwen_xml".
  std::string style = "json";
};

struct CallableTool {
  std::string name;
  std::string parameters;  // a JSON schema; empty: any object
};

// An answer of one call at least, of one of `tools` (not empty), or of exactly one without
// `allows_several`. The arguments follow the tool's schema; `is_best_effort`: as in GrammarSpec.
GrammarSpec tool_call_grammar(const CallForm& form,
                              std::span<const CallableTool> tools,
                              bool allows_several,
                              bool is_best_effort);

}  // namespace sluice
