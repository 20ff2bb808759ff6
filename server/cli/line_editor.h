// SPDX-License-Identifier: Apache-2.0
// Lines of a person at a terminal, with editing and the lines before (libedit; nothing of it is
// kept when the program ends); lines of a file or a pipe as they are.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace sluice {

class LineEditor {
 public:
  enum class End : uint8_t { kLine, kInterrupted, kInput };

  struct Line {
    End end = End::kInput;  // why reading has ended; kInput: there is no more
    std::string text;       // UTF-8 without the newline; only with kLine
  };

  // `interrupted` is set by the signal handler of SIGINT, and taken back here. One at a time in a
  // process, on the main thread.
  explicit LineEditor(std::atomic<bool>& interrupted);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Standard input and output are a terminal's.
  [[nodiscard]] bool is_interactive() const;

  // The next line, shown behind `prompt`. A line that ends with a backslash goes on in the next.
  Line read(const std::string& prompt);

 private:
  struct Terminal;
  Line read_one(const std::string& prompt);

  std::atomic<bool>& interrupted_;
  std::unique_ptr<Terminal> terminal_;  // null: not a terminal
};

}  // namespace sluice
