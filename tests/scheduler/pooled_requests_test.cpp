// SPDX-License-Identifier: Apache-2.0
// Requests that choose no token: they end when their prompts are computed, and say which rows'
// states are wanted.
#include <vector>

#include "tests/scheduler/scheduler_rig.h"
#include "tests/support/new_request.h"

namespace sluice {
namespace {

class PooledRequests : public SchedulerTest {
 protected:
  Expected<int32_t> add_pooled(uint64_t id, PooledRows rows, int32_t num_tokens = 40) {
    Request request =
        testing::new_request(id, std::vector<TokenId>(static_cast<size_t>(num_tokens), 7), 1);
    request.pooled = rows;
    return scheduler_->add(std::move(request));
  }

  // Steps to the end; the positions of all wanted rows, in order.
  std::vector<int32_t> wanted_rows() {
    std::vector<int32_t> rows;
    while (scheduler_->has_work()) {
      for (const ScheduledRequest& item : step().scheduled) {
        EXPECT_TRUE(item.chosen.empty());
        for (int32_t row = item.embedded.begin; row < item.embedded.end; ++row) {
          rows.push_back(row);
        }
        num_ends_ += item.ends ? 1 : 0;
        first_rows_.push_back(item.num_computed_tokens);
      }
    }
    return rows;
  }

  static std::vector<int32_t> all_rows(int32_t count) {
    std::vector<int32_t> rows;
    for (int32_t row = 0; row < count; ++row) rows.push_back(row);
    return rows;
  }

  int num_ends_ = 0;
  std::vector<int32_t> first_rows_;
};

TEST_F(PooledRequests, TheLastRowComesWithTheLastChunk) {
  SchedulerOptions small = options();
  small.max_num_batched_tokens = 16;
  build(64, small);
  ASSERT_TRUE(add_pooled(1, PooledRows::kLast));
  EXPECT_EQ(wanted_rows(), std::vector<int32_t>{39});
  EXPECT_EQ(num_ends_, 1);
  EXPECT_EQ(first_rows_, (std::vector<int32_t>{0, 16, 32}));
  EXPECT_EQ(kv_->usage().num_referenced, 0);
}

TEST_F(PooledRequests, TheLastRowAloneIsComputedWhereTheRestIsCached) {
  build(64, options());
  ASSERT_TRUE(add_pooled(1, PooledRows::kLast, 41));
  wanted_rows();
  first_rows_.clear();
  ASSERT_TRUE(add_pooled(2, PooledRows::kLast, 41));
  EXPECT_EQ(wanted_rows(), std::vector<int32_t>{40});
  EXPECT_EQ(first_rows_, std::vector<int32_t>{40});
}

TEST_F(PooledRequests, RowsThatAllCountAreComputedWhateverIsCached) {
  build(64, options());
  ASSERT_TRUE(add_pooled(1, PooledRows::kLast));
  wanted_rows();
  ASSERT_TRUE(add_pooled(2, PooledRows::kAll));
  EXPECT_EQ(wanted_rows(), all_rows(40));
  ASSERT_TRUE(add_pooled(3, PooledRows::kFirst));
  EXPECT_EQ(wanted_rows(), std::vector<int32_t>{0});
}

TEST_F(PooledRequests, APreemptionGivesNoRowTwice) {
  SchedulerOptions small = options();
  small.max_num_batched_tokens = 12;
  small.preempt_every = 2;
  build(64, small);
  ASSERT_TRUE(add_pooled(1, PooledRows::kAll));
  EXPECT_EQ(wanted_rows(), all_rows(40));
  EXPECT_EQ(num_ends_, 1);
}

TEST_F(PooledRequests, APromptMayFillTheContext) {
  build(80, options());
  ASSERT_TRUE(add_pooled(1, PooledRows::kLast, 256));
  EXPECT_EQ(wanted_rows(), std::vector<int32_t>{255});
  EXPECT_FALSE(add_pooled(2, PooledRows::kLast, 257));
}

TEST_F(PooledRequests, AWholePromptWaitsForAStepThatHoldsIt) {
  SchedulerOptions whole = options();
  whole.max_model_len = 64;
  whole.whole_prompts = true;
  build(64, whole);
  ASSERT_TRUE(add_pooled(1, PooledRows::kAll, 50));
  ASSERT_TRUE(add_pooled(2, PooledRows::kAll, 20));
  ASSERT_TRUE(add_pooled(3, PooledRows::kAll, 10));
  const SchedulerOutput first = step();
  EXPECT_EQ(tokens_of(first, 1), 50);
  EXPECT_EQ(tokens_of(first, 2), 0);  // 14 tokens are left
  const SchedulerOutput second = step();
  EXPECT_EQ(tokens_of(second, 2), 20);
  EXPECT_EQ(tokens_of(second, 3), 10);
  EXPECT_FALSE(scheduler_->has_work());
}

TEST_F(PooledRequests, AbortInFlightEndsAtUpdate) {
  build(64, options());
  ASSERT_TRUE(add_pooled(1, PooledRows::kLast));
  const SchedulerOutput output = schedule();
  EXPECT_FALSE(scheduler_->abort(RequestId{1}));
  EXPECT_EQ(update(output), std::vector<RequestId>{RequestId{1}});
  EXPECT_FALSE(scheduler_->has_work());
}

}  // namespace
}  // namespace sluice
