// SPDX-License-Identifier: Apache-2.0
#include "server/cli/command_text.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <utility>

namespace sluice {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// Choices that a check of the parsing library appends to the type: "NAME:{openai,vllm}".
std::vector<std::string> checked_choices(const std::string& type) {
  const size_t begin = type.find(":{");
  if (begin == std::string::npos || !type.ends_with('}')) return {};
  return split(type.substr(begin + 2, type.size() - begin - 3), ',');
}

const Knob* knob_of(const CLI::Option& option, const std::vector<const Knob*>& knobs) {
  for (const Knob* knob : knobs) {
    if (option.check_lname(knob->name)) return knob;
  }
  return nullptr;
}

OptionText describe_option(const CLI::Option& option, const std::vector<const Knob*>& knobs) {
  OptionText text;
  for (const std::string& name : option.get_lnames()) text.flags.push_back("--" + name);
  for (const std::string& name : option.get_snames()) text.flags.push_back("-" + name);
  text.help = option.get_description();
  text.knob = knob_of(option, knobs);
  const std::string type = option.get_type_name();
  if (text.flags.empty()) {
    text.value = option.get_name(/*positional=*/true);
  } else if (option.get_items_expected_max() > 0) {
    text.value = type.substr(0, type.find(':'));
  }
  text.choices = text.knob != nullptr && text.knob->kind == KnobKind::kChoice
                     ? split(text.knob->choices, '|')
                     : checked_choices(type);
  return text;
}

}  // namespace

CommandText describe_command(const CLI::App& app,
                             std::string name,
                             const std::vector<const Knob*>& knobs) {
  CommandText text{.name = std::move(name),
                   .help = app.get_description(),
                   .footer = knobs.empty() ? app.get_footer() : std::string(),
                   .options = {}};
  for (const CLI::Option* option : app.get_options()) {
    text.options.push_back(describe_option(*option, knobs));
  }
  return text;
}

}  // namespace sluice
