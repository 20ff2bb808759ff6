// SPDX-License-Identifier: Apache-2.0
// What a request says about how its outputs are parsed; a value.
#pragma once

namespace sluice {

struct ParserOptions {
  // False: calls are not looked for (no tools, tool_choice "none"); text that spells one is
  // content.
  bool parse_calls = true;
  // False: text that spells a call inside reasoning is reasoning, for any family. Forced calls
  // follow it.
  bool calls_end_reasoning = true;
  // Special tokens that are not markers are left out of the text. False: they are text of the kind
  // around them. Markers never are, except in content that turned out not to be a call.
  bool skip_special_tokens = true;
};

}  // namespace sluice
