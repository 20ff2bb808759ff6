// SPDX-License-Identifier: Apache-2.0
#include "server/cli/help_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>
#include <utility>

#include "server/cli/command_table.h"

namespace sluice {
namespace {

constexpr size_t kSecondColumn = 44;
constexpr size_t kLeastWidth = 40;
constexpr size_t kRowIndent = 2;  // of names in the first column

size_t help_width() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return std::max<size_t>(size.ws_col, kLeastWidth);
  }
  const char* columns = std::getenv("COLUMNS");
  size_t width = 0;
  if (columns == nullptr) return 0;
  std::from_chars(columns, columns + std::strlen(columns), width);
  return width == 0 ? 0 : std::max(width, kLeastWidth);
}

size_t second_column(size_t width) {
  return width == 0 ? kSecondColumn : std::min(kSecondColumn, width * 2 / 5);
}

size_t indent_of(std::string_view line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

// Appends `line`, broken at its last space within the width, or at the first one after it.
void add_wrapped(std::string line, size_t width, size_t indent, std::string& out) {
  while (line.size() > width) {
    size_t at = line.rfind(' ', width);
    if (at == std::string::npos || at <= std::max(indent_of(line), indent)) {
      at = line.find(' ', width);
    }
    const size_t rest = at == std::string::npos ? at : line.find_first_not_of(' ', at);
    if (rest == std::string::npos) break;
    out.append(line, 0, line.find_last_not_of(' ', at) + 1).append("\n");
    line = std::string(indent, ' ') + line.substr(rest);
  }
  out.append(line).append("\n");
}

class HelpFormatter final : public CLI::Formatter {
 public:
  explicit HelpFormatter(size_t width) : width_(width) { column_width(second_column(width)); }

  std::string make_help(const CLI::App* app,
                        std::string name,
                        CLI::AppFormatMode mode) const override {
    return wrap_help(
        CLI::Formatter::make_help(app, std::move(name), mode), width_, get_column_width());
  }

  std::string make_subcommand(const CLI::App* sub) const override {
    std::ostringstream out;
    CLI::detail::format_help(
        out, shown_command(sub->get_name()), sub->get_description(), get_column_width());
    return out.str();
  }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    return CLI::Formatter::make_usage(app, shown_usage(std::move(name)));
  }

 private:
  // "sluice bench-serve" as "sluice bench serve".
  static std::string shown_usage(std::string name) {
    const size_t word = name.rfind(' ') + 1;
    return name.substr(0, word) + shown_command(name.substr(word));
  }

  const size_t width_;
};

}  // namespace

std::string wrap_help(const std::string& text, size_t width, size_t second_column) {
  if (width == 0) return text;
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t own = indent_of(line);
    const bool is_row =
        own == second_column || (own == kRowIndent && line.size() > second_column &&
                                 line[second_column - 1] == ' ' && line[second_column] != ' ');
    add_wrapped(line, width, is_row ? second_column : own, out);
  }
  return out;
}

std::shared_ptr<CLI::Formatter> help_formatter() {
  return std::make_shared<HelpFormatter>(help_width());
}

}  // namespace sluice
