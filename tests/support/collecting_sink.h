// SPDX-License-Identifier: Apache-2.0
// An OutputSink that keeps everything by request, and waits for ends.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace sluice::testing {

struct Collected {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<TokenLogprob> top_logprobs;  // for all tokens, in order
  std::vector<PromptLogprob> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  std::string error;
  ErrorCode error_code = ErrorCode::kInternal;
  int32_t retry_after_s = 0;
  int32_t num_cached_tokens = 0;
  RequestTimings timings;  // from the last output
  std::shared_ptr<const HandoffOffer> offer;
  std::vector<float> pooled;
  int num_ends = 0;
};

class CollectingSink final : public OutputSink {
 public:
  void publish(OutputBatch batch) override {
    const std::scoped_lock lock(mutex_);
    for (TokenOutput& output : batch.outputs) {
      Collected& collected = by_id_[output.request_id];
      EXPECT_TRUE(output.prompt_logprobs.empty() || collected.tokens.empty());
      std::ranges::move(output.prompt_logprobs, std::back_inserter(collected.prompt_logprobs));
      if (output.token != kInvalidToken) {
        collected.tokens.push_back(output.token);
        collected.logprobs.push_back(output.logprob);
        collected.top_logprobs.insert(
            collected.top_logprobs.end(), output.top_logprobs.begin(), output.top_logprobs.end());
      }
      collected.num_cached_tokens = output.num_cached_tokens;
      collected.timings = output.timings;
      if (output.finish_reason != FinishReason::kNone) {
        collected.finish_reason = output.finish_reason;
        collected.error = output.error;
        collected.error_code = output.error_code;
        collected.retry_after_s = output.retry_after_s;
        collected.offer = output.offer;
        collected.pooled = output.pooled;
        ends_.push_back(output.request_id);
        ++collected.num_ends;
      }
    }
    changed_.notify_all();
  }

  // Returns the requests in the order of their ends.
  std::vector<RequestId> ends() {
    const std::scoped_lock lock(mutex_);
    return ends_;
  }

  // Waits for the end of one request. The bound only turns a hang into a failure.
  Collected wait(RequestId id) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return by_id_[id].num_ends > 0; });
    return by_id_[id];
  }

  // Waits until a request has at least this many tokens or has ended.
  Collected wait_tokens(RequestId id, size_t num_tokens) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] {
      return by_id_[id].num_ends > 0 || by_id_[id].tokens.size() >= num_tokens;
    });
    return by_id_[id];
  }

 private:
  // Real models with slow kernels take long; a lost reply fails the test either way.
  static constexpr std::chrono::minutes kPatience{20};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Collected> by_id_;
  std::vector<RequestId> ends_;
};

}  // namespace sluice::testing
