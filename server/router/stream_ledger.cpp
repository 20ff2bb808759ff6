// SPDX-License-Identifier: Apache-2.0
#include "server/router/stream_ledger.h"

#include <algorithm>
#include <utility>

namespace sluice {

StreamLedger::StreamLedger(ValidRequest request)
    : request_(std::move(request)), num_given_(request_.generated.size()) {}

uint32_t StreamLedger::begin_attempt() {
  is_open_ = true;
  num_scored_here_ = 0;
  accepted_before_ = num_accepted_;
  rejected_before_ = num_rejected_;
  return ++attempt_;
}

ValidRequest StreamLedger::attempt_request() const {
  ValidRequest request = request_;
  if (attempt_ > 1) request.handoff.reset();  // it belonged to the first attempt
  // Prompt log-probabilities came before the first token.
  if (request.generated.size() > num_given_) request.sampling.num_prompt_logprobs = -1;
  return request;
}

StreamLedger::Verdict StreamLedger::accept(uint32_t attempt,
                                           int32_t position,
                                           TokenOutput& output) {
  if (!is_current(attempt)) return Verdict::kDrop;
  if (position != num_tokens()) return Verdict::kBroken;
  if (!output.prompt_logprobs.empty()) {
    auto& scored = output.prompt_logprobs;
    const size_t num_published = std::min(scored.size(), num_scored_ - num_scored_here_);
    num_scored_here_ += scored.size();
    scored.erase(scored.begin(), scored.begin() + static_cast<ptrdiff_t>(num_published));
    num_scored_ = std::max(num_scored_, num_scored_here_);
    const bool is_end = output.finish_reason != FinishReason::kNone;
    if (output.token == kInvalidToken && !is_end) {
      return scored.empty() ? Verdict::kDrop : Verdict::kPublish;
    }
  }
  if (output.token != kInvalidToken) {
    if (num_tokens() >= request_.sampling.max_tokens) return Verdict::kBroken;
    request_.generated.push_back(output.token);
    num_losses_ = 0;
  }
  num_accepted_ = accepted_before_ + output.num_accepted_predictions;
  num_rejected_ = rejected_before_ + output.num_rejected_predictions;
  output.num_accepted_predictions = num_accepted_;
  output.num_rejected_predictions = num_rejected_;
  if (output.finish_reason != FinishReason::kNone) is_open_ = false;
  return Verdict::kPublish;
}

}  // namespace sluice
