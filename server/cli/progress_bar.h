// SPDX-License-Identifier: Apache-2.0
// Shows on stderr how far a long piece of work is: on a terminal one line that is redrawn, with a
// bar, the rate and the time left; elsewhere a line every ten seconds and one at the end of bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

struct ProgressFigures {
  double seconds = 0;      // since the first call
  int64_t first_done = 0;  // done at the first call; not counted in the rate
  int64_t done = 0;
  int64_t all = 0;
};

// Returns "42%, 1.2 of 2.9 GB, 85.3 MB/s, 0:20 left"; figures that are not yet known are left out.
std::string progress_text(const ProgressFigures& figures);
// Returns "[####....]" of `width` places.
std::string progress_bar(int64_t done, int64_t all, int width);

// One thread at a time.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  [[nodiscard]] bool is_terminal() const { return is_terminal_; }

  // Shows the bytes done, of all, when it is time. `what` is being worked on.
  void show(std::string_view what, int64_t done, int64_t all);
  // Prints a line of its own, above the bar.
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
