// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/core/knob_text.h"
#include "engine/core/version.h"
#include "server/cli/command_text.h"

namespace sluice {
namespace {

// Text that roff leaves as it is: no line begins with a request, and dashes can be copied.
std::string plain(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const bool begins_line = result.empty() || result.back() == '\n';
    if (begins_line && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  return result;
}

std::string bold(const std::string& text) { return "\\fB" + plain(text) + "\\fR"; }

std::string italic(const std::string& text) { return "\\fI" + plain(text) + "\\fR"; }

std::string entry(const std::string& head, const std::string& body) {
  return ".TP\n" + head + "\n" + body + "\n";
}

std::string head_of(const OptionText& option) {
  std::string head;
  for (const std::string& flag : option.flags) head += (head.empty() ? "" : ", ") + bold(flag);
  if (option.value.empty()) return head;
  return head + (head.empty() ? "" : " ") + italic(option.value);
}

std::string help_of(const OptionText& option) {
  std::string help = plain(option.help);
  if (option.choices.empty()) return help;
  help += help.ends_with('.') ? " One of" : ". One of";
  for (const std::string& choice : option.choices) {
    help += (&choice == option.choices.data() ? " " : ", ") + plain(choice);
  }
  return help + ".";
}

// Which knobs a command takes: "all", the groups, or none.
std::string knobs_of(const CommandText& command) {
  std::vector<std::string> groups;
  for (const OptionText& option : command.options) {
    if (option.knob == nullptr) continue;
    const std::string group = option.knob->group;
    if (std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
  }
  if (groups.empty()) return "";
  std::string text = "Takes knobs of these groups:";
  for (const std::string& group : groups) text += (&group == groups.data() ? " " : ", ") + group;
  return text + ".";
}

const std::vector<std::string> kHelpFlags = {"--help", "-h"};

std::string command_section(const CommandText& command) {
  std::string arguments;
  std::string own;
  for (const OptionText& option : command.options) {
    if (option.flags.empty()) arguments += " " + italic(option.value);
    if (option.knob != nullptr || option.flags == kHelpFlags) continue;
    own += entry(head_of(option), help_of(option));
  }
  const std::string knobs = knobs_of(command);
  std::string text = ".SS sluice " + plain(command.name) + "\n" + bold("sluice " + command.name) +
                     arguments + " [" + italic("options") + "]\n.PP\n" + plain(command.help) +
                     ".\n" + (knobs.empty() ? "" : knobs + "\n") + own;
  if (!command.footer.empty()) text += ".PP\n" + plain(command.footer) + "\n";
  return text;
}

std::string knob_entry(const Knob& knob) {
  const std::string name = knob.name;
  const std::string value = knob.get(Config());
  const std::string unit = knob.unit;
  std::string head = bold("--" + name);
  std::string body = plain(knob.help);
  if (knob.kind == KnobKind::kBoolean) {
    head += ", " + bold("--no-" + name);
  } else {
    head += " " + italic(unit.empty() ? "value" : unit);
    body += "\nValues: " + plain(values_text(knob)) + ".";
  }
  if (!value.empty()) body += "\nDefault: " + plain(value) + ".";
  return entry(head, body);
}

std::string knob_sections() {
  std::string text;
  std::string group;
  for (const Knob& knob : config_knobs()) {
    if (group != knob.group) {
      group = knob.group;
      text += ".SS Group " + group + "\n";
    }
    text += knob_entry(knob);
  }
  return text;
}

constexpr const char* kBegin =
    ".SH NAME\n"
    "sluice \\- serve language models on CPUs and NVIDIA GPUs\n"
    ".SH SYNOPSIS\n"
    ".B sluice\n"
    ".I command\n"
    "[\\fIoptions\\fR]\n"
    ".PP\n"
    ".B sluice serve\n"
    ".I MODEL\n"
    "[\\fB\\-\\-host\\fR \\fIaddress\\fR] [\\fB\\-\\-port\\fR \\fIN\\fR] [\\fIoptions\\fR]\n"
    ".SH DESCRIPTION\n"
    "Serves a GGUF file or a Hugging Face directory behind the APIs of OpenAI and Anthropic and\n"
    "gRPC. The same request gets the same bits, whatever else runs. What one command takes:\n"
    ".B sluice\n"
    ".I command\n"
    ".BR \\-\\-help .\n";

constexpr const char* kEnd =
    ".SH ENVIRONMENT\n"
    "Every knob has a variable: \\fB\\-\\-max\\-num\\-seqs\\fR is SLUICE_MAX_NUM_SEQS.\n"
    "Flags win over the environment, that over YAML.\n"
    ".SH FILES\n"
    ".TP\n"
    "/etc/sluice/sluice.yaml\n"
    "What the systemd unit\n"
    ".B sluice.service\n"
    "serves: knobs without dashes in front, as YAML.\n"
    ".SH EXIT STATUS\n"
    "0 done, 1 failed (one line on standard error says why), 2 wrong use.\n"
    ".SH EXAMPLES\n"
    ".nf\n"
    "sluice serve model.gguf \\-\\-api\\-key KEY\n"
    "sluice chat org/model:Q4_K_M\n"
    "sluice config \\-\\-max\\-num\\-seqs 8\n"
    ".fi\n";

}  // namespace

std::string manual_page(const std::vector<CommandText>& commands) {
  std::string text =
      ".TH SLUICE 1 \"\" \"sluice " + std::string(version()) + "\"\n" + kBegin + ".SH COMMANDS\n";
  for (const CommandText& command : commands) text += command_section(command);
  text +=
      ".SH KNOBS\nEach is a flag, a key of the YAML file that \\fB\\-\\-config\\fR names, and an\n"
      "environment variable. Integers take k, m, g (powers of 1000) and K, M, G (of 1024).\n" +
      knob_sections();
  return text + kEnd;
}

}  // namespace sluice
