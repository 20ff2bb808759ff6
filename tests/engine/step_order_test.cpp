// SPDX-License-Identifier: Apache-2.0
// The requests that orders add to the scheduler's decisions: each once, with everything its rows
// will need, and again when it has gone.
#include "engine/loop/step_orders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/loop/request_table.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"
#include "tests/support/collecting_sink.h"

namespace sluice {
namespace {

class StepOrdersTest : public ::testing::Test {
 protected:
  void add(uint64_t id, bool has_penalty, int32_t max_tokens = 8) {
    ValidRequest request;
    request.prompt.assign(20, static_cast<TokenId>(id));
    request.generated = {5};
    request.sampling.max_tokens = max_tokens;
    if (has_penalty) request.sampling.presence_penalty = 0.5F;
    const RequestState& state =
        requests_.add(RequestState(RequestId(id), std::move(request), sink_, 128));
    const Expected<int32_t> slot = scheduler_.add(*state.request);
    ASSERT_TRUE(slot.has_value());
    state.record->slot = *slot;
  }

  // Runs a step that chooses token 9 for all requests.
  const StepOrder& step(std::vector<uint64_t> ending = {}) {
    const SchedulerOutput& decision = scheduler_.schedule(0);
    orders_.write(decision, requests_, order_);
    std::vector<StepResult> results;
    for (const ScheduledRequest& item : decision.scheduled) {
      const bool ends = std::ranges::find(ending, item.id.value) != ending.end();
      results.push_back({.id = item.id, .tokens = chosen_, .finished = ends});
      if (ends) requests_.end(item.id, {}, stats_);
    }
    std::vector<RequestId> aborted;
    scheduler_.update(decision, results, 1, aborted);
    return order_;
  }

  KvCacheManager kv_{{.block_size = 16, .max_num_seqs = 2, .max_model_len = 128},
                     {{.num_blocks = 32}}};
  Scheduler scheduler_{{.max_num_seqs = 2, .max_model_len = 128, .preempt_every = 3}, kv_};
  RequestTable requests_;
  testing::CollectingSink sink_;
  EngineStats stats_;
  StepOrders orders_{scheduler_.num_slots()};
  StepOrder order_;
  const std::vector<TokenId> chosen_ = {9};
};

TEST_F(StepOrdersTest, BringEachRequestOnceAlsoWhereItIsPreempted) {
  add(1, false);
  add(2, true);
  {
    const StepOrder& order = step();
    ASSERT_EQ(order.begun.size(), 2U);
    EXPECT_TRUE(order.ended_slots.empty());
    for (const auto& begun : order.begun) {
      const RequestRecord& record = *begun;
      EXPECT_EQ(record.num_prompt_tokens, 20);
      EXPECT_EQ(record.num_given, 1);
      EXPECT_EQ(reads_tokens(record), record.id == RequestId(2));
      EXPECT_EQ(record.log.tokens().data(), scheduler_.find(record.id)->tokens().data());
      const auto item =
          std::ranges::find(order.decision.scheduled, record.id, &ScheduledRequest::id);
      ASSERT_NE(item, order.decision.scheduled.end());
      EXPECT_EQ(item->slot, record.slot);
    }
  }
  int num_preempted = 0;
  for (int i = 0; i < 5; ++i) {
    const StepOrder& order = step();
    num_preempted += static_cast<int>(order.decision.preempted.size());
    EXPECT_TRUE(order.begun.empty());
    EXPECT_TRUE(order.ended_slots.empty());
  }
  EXPECT_GT(num_preempted, 0);
}

TEST_F(StepOrdersTest, SayWhichSlotsAreFree) {
  add(1, false);
  const int32_t slot = step().begun.front()->slot;
  step({1});
  add(2, true);
  const StepOrder& order = step();
  ASSERT_EQ(order.ended_slots, std::vector<int32_t>{slot});
  ASSERT_EQ(order.begun.size(), 1U);
  EXPECT_EQ(order.begun.front()->id, RequestId(2));
  EXPECT_TRUE(step().ended_slots.empty());
}

// An idle engine has no next order.
TEST_F(StepOrdersTest, TheSlotsOfTheLastOnesThatEndedAreTakenWithoutAnOrder) {
  add(1, false);
  const int32_t slot = step().begun.front()->slot;
  std::vector<int32_t> slots;
  orders_.take_ended(requests_, slots);
  EXPECT_TRUE(slots.empty());
  step({1});
  orders_.take_ended(requests_, slots);
  EXPECT_EQ(slots, std::vector<int32_t>{slot});
  add(2, true);
  const StepOrder& order = step();
  EXPECT_TRUE(order.ended_slots.empty());
  EXPECT_EQ(order.begun.size(), 1U);
}

}  // namespace
}  // namespace sluice
