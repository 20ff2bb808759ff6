// SPDX-License-Identifier: Apache-2.0
// An interrupt at each moment of a line, at a terminal and from a pipe.
#include "server/cli/line_editor.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>
#ifdef SLUICE_SANITIZED
#include <sanitizer/lsan_interface.h>
#endif

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <optional>
#include <string>
#include <thread>

// libedit sets the terminal back when a line is whole and before it returns it: a moment that no
// clock hits.
static std::atomic<bool>* g_interrupted_at_line_end = nullptr;

extern "C" int tcsetattr(int descriptor, int actions, const termios* settings) noexcept {
  using Function = int (*)(int, int, const termios*);
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "tcsetattr"));
  const bool is_line_end = (settings->c_lflag & ICANON) != 0;
  if (is_line_end && g_interrupted_at_line_end != nullptr) {
    g_interrupted_at_line_end->store(true);
    g_interrupted_at_line_end = nullptr;
  }
  return original(descriptor, actions, settings);
}

namespace sluice {
namespace {

using namespace std::chrono_literals;
using End = LineEditor::End;

// Standard input and output are others while it lives.
class Redirected {
 public:
  explicit Redirected(int input, int output = -1)
      : input_(dup(STDIN_FILENO)), output_(dup(STDOUT_FILENO)) {
    dup2(input, STDIN_FILENO);
    if (output >= 0) dup2(output, STDOUT_FILENO);
  }
  ~Redirected() {
    std::fflush(stdout);
    dup2(input_, STDIN_FILENO);
    dup2(output_, STDOUT_FILENO);
    close(input_);
    close(output_);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  const int input_;
  const int output_;
};

void type(int descriptor, const std::string& keys) {
  ASSERT_EQ(write(descriptor, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

class AtATerminal : public ::testing::Test {
 protected:
  AtATerminal() {
    setenv("TERM", "xterm", 1);
    EXPECT_EQ(openpty(&keys_, &terminal_, nullptr, nullptr, nullptr), 0);
    redirected_.emplace(terminal_, terminal_);
    make_editor();
    // What the editor shows is read, or its writes would wait.
    shown_ = std::async(std::launch::async, [this] {
      std::string all;
      char part[256];
      for (ssize_t count = 0; (count = ::read(keys_, part, sizeof part)) > 0;) {
        all.append(part, static_cast<size_t>(count));
        num_shown_ = all.size();
      }
      return all;
    });
  }

  void make_editor() {
#ifdef SLUICE_SANITIZED
    // libedit copies names and descriptions of functions that are added, and frees none.
    const __lsan::ScopedDisabler disabler;
#endif
    editor_.emplace(interrupted_);
  }

  void TearDown() override {
    if (editor_) finish();
  }

  // Returns all that was shown.
  std::string finish() {
    editor_.reset();
    redirected_.reset();
    close(terminal_);
    std::string all = shown_.get();
    close(keys_);
    return all;
  }

  int keys_ = -1;
  int terminal_ = -1;
  std::atomic<bool> interrupted_ = false;
  std::atomic<size_t> num_shown_ = 0;
  std::optional<Redirected> redirected_;
  std::optional<LineEditor> editor_;
  std::future<std::string> shown_;
};

TEST_F(AtATerminal, AnInterruptBehindAWholeLineIsForItsAnswer) {
  ASSERT_TRUE(editor_->is_interactive());
  g_interrupted_at_line_end = &interrupted_;
  type(keys_, "Talk\r");
  LineEditor::Line line = editor_->read("> ");
  EXPECT_EQ(g_interrupted_at_line_end, nullptr) << "the moment did not come";
  ASSERT_EQ(line.end, End::kLine);
  EXPECT_EQ(line.text, "Talk");
  ASSERT_TRUE(interrupted_) << "whoever answers looks at it";
  // Where nobody did, the next line ends by it.
  line = editor_->read("> ");
  EXPECT_EQ(line.end, End::kInterrupted);
  EXPECT_FALSE(interrupted_);
  type(keys_, "/help\r");
  EXPECT_EQ(editor_->read("> ").text, "/help");
  EXPECT_NE(finish().find("^C"), std::string::npos);
}

TEST_F(AtATerminal, AnInterruptBehindALineThatGoesOnDropsAllOfIt) {
  g_interrupted_at_line_end = &interrupted_;
  type(keys_, "one\\\r");
  EXPECT_EQ(editor_->read("> ").end, End::kInterrupted);
  EXPECT_FALSE(interrupted_);
  g_interrupted_at_line_end = &interrupted_;
  type(keys_, "\"\"\"block\r");
  EXPECT_EQ(editor_->read("> ").end, End::kInterrupted);
  EXPECT_FALSE(interrupted_);
  type(keys_, "next\r");
  EXPECT_EQ(editor_->read("> ").text, "next");
}

TEST_F(AtATerminal, AnInterruptWithinALineDropsIt) {
  auto interrupt = std::async(std::launch::async, [this] {
    type(keys_, "half");
    while (num_shown_ < std::string("\x1b[?2004h> half").size()) std::this_thread::sleep_for(1ms);
    interrupted_ = true;
  });
  EXPECT_EQ(editor_->read("> ").end, End::kInterrupted);
  EXPECT_FALSE(interrupted_);
  interrupt.get();
}

// The signal may come between a look at it and the read, or to another thread.
TEST(FromAPipe, AReadThatWaitsEndsByAnInterrupt) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::atomic<bool> interrupted = false;
  {
    const Redirected redirected(ends[0]);
    LineEditor editor(interrupted);
    ASSERT_FALSE(editor.is_interactive());
    type(ends[1], "one\ntwo\r\nhalf");
    EXPECT_EQ(editor.read("> ").text, "one");
    EXPECT_EQ(editor.read("> ").text, "two");
    std::atomic<bool> is_over = false;
    auto interrupt = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(20ms);
      interrupted = true;
      for (int i = 0; i < 6000 && !is_over; ++i) std::this_thread::sleep_for(10ms);
      if (!is_over) type(ends[1], "\n");  // it waits for a line
    });
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(editor.read("> ").end, End::kInterrupted);
    EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
    is_over = true;
    interrupt.get();
    EXPECT_FALSE(interrupted);
    type(ends[1], "last");
    close(ends[1]);
    EXPECT_EQ(editor.read("> ").text, "last");
    EXPECT_EQ(editor.read("> ").end, End::kInput);
  }
  close(ends[0]);
}

}  // namespace
}  // namespace sluice
