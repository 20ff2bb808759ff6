// SPDX-License-Identifier: Apache-2.0
// Decides whether a worker gets requests after it has failed. A value without clock, thread or I/O.
//
// Closed, it lets all requests pass; open, none. A death opens it at once, errors when there are 5
// in 10 s. After a second, doubling to 30 with each failure, it is half open, until a request's
// success closes it. After errors it then passes one request at a time. After a death it passes
// all, since WorkerSet has seen the worker answer again; if it did not, all requests that other
// workers lose would go to the one worker whose breaker is closed.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string_view>

namespace sluice {

enum class BreakerState : uint8_t { kClosed, kHalfOpen, kOpen };

constexpr std::string_view to_string(BreakerState state) {
  switch (state) {
    case BreakerState::kClosed:
      return "closed";
    case BreakerState::kHalfOpen:
      return "half_open";
    case BreakerState::kOpen:
      return "open";
  }
  return "";
}

class Breaker {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Returns the state; half open also while its probe is out.
  [[nodiscard]] BreakerState state(Time now) const;
  // Tells whether a request may be sent now.
  [[nodiscard]] bool allows(Time now) const;

  // Returns when it opened last; the clock's beginning if it never did.
  [[nodiscard]] Time opened_at() const { return opened_at_; }

  // Returns when it will be half open; in the future only if it is open.
  [[nodiscard]] Time opens_until() const { return until_; }

  // Records that a request that allows() permitted is sent; one of the next four calls follows for
  // each.
  void sent(Time now);
  void succeeded();       // closes it for a probe; older requests do not
  void failed(Time now);  // with an error of the worker's own
  void died(Time now);    // the worker did not answer, or its process has ended
  void gave_up();         // the request ended without a verdict

 private:
  void open(Time now, bool has_died);

  std::deque<Time> errors_;  // the latest errors while closed
  bool is_open_ = false;
  bool has_died_ = false;    // what opened it last was a death
  bool is_probing_ = false;  // a request has been sent while half open
  Time opened_at_{};
  Time until_{};
  std::chrono::milliseconds wait_{0};  // of the latest opening; 0: none since a success
};

}  // namespace sluice
