// SPDX-License-Identifier: Apache-2.0
#include "server/cli/progress_bar.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace sluice {
namespace {

TEST(ProgressBar, SaysPartAmountRateAndTimeLeft) {
  EXPECT_EQ(progress_text({10, 0, 1'000'000'000, 4'000'000'000}),
            "25%, 1.0 of 4.0 GB, 100.0 MB/s, 0:30 left");
  EXPECT_EQ(progress_text({2, 0, 50'000'000, 400'000'000}),
            "12%, 50.0 of 400.0 MB, 25.0 MB/s, 0:14 left");
  EXPECT_EQ(progress_text({1, 0, 1'000'000, 6'000'000'000}),
            "0%, 0.0 of 6.0 GB, 1.0 MB/s, 1:39:59 left");
  EXPECT_EQ(progress_text({10, 0, 400, 400}), "100%, 0.0 of 0.0 MB, 0.0 MB/s");
}

// What was there before is done, and says nothing of the rate.
TEST(ProgressBar, CountsForTheRateWhatCameSinceItBegan) {
  EXPECT_EQ(progress_text({10, 3'000'000'000, 3'500'000'000, 4'000'000'000}),
            "88%, 3.5 of 4.0 GB, 50.0 MB/s, 0:10 left");
  EXPECT_EQ(progress_text({10, 3'000'000'000, 3'000'000'000, 4'000'000'000}),
            "75%, 3.0 of 4.0 GB");
  EXPECT_EQ(progress_text({0, 0, 1'000'000, 4'000'000}), "25%, 1.0 of 4.0 MB");
  // A file that is fetched anew: less than there was.
  EXPECT_EQ(progress_text({10, 3'000'000, 2'000'000, 4'000'000}), "50%, 2.0 of 4.0 MB");
}

TEST(ProgressBar, ItsBarIsAsLongAsThePart) {
  EXPECT_EQ(progress_bar(0, 100, 4), "[....]");
  EXPECT_EQ(progress_bar(50, 100, 4), "[##..]");
  EXPECT_EQ(progress_bar(99, 100, 4), "[###.]");
  EXPECT_EQ(progress_bar(100, 100, 4), "[####]");
  EXPECT_EQ(progress_bar(200, 100, 4), "[####]");
  EXPECT_EQ(progress_bar(-1, 100, 4), "[....]");
  EXPECT_EQ(progress_bar(0, 0, 4), "[####]");
}

// Standard error in the place of the process's own, until the end of the scope.
class ErrorTo {
 public:
  explicit ErrorTo(int descriptor) : kept_(::dup(STDERR_FILENO)) {
    ::dup2(descriptor, STDERR_FILENO);
    ::close(descriptor);
  }

  ~ErrorTo() {
    ::dup2(kept_, STDERR_FILENO);
    ::close(kept_);
  }

  ErrorTo(const ErrorTo&) = delete;
  ErrorTo& operator=(const ErrorTo&) = delete;

 private:
  int kept_;
};

// What is there to be read.
std::string available(int descriptor) {
  ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
  std::string text;
  char bytes[4096];
  for (ssize_t n = 0; (n = ::read(descriptor, bytes, sizeof bytes)) > 0;) {
    text.append(bytes, static_cast<size_t>(n));
  }
  return text;
}

TEST(ProgressBar, IsRedrawnOnATerminalAndTakenAwayAtTheEnd) {
  int ours = -1;
  int theirs = -1;
  winsize size{.ws_row = 24, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::openpty(&ours, &theirs, nullptr, nullptr, &size), 0);
  std::string text;
  {
    const ErrorTo redirected(theirs);
    ProgressBar bar;
    EXPECT_TRUE(bar.is_terminal());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    // Nothing at first: what is done at once shows no bar.
    while (text.empty() && std::chrono::steady_clock::now() < deadline) {
      bar.show("file.safetensors", 500'000'000, 1'000'000'000);
      text = available(ours);
    }
    EXPECT_TRUE(text.starts_with("\r[##########..........] 50%, 0.5 of 1.0 GB")) << text;
    EXPECT_EQ(text.size(), std::string("\r\033[K").size() + 59) << text;
    bar.note("a note");
    EXPECT_EQ(available(ours), "\r\033[Ksluice: a note\r\n");
    bar.show("file.safetensors", 1'000'000'000, 1'000'000'000);
    EXPECT_EQ(available(ours), "");
  }
  ::close(ours);
}

TEST(ProgressBar, ElsewhereSaysALineAtTheEnd) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  {
    const ErrorTo redirected(ends[1]);
    ProgressBar bar;
    bar.show("a.gguf", 0, 1'000'000'000);
    bar.show("a.gguf", 500'000'000, 1'000'000'000);
    EXPECT_EQ(available(ends[0]), "");
    bar.show("a.gguf", 1'000'000'000, 1'000'000'000);
  }
  const std::string text = available(ends[0]);
  EXPECT_TRUE(text.starts_with("sluice: a.gguf: 100%, 1.0 of 1.0 GB, ")) << text;
  EXPECT_TRUE(text.ends_with(" MB/s\n")) << text;
  ::close(ends[0]);
}

}  // namespace
}  // namespace sluice
