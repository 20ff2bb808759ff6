// SPDX-License-Identifier: Apache-2.0
// How many retries the traffic can bear: a tenth of the requests, and a few for those who have just
// begun. A value without clock, thread or I/O.
#pragma once

#include <algorithm>

namespace sluice {

class RetryBudget {
 public:
  void request_came() { left_ = std::min(left_ + kShare, kMost); }

  // Takes one retry; false: there is none left.
  [[nodiscard]] bool take() {
    if (left_ < 1) return false;
    left_ -= 1;
    return true;
  }

 private:
  static constexpr double kShare = 0.1;
  static constexpr double kMost = 100;  // of a burst

  double left_ = 3;
};

}  // namespace sluice
