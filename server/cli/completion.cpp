// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "server/cli/command_text.h"
#include "server/cli/joined.h"

namespace sluice {
namespace {

using Commands = std::vector<CommandText>;

constexpr std::string_view kBench = "bench ";

// `text` with a backslash before each of `special`.
std::string escaped(const std::string& text, std::string_view special) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

// In single quotes, for bash and zsh.
std::string single_quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// The first words, and the second ones of `bench serve` and its kind.
std::vector<const CommandText*> of_first_word(const Commands& commands) {
  std::vector<const CommandText*> found;
  for (const CommandText& command : commands) {
    if (command.name.find(' ') == std::string::npos) found.push_back(&command);
  }
  return found;
}

std::vector<const CommandText*> of_bench(const Commands& commands) {
  std::vector<const CommandText*> found;
  for (const CommandText& command : commands) {
    if (command.name.starts_with(kBench)) found.push_back(&command);
  }
  return found;
}

std::string last_word(const CommandText& command) {
  return command.name.substr(command.name.rfind(' ') + 1);
}

std::string words_of(const std::vector<const CommandText*>& commands) {
  std::vector<std::string> words;
  for (const CommandText* command : commands) words.push_back(last_word(*command));
  return joined(words, ' ');
}

std::vector<std::string> flags_of(const CommandText& command) {
  std::vector<std::string> flags;
  for (const OptionText& option : command.options) {
    flags.insert(flags.end(), option.flags.begin(), option.flags.end());
  }
  return flags;
}

// Choices of an argument, such as `completion`'s shell.
std::vector<std::string> argument_choices(const CommandText& command) {
  for (const OptionText& option : command.options) {
    if (option.flags.empty() && !option.choices.empty()) return option.choices;
  }
  return {};
}

// What is to be said where a value follows: its choices, or nothing, for which bash takes files.
std::string bash_command(const CommandText& command) {
  std::string text = "    " + single_quoted(command.name) + ")\n      case \"$previous\" in\n";
  std::string others;
  for (const OptionText& option : command.options) {
    if (option.value.empty() || option.flags.empty()) continue;
    std::string flags;
    for (const std::string& flag : option.flags) flags += (flags.empty() ? "" : "|") + flag;
    if (option.choices.empty()) {
      others += (others.empty() ? "" : "|") + flags;
    } else {
      text += "        " + flags + ") words='" + joined(option.choices, ' ') + "' ;;\n";
    }
  }
  if (!others.empty()) text += "        " + others + ") return ;;\n";
  text += "        *) words='" + joined(flags_of(command), ' ') + "'\n";
  const std::string choices = joined(argument_choices(command), ' ');
  text += "           [[ \"$current\" == -* ]] || words='" + choices + "' ;;\n";
  return text + "      esac ;;\n";
}

std::string bash_script(const Commands& commands) {
  const std::string bench = words_of(of_bench(commands));
  std::string text =
      "# bash completion of sluice; made by `sluice completion bash`\n"
      "_sluice() {\n"
      "  local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD - 1]}\"\n"
      "  local command=\"${COMP_WORDS[1]}\" words=''\n"
      "  COMPREPLY=()\n"
      "  if [[ \"$current\" == '=' ]]; then current=''\n"
      "  elif [[ \"$previous\" == '=' ]]; then previous=\"${COMP_WORDS[COMP_CWORD - 2]}\"; fi\n"
      "  if [[ \"$command\" == bench && \" " +
      bench +
      " \" == *\" ${COMP_WORDS[2]} \"* ]] &&\n"
      "    ((COMP_CWORD > 2)); then command=\"bench ${COMP_WORDS[2]}\"; fi\n"
      "  if ((COMP_CWORD == 1)); then command=''; words='" +
      words_of(of_first_word(commands)) +
      "'; fi\n"
      "  case \"$command\" in\n";
  for (const CommandText& command : commands) text += bash_command(command);
  return text +
         "  esac\n"
         "  if [[ \"$command\" == bench && \"$current\" != -* ]] && ((COMP_CWORD == 2)); then\n"
         "    words='" +
         bench +
         "'; fi\n"
         "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
         "}\n"
         "complete -o bashdefault -o default -F _sluice sluice\n";
}

std::string zsh_value(const OptionText& option) {
  const std::string what = escaped(option.value, ":\\");
  if (!option.choices.empty()) return ":" + what + ":(" + joined(option.choices, ' ') + ")";
  return ":" + what + ":_files";
}

std::string zsh_command(const CommandText& command) {
  std::string text = "    " + single_quoted(command.name) + ")\n      _arguments";
  for (const OptionText& option : command.options) {
    for (const std::string& flag : option.flags) {
      std::string spec = "*" + flag;
      if (!option.value.empty()) spec += flag.starts_with("--") ? "=" : "+";
      spec += "[" + escaped(option.help, "[]\\") + "]";
      if (!option.value.empty()) spec += zsh_value(option);
      text += " \\\n        " + single_quoted(spec);
    }
    if (option.flags.empty()) text += " \\\n        " + single_quoted(zsh_value(option));
  }
  return text + " ;;\n";
}

std::string zsh_list(const std::vector<const CommandText*>& commands) {
  std::string text;
  for (const CommandText* command : commands) {
    text += "    " + single_quoted(last_word(*command) + ":" + escaped(command->help, ":\\")) + "\n";
  }
  return text;
}

std::string zsh_script(const Commands& commands) {
  std::string text =
      "#compdef sluice\n"
      "# zsh completion of sluice; made by `sluice completion zsh`\n"
      "_sluice() {\n"
      "  local -a commands=(\n" +
      zsh_list(of_first_word(commands)) +
      "  )\n"
      "  local -a benches=(\n" +
      zsh_list(of_bench(commands)) +
      "  )\n"
      "  if ((CURRENT == 2)); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  if [[ $words[2] == bench ]] && ((CURRENT == 3)) && [[ $words[3] != -* ]]; then\n"
      "    _describe command benches\n"
      "  fi\n"
      "  shift words\n"
      "  ((CURRENT--))\n"
      "  local command=$words[1]\n"
      "  if [[ $command == bench ]] && ((CURRENT > 2)) &&\n"
      "    [[ ' " +
      words_of(of_bench(commands)) +
      " ' == *\" $words[2] \"* ]]; then\n"
      "    command=\"bench $words[2]\"\n"
      "    shift words\n"
      "    ((CURRENT--))\n"
      "  fi\n"
      "  case $command in\n";
  for (const CommandText& command : commands) text += zsh_command(command);
  return text +
         "  esac\n"
         "}\n"
         "if [[ $funcstack[1] == _sluice ]]; then _sluice \"$@\"; else compdef _sluice sluice; "
         "fi\n";
}

std::string fish_quoted(const std::string& text) { return "'" + escaped(text, "'\\") + "'"; }

std::string fish_option(const CommandText& command, const OptionText& option) {
  const std::string when =
      "complete -c sluice -n " + fish_quoted("__sluice_is " + fish_quoted(command.name));
  std::string value = option.value.empty() ? "" : " -r";
  if (!option.choices.empty()) value = " -x -a " + fish_quoted(joined(option.choices, ' '));
  if (option.flags.empty()) return option.choices.empty() ? "" : when + " -f" + value + "\n";
  std::string text;
  for (const std::string& flag : option.flags) {
    const bool is_long = flag.starts_with("--");
    text += when + (is_long ? " -l " : " -s ") + flag.substr(is_long ? 2 : 1) + value + " -d " +
            fish_quoted(option.help) + "\n";
  }
  return text;
}

std::string fish_script(const Commands& commands) {
  std::string text =
      "# fish completion of sluice; made by `sluice completion fish`\n"
      "function __sluice_is\n"
      "    set -l words (commandline -opc)\n"
      "    set -l command \"$words[2]\"\n"
      "    if test \"$command\" = bench; and contains -- \"$words[3]\" " +
      words_of(of_bench(commands)) +
      "\n"
      "        set command \"bench $words[3]\"\n"
      "    end\n"
      "    test \"$command\" = \"$argv[1]\"\n"
      "end\n";
  for (const CommandText* command : of_first_word(commands)) {
    text += "complete -c sluice -f -n '__sluice_is \"\"' -a " + last_word(*command) + " -d " +
            fish_quoted(command->help) + "\n";
  }
  for (const CommandText* command : of_bench(commands)) {
    text += "complete -c sluice -n '__sluice_is bench' -a " + last_word(*command) + " -d " +
            fish_quoted(command->help) + "\n";
  }
  for (const CommandText& command : commands) {
    for (const OptionText& option : command.options) text += fish_option(command, option);
  }
  return text;
}

}  // namespace

std::string completion_script(const Commands& commands, std::string_view shell) {
  if (shell == "bash") return bash_script(commands);
  return shell == "zsh" ? zsh_script(commands) : fish_script(commands);
}

}  // namespace sluice
