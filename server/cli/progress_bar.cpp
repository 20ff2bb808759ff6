// SPDX-License-Identifier: Apache-2.0
#include "server/cli/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/core/log.h"

namespace sluice {
namespace {

constexpr auto kBarEvery = std::chrono::milliseconds(100);
constexpr auto kLineEvery = std::chrono::seconds(10);
constexpr auto kNotBefore = std::chrono::milliseconds(400);  // what is done by then shows no bar
constexpr int kBarWidth = 20;

// "1.2 of 2.9 GB": both in the unit of the second.
std::string amount_text(int64_t done, int64_t all) {
  const bool is_large = all >= 1'000'000'000;
  const double unit = is_large ? 1e9 : 1e6;
  char text[64];
  std::snprintf(text,
                sizeof text,
                "%.1f of %.1f %s",
                static_cast<double>(done) / unit,
                static_cast<double>(all) / unit,
                is_large ? "GB" : "MB");
  return text;
}

std::string time_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(std::min(seconds, 360000.0)));
  char text[32];
  if (whole >= 3600) {
    std::snprintf(text,
                  sizeof text,
                  "%d:%02d:%02d",
                  static_cast<int>(whole / 3600),
                  static_cast<int>(whole / 60 % 60),
                  static_cast<int>(whole % 60));
  } else {
    std::snprintf(
        text, sizeof text, "%d:%02d", static_cast<int>(whole / 60), static_cast<int>(whole % 60));
  }
  return text;
}

double part_of(int64_t done, int64_t all) {
  if (all <= 0) return 1;
  return std::clamp(static_cast<double>(done) / static_cast<double>(all), 0.0, 1.0);
}

size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void say(const std::string& line) {
  if (log_is_json()) return log_event(LogLevel::kInfo, "progress", "text", line);
  std::fprintf(stderr, "sluice: %s\n", line.c_str());
}

}  // namespace

std::string progress_text(const ProgressFigures& figures) {
  char part[48];
  std::snprintf(part, sizeof part, "%.0f%%, ", 100 * part_of(figures.done, figures.all));
  std::string text = part + amount_text(figures.done, figures.all);
  const auto grown = static_cast<double>(figures.done - figures.first_done);
  if (figures.seconds <= 0 || grown <= 0) return text;
  const double rate = grown / figures.seconds;
  std::snprintf(part, sizeof part, ", %.1f MB/s", rate / 1e6);
  text += part;
  if (figures.done < figures.all) {
    text += ", " + time_text(static_cast<double>(figures.all - figures.done) / rate) + " left";
  }
  return text;
}

std::string progress_bar(int64_t done, int64_t all, int width) {
  const int filled = static_cast<int>(part_of(done, all) * width);
  return "[" + std::string(static_cast<size_t>(filled), '#') +
         std::string(static_cast<size_t>(width - filled), '.') + "]";
}

ProgressBar::ProgressBar() : is_terminal_(isatty(STDERR_FILENO) != 0) {}

void ProgressBar::show(std::string_view what, int64_t done, int64_t all) {
  const Clock::time_point now = Clock::now();
  if (!begin_) {
    begin_ = now;
    first_done_ = done;
    next_ = now + (is_terminal_ ? Clock::duration(kNotBefore) : Clock::duration(kLineEvery));
  }
  const bool is_end = done >= all;
  if (is_terminal_ && is_end) return clear();
  if (now < next_ && !is_end) return;
  next_ = now + (is_terminal_ ? Clock::duration(kBarEvery) : Clock::duration(kLineEvery));
  const std::string text =
      progress_text({std::chrono::duration<double>(now - *begin_).count(), first_done_, done, all});
  if (!is_terminal_) return say(std::string(what) + ": " + text);
  std::string line = progress_bar(done, all, kBarWidth) + " " + text + "  ";
  line += what;
  // A line that is longer than the terminal is wide would not be redrawn but repeated.
  line = line.substr(0, terminal_width() - 1);
  std::fprintf(stderr, "\r%s\033[K", line.c_str());
  is_shown_ = true;
}

void ProgressBar::note(const std::string& line) {
  clear();
  say(line);
}

void ProgressBar::clear() {
  if (is_shown_) std::fputs("\r\033[K", stderr);
  is_shown_ = false;
}

}  // namespace sluice
