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
#include <vector>

namespace sluice {
namespace {

constexpr int kKeptLines = 1000;
constexpr std::string_view kBlock = "\"\"\"";
constexpr std::string_view kPasteEnd = "\x1b[201~";
constexpr const char* kMarkPastes = "\x1b[?2004h";  // a terminal then says where they begin and end
constexpr const char* kMarkNone = "\x1b[?2004l";
constexpr int kLookMs = 100;  // so often a wait for input looks for an interrupt
constexpr size_t kReadAhead = 4096;

// UTF-8 also where the environment names no locale.
void choose_characters() {
  std::setlocale(LC_CTYPE, "");
  if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

// Standard input. No wait outlasts an interrupt, whichever thread the signal came to.
class LineEditor::Input {
 public:
  // `ahead`: bytes that may be read before they are asked for.
  Input(const std::atomic<bool>& interrupted, size_t ahead)
      : interrupted_(interrupted), buffer_(ahead) {}

  // 1: a byte; 0: no more; -1: interrupted.
  int next(char& byte) {
    for (;;) {
      if (interrupted_.load()) return -1;
      if (at_ < end_) {
        byte = buffer_[at_++];
        return 1;
      }
      pollfd input{STDIN_FILENO, POLLIN, 0};
      const int ready = ::poll(&input, 1, kLookMs);
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
      const ssize_t count = ::read(STDIN_FILENO, buffer_.data(), buffer_.size());
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) return 0;
      at_ = 0;
      end_ = static_cast<size_t>(count);
    }
  }

 private:
  const std::atomic<bool>& interrupted_;
  std::vector<char> buffer_;
  size_t at_ = 0;
  size_t end_ = 0;
};

struct LineEditor::Terminal {
  explicit Terminal(Input& typed) : input(typed) {
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

  // Called after the mark that begins a paste: all up to its end is text, newlines too.
  static unsigned char insert_paste(EditLine* editor, wint_t) {
    std::string pasted;
    char byte = 0;
    while (!pasted.ends_with(kPasteEnd) && of(editor).input.next(byte) == 1) {
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
  // key. Returns what Input::next() does, of a character.
  static int read_character(EditLine* editor, wchar_t* character) {
    std::mbstate_t state{};
    for (;;) {
      char byte = 0;
      const int got = of(editor).input.next(byte);
      if (got != 1) return got;
      const size_t length = std::mbrtowc(character, &byte, 1, &state);
      if (length == static_cast<size_t>(-2)) continue;  // more bytes of it are to come
      if (length != static_cast<size_t>(-1)) return 1;
      state = {};  // not UTF-8: without this byte
    }
  }

  Input& input;
  History* lines = nullptr;
  EditLine* editor = nullptr;
  HistEvent event{};
  std::string prompt;
};

LineEditor::LineEditor(std::atomic<bool>& interrupted) : interrupted_(interrupted) {
  const bool is_terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  // No byte of a terminal is read ahead: an interrupt drops what was typed before it.
  input_ = std::make_unique<Input>(interrupted, is_terminal ? 1 : kReadAhead);
  if (is_terminal) terminal_ = std::make_unique<Terminal>(*input_);
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
    char byte = 0;
    int got = 0;
    while ((got = input_->next(byte)) == 1 && byte != '\n') text += byte;
    if (got < 0) {
      interrupted_ = false;
      return {End::kInterrupted, {}};
    }
    if (got == 0 && text.empty()) return {};
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
    // An interrupt behind a whole line is not for it, but for what the line begins.
    const bool is_whole = typed != nullptr && length > 0 && typed[length - 1] == '\n';
    if (!is_whole && interrupted_.exchange(false)) {
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
