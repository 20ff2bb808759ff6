// SPDX-License-Identifier: Apache-2.0
// The served model's way to write reasoning and calls of tools: chosen once, at start, by
// --tool-call-parser and --reasoning-parser or from its chat template. Constant; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/tools/families.h"

namespace sluice {

struct Config;

struct OutputFamilies {
  const CallFamily* calls = nullptr;           // null: none
  const ReasoningFamily* reasoning = nullptr;  // null: none
  std::shared_ptr<const OutputFormat> format;  // null: neither, all text is content
  // The template describes no tools: the instructions do, in the form of `calls`.
  bool describes_tools = false;
  bool sorts_tools = false;                    // the template gets them with ascending keys
  bool reads_calls = true;                     // false: --tool-call-parser none, calls stay text
};

// `template_source`: the chat template in use; empty: none. `prints_tools`: it shows tools to the
// model. kInvalidArgument: a flag names an unknown family.
Expected<OutputFamilies> choose_families(const Config& config,
                                         std::string_view template_source,
                                         bool prints_tools,
                                         const Tokenizer& tokenizer);

}  // namespace sluice
