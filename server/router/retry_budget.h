// SPDX-License-Identifier: Apache-2.0
// The number of retries that the traffic can bear: a tenth of the requests, and a few at the start.
// A value without clock, thread or I/O.
#pragma once

#include <algorithm>

namespace sluice {

class RetryBudget {
 public:
  void count_request() { left_ = std::min(left_ + kShare, kMost); }

  // Takes one retry; false: none is left.
  [[nodiscard]] bool take() {
    if (left_ < 1) return false;
    left_ -= 1;
    return true;
  }

 private:
  static constexpr double kShare = 0.1;
  static constexpr double kMost = 100;  // retries in a burst

  double left_ = 3;
};

}  // namespace sluice
