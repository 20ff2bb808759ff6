// SPDX-License-Identifier: Apache-2.0
// The help of `sluice` and its commands: two columns, as wide as the terminal.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace CLI {
class Formatter;
}

namespace sluice {

// Breaks lines of more than `width` characters at spaces. Continuations begin at `second_column` if
// the line has one, else at the line's own indentation. 0: no limit.
std::string wrap_help(const std::string& text, size_t width, size_t second_column);

// Returns the formatter of all commands. Its width: that of the terminal on standard output, else
// of COLUMNS, else none.
std::shared_ptr<CLI::Formatter> help_formatter();

}  // namespace sluice
