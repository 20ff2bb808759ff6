// SPDX-License-Identifier: Apache-2.0
// A router's knowledge of one request: published outputs, the attempt that counts, and the
// consequences of a lost worker. A value without clock, thread or I/O.
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
    kPublish,  // the output, as modified
    kDrop,     // its attempt no longer counts, or nothing is new
    kBroken,   // the worker's tokens do not follow: the attempt has failed
  };

  explicit StreamLedger(ValidRequest request);

  // Begins an attempt at a worker and returns its number.
  uint32_t begin_attempt();

  // Ends the current attempt: its outputs no longer count.
  void end_attempt() { is_open_ = false; }

  [[nodiscard]] bool is_current(uint32_t attempt) const { return is_open_ && attempt == attempt_; }

  // Returns the request for a worker.
  [[nodiscard]] ValidRequest attempt_request() const;

  // Records that a worker's engine has taken the request, which may not be refused any more.
  void accepted() { was_accepted_ = true; }

  [[nodiscard]] bool was_accepted() const { return was_accepted_; }

  // Takes an output of `attempt` that follows `position` tokens of the answer. A published output
  // counts as sent: the next attempt begins after it.
  [[nodiscard]] Verdict accept(uint32_t attempt, int32_t position, TokenOutput& output);

  // Returns the number of tokens of the answer so far.
  [[nodiscard]] int32_t num_tokens() const {
    return static_cast<int32_t>(request_.generated.size());
  }

  [[nodiscard]] const ValidRequest& request() const { return request_; }

  // Tells whether a retry is allowed, if the budget has one, after the attempt's worker has
  // answered with an error of its own.
  [[nodiscard]] bool may_retry() const { return num_retries_ < kMostRetries; }

  void count_retry() { ++num_retries_; }

  // Returns the number of workers lost in a row without a new token.
  [[nodiscard]] int32_t num_losses() const { return num_losses_; }

  // Records that the attempt's worker is lost. False: too many were lost in a row without a new
  // token, which may be the request's own doing.
  [[nodiscard]] bool count_loss(int32_t most_losses) {
    is_open_ = false;
    return ++num_losses_ <= most_losses;
  }

 private:
  static constexpr int32_t kMostRetries = 2;

  ValidRequest request_;        // `generated` grows
  size_t num_given_;            // tokens of it that came with the client's request
  size_t num_scored_ = 0;       // prompt tokens with published log-probabilities
  size_t num_scored_here_ = 0;  // counted for the current attempt
  uint32_t attempt_ = 0;
  bool is_open_ = false;
  bool was_accepted_ = false;
  int32_t num_retries_ = 0;
  int32_t num_losses_ = 0;  // since the latest token
  // Drafts by attempts before the current one, and so far.
  int32_t accepted_before_ = 0;
  int32_t rejected_before_ = 0;
  int32_t num_accepted_ = 0;
  int32_t num_rejected_ = 0;
};

}  // namespace sluice
