// SPDX-License-Identifier: Apache-2.0
// Reads lines: a person's at a terminal, with editing and history (libedit; nothing is kept when
// the program ends), or those of a file or a pipe as they are.
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
    bool is_block = false;  // it was between marks of """: never a command
  };

  // `interrupted`: the signal handler of SIGINT sets it. It ends a line under way and is cleared;
  // behind a whole line it stays set, for the line's answer. One editor at a time in a process, on
  // the main thread.
  explicit LineEditor(std::atomic<bool>& interrupted);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Tells whether standard input and output are a terminal's.
  [[nodiscard]] bool is_interactive() const;

  // Reads the next line after writing `prompt`. A line that ends with a backslash continues in the
  // next, one that begins with """ up to the next """ at a line's end. Text that is pasted at a
  // terminal is part of one line, newlines included.
  Line read(const std::string& prompt);

 private:
  class Input;
  struct Terminal;
  Line read_one(const std::string& prompt);
  Line read_block(std::string begin, const std::string& prompt);

  std::atomic<bool>& interrupted_;
  std::unique_ptr<Input> input_;
  std::unique_ptr<Terminal> terminal_;  // null: not a terminal
};

}  // namespace sluice
