// SPDX-License-Identifier: Apache-2.0
#include "server/cli/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <string>
#include <string_view>

namespace sluice {
namespace {

constexpr int kKeptLines = 1000;
constexpr std::string_view kBlock = "\"\"\"";
constexpr std::string_view kPasteEnd = "\x1b[201~";
constexpr const char* kMarkPastes = "\x1b[?2004h";  // a terminal then says where they begin and end
constexpr const char* kMarkNone = "\x1b[?2004l";
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
    el_set(editor, EL_ADDFN, "sluice-paste", "Inserts what is pasted", &Terminal::insert_paste);
    el_set(editor, EL_BIND, "\x1b[200~", "sluice-paste", nullptr);
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

  // 1: a byte; 0: no more; -1: interrupted.
  int read_byte(char& byte) const {
    for (;;) {
      if (interrupted.load()) return -1;
      pollfd key{STDIN_FILENO, POLLIN, 0};
      const int ready = ::poll(&key, 1, kLookMs);
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
      const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      return count <= 0 ? 0 : 1;
    }
  }

  // Called after the mark that begins a paste: all up to its end is text, newlines too.
  static unsigned char insert_paste(EditLine* editor, wint_t) {
    std::string pasted;
    char byte = 0;
    while (!pasted.ends_with(kPasteEnd) && of(editor).read_byte(byte) == 1) {
      if (byte == '\n' && pasted.ends_with('\r')) pasted.pop_back();
      if (byte != '\0') pasted += byte;
    }
    if (pasted.ends_with(kPasteEnd)) pasted.resize(pasted.size() - kPasteEnd.size());
    std::ranges::replace(pasted, '\r', '\n');
    while (pasted.ends_with('\n')) pasted.pop_back();
    if (!pasted.empty()) el_insertstr(editor, pasted.c_str());
    return CC_REFRESH;
  }

  // libedit's own reading goes on after a signal, so that Ctrl-C would be noticed with the next
  // key. Returns what read_byte() does, of a character.
  static int read_character(EditLine* editor, wchar_t* character) {
    std::mbstate_t state{};
    for (;;) {
      char byte = 0;
      const int got = of(editor).read_byte(byte);
      if (got != 1) return got;
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
  if (line.end == End::kLine && line.text.starts_with(kBlock)) {
    return read_block(line.text.substr(kBlock.size()), prompt);
  }
  while (line.end == End::kLine && line.text.ends_with('\\')) {
    Line next = read_one(std::string(prompt.size(), ' '));
    if (next.end == End::kInterrupted) return next;
    line.text.back() = '\n';
    line.text += next.text;
    if (next.end == End::kInput) break;
  }
  return line;
}

// `begin`: what follows the first mark on its line.
LineEditor::Line LineEditor::read_block(std::string begin, const std::string& prompt) {
  Line block{End::kLine, std::move(begin), /*is_block=*/true};
  while (!block.text.ends_with(kBlock)) {
    const Line next = read_one(std::string(prompt.size(), ' '));
    if (next.end == End::kInterrupted) return next;
    if (next.end == End::kInput) return block;  // without an end it ends here
    block.text += "\n" + next.text;
  }
  block.text.resize(block.text.size() - kBlock.size());
  if (block.text.starts_with('\n')) block.text.erase(0, 1);
  if (block.text.ends_with('\n')) block.text.pop_back();
  return block;
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
    std::fputs(kMarkPastes, stdout);
    std::fflush(stdout);
    int length = 0;
    const char* typed = el_gets(terminal_->editor, &length);
    std::fputs(kMarkNone, stdout);
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
