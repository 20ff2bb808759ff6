// SPDX-License-Identifier: Apache-2.0
// What the command line takes, as text: for shell completion and for the manual page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/config.h"

namespace CLI {
class App;
}

namespace sluice {

struct OptionText {
  std::vector<std::string> flags;    // "--port", "--no-webui", "-h"; none: an argument
  std::string value;                 // "N", "FILE"; an argument's name; empty: takes no value
  std::vector<std::string> choices;  // the only values; none: any
  std::string help;
  const Knob* knob = nullptr;  // null: the command's own
};

struct CommandText {
  std::string name;  // as users write it: "serve", "bench serve"
  std::string help;
  std::string footer;  // without what all knobs have in common; may be empty
  std::vector<OptionText> options;
};

// Describes one parsed command; the knobs among its options are those that `knobs` names.
CommandText describe_command(const CLI::App& app,
                             std::string name,
                             const std::vector<const Knob*>& knobs);

// All commands in the order of --help. Made by command_line.cpp.
std::vector<CommandText> command_texts();

// The completion script for a shell: "bash", "zsh" or "fish".
std::string completion_script(const std::vector<CommandText>& commands, std::string_view shell);

// The page for man(1), in roff; every knob once, whichever commands take it.
std::string manual_page(const std::vector<CommandText>& commands);

}  // namespace sluice
