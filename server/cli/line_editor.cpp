// SPDX-License-Identifier: Apache-2.0
#include "server/cli/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <string>

namespace sluice {
namespace {

constexpr int kKeptLines = 1000;
constexpr int kLookMs = 100;  // so often a wait for a key looks for an interrupt

// UTF-8 also where the environment names no locale.
void choose_characters() {
  std::setlocale(LC_CTYPE, "");
  if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

struct LineEditor::Terminal {
  explicit Terminal(std::atomic<bool>& flag) : interrupted(flag) {
    choose_characters();
    lines = history_init();
    history(lines, &event, H_SETSIZE, kKeptLines);
    history(lines, &event, H_SETUNIQUE, 1);
    editor = el_init("sluice", stdin, stdout, stderr);
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT, &Terminal::prompt_of);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_HIST, history, lines);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(editor, EL_GETCFN, &Terminal::read_character);
  }

  ~Terminal() {
    el_end(editor);
    history_end(lines);
  }

  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  static Terminal& of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<Terminal*>(self);
  }

  static char* prompt_of(EditLine* editor) { return of(editor).prompt.data(); }

  // libedit's own reading goes on after a signal, so that Ctrl-C would be noticed with the next
  // key. 1: a character; 0: no more; -1: interrupted.
  static int read_character(EditLine* editor, wchar_t* character) {
    const std::atomic<bool>& interrupted = of(editor).interrupted;
    std::mbstate_t state{};
    for (;;) {
      if (interrupted.load()) return -1;
      pollfd key{STDIN_FILENO, POLLIN, 0};
      const int ready = ::poll(&key, 1, kLookMs);
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
      char byte = 0;
      const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) return 0;
      const size_t length = std::mbrtowc(character, &byte, 1, &state);
      if (length == static_cast<size_t>(-2)) continue;  // more bytes of it are to come
      if (length != static_cast<size_t>(-1)) return 1;
      state = {};  // not UTF-8: without this byte
    }
  }

  std::atomic<bool>& interrupted;
  History* lines = nullptr;
  EditLine* editor = nullptr;
  HistEvent event{};
  std::string prompt;
};

LineEditor::LineEditor(std::atomic<bool>& interrupted) : interrupted_(interrupted) {
  if (isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
    terminal_ = std::make_unique<Terminal>(interrupted);
  }
}

LineEditor::~LineEditor() = default;

bool LineEditor::is_interactive() const { return terminal_ != nullptr; }

LineEditor::Line LineEditor::read(const std::string& prompt) {
  Line line = read_one(prompt);
  while (line.end == End::kLine && line.text.ends_with('\\')) {
    Line next = read_one(std::string(prompt.size(), ' '));
    if (next.end == End::kInterrupted) return next;
    line.text.back() = '\n';
    line.text += next.text;
    if (next.end == End::kInput) break;
  }
  return line;
}

LineEditor::Line LineEditor::read_one(const std::string& prompt) {
  std::string text;
  if (terminal_ == nullptr) {
    int byte = EOF;
    while ((byte = std::getc(stdin)) != EOF && byte != '\n') text += static_cast<char>(byte);
    if (interrupted_.exchange(false)) {
      std::clearerr(stdin);
      return {End::kInterrupted, {}};
    }
    if (byte == EOF && text.empty()) return {};
  } else {
    terminal_->prompt = prompt;
    el_resize(terminal_->editor);
    // Before the prompt: keys that follow it are then for the editor, not the terminal's own line.
    el_set(terminal_->editor, EL_PREP_TERM, 1);
    int length = 0;
    const char* typed = el_gets(terminal_->editor, &length);
    if (interrupted_.exchange(false)) {
      el_reset(terminal_->editor);
      std::fputs("^C\n", stdout);
      return {End::kInterrupted, {}};
    }
    if (typed == nullptr || length <= 0) return {};
    text.assign(typed, static_cast<size_t>(length));
    if (text.ends_with('\n')) text.pop_back();
    if (!text.empty()) history(terminal_->lines, &terminal_->event, H_ENTER, text.c_str());
  }
  if (text.ends_with('\r')) text.pop_back();
  return {End::kLine, std::move(text)};
}

}  // namespace sluice
