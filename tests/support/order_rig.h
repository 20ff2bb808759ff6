// SPDX-License-Identifier: Apache-2.0
// Runs steps from hand-written orders: one request at a time, in a slot and blocks of its own, for
// configurations with blocks of 16 tokens and at least four sequences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/parallel/parallel.h"
#include "engine/request.h"
#include "engine/run/model_runner.h"
#include "engine/run/step_executor.h"
#include "engine/run/step_order.h"

namespace sluice::testing {

inline constexpr int32_t kOrderBlockSize = 16;
inline constexpr int32_t kOrderSlot = 3;

// A runner, and an executor of its steps.
class OrderRig {
 public:
  explicit OrderRig(const Config& config) {
    auto runner = ModelRunner::create(config, {.on_cpu = make_local_ranks, .on_devices = {}});
    EXPECT_TRUE(runner.has_value()) << (runner ? "" : runner.error().message);
    runner_ = std::move(*runner);
    executor_.emplace(*runner_,
                      StepExecutor::Options{.overlap = config.overlap,
                                            .num_slots = config.max_num_seqs,
                                            .max_logprobs = 2,
                                            .end_tokens = {}});
    if (!executor_->is_threaded()) runner_->device().enter();
  }

  StepExecutor& executor() { return *executor_; }

  void submit(const StepOrder& order) {
    executor_->next_order() = order;
    executor_->submit();
  }

 private:
  std::unique_ptr<ModelRunner> runner_;
  std::optional<StepExecutor> executor_;
};

// Returns rows [begin, begin + tokens.size()) of the request in its slot, alone and in own blocks.
inline StepOrder order_of(RequestId id, int32_t begin, const std::vector<TokenId>& tokens) {
  StepOrder order;
  ScheduledRequest& item = order.decision.scheduled.emplace_back();
  item.id = id;
  item.slot = kOrderSlot;
  item.num_computed_tokens = begin;
  item.num_scheduled_tokens = static_cast<int32_t>(tokens.size());
  order.decision.token_ids = tokens;
  order.decision.total_tokens = item.num_scheduled_tokens;
  for (int32_t block = 0; block < ceil_div(item.end(), kOrderBlockSize); ++block) {
    order.decision.blocks.emplace_back(2 * block + 1);
  }
  return order;
}

// Returns a row of the last known token, after which one is chosen, and rows of drafts.
inline StepOrder choice_of(RequestId id, int32_t begin, const std::vector<TokenId>& tokens) {
  StepOrder order = order_of(id, begin, tokens);
  ScheduledRequest& item = order.decision.scheduled.front();
  item.num_draft_tokens = item.num_scheduled_tokens - 1;
  item.chosen = {begin, item.end()};
  return order;
}

inline std::shared_ptr<const RequestRecord> begun(RequestId id, const ValidRequest& request) {
  return std::make_shared<const RequestRecord>(
      RequestRecord{.id = id,
                    .slot = kOrderSlot,
                    .log = TokenLog(request.prompt, request.prompt.size()),
                    .num_prompt_tokens = static_cast<int32_t>(request.prompt.size()),
                    .sampling = request.sampling});
}

// Returns the states of all tokens, computed `piece` rows a step.
inline std::vector<std::vector<float>> embed(const Config& config,
                                             const std::vector<TokenId>& tokens,
                                             int32_t piece) {
  OrderRig rig(config);
  const auto length = static_cast<int32_t>(tokens.size());
  ValidRequest request;
  request.prompt = tokens;
  std::vector<std::vector<float>> states;
  for (int32_t begin = 0; begin < length; begin += piece) {
    const int32_t end = std::min(length, begin + piece);
    StepOrder order = order_of(RequestId(1), begin, {&tokens[begin], &tokens[begin] + end - begin});
    if (begin == 0) order.begun.push_back(begun(RequestId(1), request));
    order.decision.scheduled.front().embedded = {begin, end};
    rig.submit(order);
    for (const EmbeddedRow& row : rig.executor().retire().embedded) {
      EXPECT_EQ(row.id, RequestId(1));
      EXPECT_EQ(row.position, static_cast<int32_t>(states.size()));
      states.emplace_back(row.state.begin(), row.state.end());
    }
  }
  return states;
}

}  // namespace sluice::testing
