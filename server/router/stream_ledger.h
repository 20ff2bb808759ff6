// SPDX-License-Identifier: Apache-2.0
// What a router knows of one request: what was published, which attempt counts, and what follows
// when a worker is lost. A value without clock, thread or I/O.
//
// An attempt is one worker's try; attempts of a request have numbers, and outputs of any but the
// latest are dropped. The next attempt gets prompt, seed and the tokens so far, so its first token
// is the one that is missing; equal fingerprints make it the same token.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "engine/request.h"

namespace sluice {

class StreamLedger {
 public:
  using Time = std::chrono::steady_clock::time_point;

  enum class Verdict : uint8_t {
    kPublish,  // the output, as it now is
    kDrop,     // of an attempt that does not count any more, or nothing new
    kBroken,   // the worker's tokens are not those that follow: the attempt has failed
  };

  explicit StreamLedger(ValidRequest request);

  // A worker is tried from here on; its number.
  uint32_t begin_attempt();

  // Nothing of the current attempt counts any more.
  void end_attempt() { is_open_ = false; }

  [[nodiscard]] bool is_current(uint32_t attempt) const { return is_open_ && attempt == attempt_; }

  // What a worker is asked.
  [[nodiscard]] ValidRequest attempt_request() const;

  // Some worker's engine has taken the request: it is not to be refused any more.
  void accepted() { was_accepted_ = true; }

  [[nodiscard]] bool was_accepted() const { return was_accepted_; }

  // An output of `attempt` behind `position` tokens of the answer. What is published counts as
  // told: the next attempt begins behind it.
  [[nodiscard]] Verdict accept(uint32_t attempt, int32_t position, TokenOutput& output);

  // Tokens of the answer so far.
  [[nodiscard]] int32_t num_tokens() const {
    return static_cast<int32_t>(request_.generated.size());
  }

  [[nodiscard]] const ValidRequest& request() const { return request_; }

  // The attempt's worker has answered with an error of its own: whether a retry is allowed, once
  // the budget has one.
  [[nodiscard]] bool may_retry() const { return num_retries_ < kMostRetries; }

  void count_retry() { ++num_retries_; }

  // The attempt's worker is lost. False: it was one too many in a row without a new token, which
  // may be the request's own doing.
  [[nodiscard]] bool lose_worker(int32_t most_losses) {
    is_open_ = false;
    return ++num_losses_ <= most_losses;
  }

 private:
  static constexpr int32_t kMostRetries = 2;

  ValidRequest request_;        // `generated` grows
  size_t num_given_;            // tokens of it that the client's request came with
  size_t num_scored_ = 0;       // prompt tokens whose log-probabilities are told
  size_t num_scored_here_ = 0;  // by the current attempt
  uint32_t attempt_ = 0;
  bool is_open_ = false;
  bool was_accepted_ = false;
  int32_t num_retries_ = 0;
  int32_t num_losses_ = 0;  // since the latest token
  // Of drafts, by attempts before the current one; and so far.
  int32_t accepted_before_ = 0;
  int32_t rejected_before_ = 0;
  int32_t num_accepted_ = 0;
  int32_t num_rejected_ = 0;
};

}  // namespace sluice
