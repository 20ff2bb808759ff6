// SPDX-License-Identifier: Apache-2.0
// How far a long piece of work is, on stderr: on a terminal one line that is redrawn, with a bar,
// the rate and the time left; elsewhere a line every ten seconds and one at the end of bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

struct ProgressFigures {
  double seconds = 0;      // since the first call
  int64_t first_done = 0;  // that were done then: they count for no rate
  int64_t done = 0;
  int64_t all = 0;
};

// "42%, 1.2 of 2.9 GB, 85.3 MB/s, 0:20 left"; what cannot be known yet is left out.
std::string progress_text(const ProgressFigures& figures);
// "[####....]" of `width` places.
std::string progress_bar(int64_t done, int64_t all, int width);

// One thread at a time.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  [[nodiscard]] bool is_terminal() const { return is_terminal_; }

  // Bytes done, of all; `what` is being worked on. Shown when it is time.
  void show(std::string_view what, int64_t done, int64_t all);
  // A line of its own, above the bar.
  void note(const std::string& line);
  // Takes the bar away.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  const bool is_terminal_;
  bool is_shown_ = false;
  std::optional<Clock::time_point> begin_;
  int64_t first_done_ = 0;
  Clock::time_point next_;
};

}  // namespace sluice
