// SPDX-License-Identifier: Apache-2.0
#include "server/router/breaker.h"

#include <algorithm>

namespace sluice {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMostErrors = 5;
constexpr seconds kErrorWindow{10};
constexpr milliseconds kFirstWait{1000};
constexpr milliseconds kLongestWait{30'000};

}  // namespace

BreakerState Breaker::state(Time now) const {
  if (!is_open_) return BreakerState::kClosed;
  return is_probing_ || now >= until_ ? BreakerState::kHalfOpen : BreakerState::kOpen;
}

bool Breaker::allows(Time now) const {
  return !is_open_ || (now >= until_ && (has_died_ || !is_probing_));
}

void Breaker::sent(Time now) {
  if (is_open_ && now >= until_) is_probing_ = true;
}

void Breaker::succeeded() {
  if (is_open_ && !is_probing_) return;
  is_open_ = false;
  is_probing_ = false;
  wait_ = milliseconds(0);
}

void Breaker::failed(Time now) {
  if (is_open_) {
    if (is_probing_) open(now, false);
    return;
  }
  errors_.push_back(now);
  while (errors_.front() + kErrorWindow < now) errors_.pop_front();
  if (errors_.size() >= kMostErrors) open(now, false);
}

// Opens once, though many requests may report one death.
void Breaker::died(Time now) {
  if (!is_open_ || is_probing_) open(now, true);
}

void Breaker::gave_up() {
  if (!has_died_) is_probing_ = false;  // after a death other requests are out too
}

void Breaker::open(Time now, bool has_died) {
  wait_ = wait_ == milliseconds(0) ? kFirstWait : std::min(2 * wait_, kLongestWait);
  opened_at_ = now;
  until_ = now + wait_;
  is_open_ = true;
  has_died_ = has_died;
  is_probing_ = false;
  errors_.clear();
}

}  // namespace sluice
