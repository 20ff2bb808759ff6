// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/scheduler/scheduler_rig.h"
#include "tests/support/new_request.h"

namespace sluice {
namespace {

TEST_F(SchedulerTest, ASharedPromptIsComputedOnceAndOthersPassWhoWaitForIt) {
  SchedulerOptions chunked = options();
  chunked.max_num_batched_tokens = 24;
  build(64, chunked);
  ASSERT_TRUE(add_sevens(7));
  for (uint64_t id = 8; id <= 9; ++id) ASSERT_TRUE(add_sevens(id));
  ASSERT_TRUE(add(10, 6, 4));
  SchedulerOutput output = step();
  EXPECT_EQ(tokens_of(output, 7), 24);
  output = step();
  EXPECT_EQ(tokens_of(output, 7), 16);
  EXPECT_EQ(tokens_of(output, 10), 6);  // came last, and passed the others
  output = step();
  EXPECT_EQ(tokens_of(output, 8), 1);  // 36 of 40 were found, 3 of them copied
  EXPECT_EQ(tokens_of(output, 9), 1);
  EXPECT_EQ(output.copies.size(), 2U);
  EXPECT_EQ(scheduler_->find(RequestId{9})->num_cached_tokens, 39);
}

TEST_F(SchedulerTest, WhoWaitsForAPrefixGoesOnAloneWhenItsLeaderLeaves) {
  SchedulerOptions chunked = options();
  chunked.max_num_batched_tokens = 16;
  build(64, chunked);
  ASSERT_TRUE(add_sevens(7));
  ASSERT_TRUE(add_sevens(8));
  EXPECT_EQ(tokens_of(step(), 7), 16);
  EXPECT_EQ(scheduler_->num_waiting(), 1);
  ASSERT_TRUE(scheduler_->abort(RequestId{7}));
  EXPECT_EQ(tokens_of(step(), 8), 16);
  EXPECT_EQ(scheduler_->find(RequestId{8})->num_cached_tokens, 16);  // already computed tokens
  EXPECT_FALSE(scheduler_->abort(RequestId{7}));
}

TEST_F(SchedulerTest, APromptThatIsScoredWaitsForNobody) {
  SchedulerOptions chunked = options();
  chunked.max_num_batched_tokens = 60;
  build(64, chunked);
  ASSERT_TRUE(add_sevens(7));
  ASSERT_TRUE(add_sevens(8, /*scores_prompt=*/true));
  EXPECT_EQ(tokens_of(step(), 8), 20);  // each of its rows has to be computed
}

TEST_F(SchedulerTest, NobodyWaitsForAPrefixThatGivesWayToOthers) {
  SchedulerOptions levels = options();
  levels.priority_aging_ms = 0;
  build(256, levels);
  ASSERT_TRUE(add(1, 200, 1, /*priority=*/1));
  EXPECT_EQ(tokens_of(step(), 1), 64);
  const std::vector<TokenId> same(200, 1);
  ASSERT_TRUE(scheduler_->add(testing::new_request(2, same, 1)));
  // Other requests of its level take every token, so its leader gets none.
  int32_t num_steps = 0;
  for (uint64_t id = 3; num_steps < 50; ++id, ++num_steps) {
    ASSERT_TRUE(add(id, 64, 1));
    if (tokens_of(step(), 2) > 0) break;
  }
  EXPECT_LT(num_steps, 8);
  EXPECT_EQ(scheduler_->find(RequestId{1})->num_computed_tokens, 64);
}

TEST_F(SchedulerTest, WhoWaitsForAPrefixCanBeAborted) {
  build(64, options());
  ASSERT_TRUE(add_sevens(7));
  ASSERT_TRUE(add_sevens(8));
  const SchedulerOutput output = schedule();
  EXPECT_EQ(output.scheduled.size(), 1U);
  EXPECT_TRUE(scheduler_->abort(RequestId{8}));
  EXPECT_EQ(scheduler_->num_waiting(), 0);
  update(output);
}

TEST_F(SchedulerTest, WhatCouldNeverRunIsRefusedAndAFullQueueToo) {
  SchedulerOptions small = options();
  small.max_num_queued_reqs = 1;
  build(8, small);
  EXPECT_EQ(add(1, 0, 4).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(add(1, 4, 0).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(add(1, 250, 7).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(add(1, 30, 4).error().code, ErrorCode::kInvalidArgument);  // 33 tokens need 9 blocks
  EXPECT_TRUE(add(1, 29, 4));
  EXPECT_EQ(add(1, 4, 4).error().code, ErrorCode::kInvalidArgument);  // id in use
  EXPECT_EQ(add(2, 4, 4).error().code, ErrorCode::kResourceExhausted);
}

TEST_F(SchedulerTest, NoMoreRequestsRunThanAStepHasTokens) {
  SchedulerOptions tight = options();
  tight.max_num_batched_tokens = 3;
  build(64, tight);
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(add(id, id == 2 ? 40 : 1, 100));
  int32_t num_steps_of_four = 0;
  for (int i = 0; i < 60; ++i) {
    const SchedulerOutput output = step();
    // Every running request gets a token in every step, also the prefill of 40 tokens.
    ASSERT_EQ(static_cast<int32_t>(output.scheduled.size()), scheduler_->num_running());
    ASSERT_LE(scheduler_->num_running(), 3);
    num_steps_of_four += tokens_of(output, 4) > 0;
  }
  EXPECT_EQ(num_steps_of_four, 0);
}

TEST_F(SchedulerTest, LastComeRequestIsPreemptedAndKeepsItsTokensAndPlace) {
  build(8, options());
  ASSERT_TRUE(add(1, 8, 20));
  ASSERT_TRUE(add(2, 8, 20));
  std::vector<TokenId> before;
  SchedulerOutput output;
  do {
    before = tokens_of(RequestId{2});
    output = step();
  } while (output.preempted.empty());
  EXPECT_EQ(output.preempted, std::vector<RequestId>{RequestId{2}});
  EXPECT_EQ(tokens_of(output, 1), 1);
  const Request* second = scheduler_->find(RequestId{2});
  EXPECT_EQ(tokens_of(RequestId{2}), before);
  EXPECT_EQ(second->status, RequestStatus::kPreempted);
  EXPECT_EQ(second->num_computed_tokens, 0);
  ASSERT_TRUE(add(3, 4, 1));
  // It returns before later arrivals, and ends.
  for (int i = 0; i < 100 && scheduler_->has_work(); ++i) {
    output = step();
    if (tokens_of(output, 3) > 0) {
      const Request* earlier = scheduler_->find(RequestId{2});
      EXPECT_TRUE(earlier == nullptr || earlier->status == RequestStatus::kRunning);
    }
  }
  EXPECT_FALSE(scheduler_->has_work());
}

TEST_F(SchedulerTest, NewcomerWaitsUntilRunningRequestsHaveRoomForTheirNextBlock) {
  build(8, options());
  ASSERT_TRUE(add(1, 20, 12));  // 5 blocks, 8 in the end
  step();
  ASSERT_TRUE(add(2, 12, 2));  // 3 blocks are free, one is spare
  EXPECT_EQ(tokens_of(step(), 2), 0);
  EXPECT_EQ(scheduler_->num_waiting(), 1);
  for (int i = 0; i < 40 && scheduler_->has_work(); ++i) EXPECT_TRUE(step().preempted.empty());
  EXPECT_FALSE(scheduler_->has_work());
}

TEST_F(SchedulerTest, SecondRequestWithTheSamePromptFindsItCached) {
  build(64, options());
  const std::vector<TokenId> prompt(33, 7);
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(scheduler_->add(testing::new_request(id, prompt, 8)));
    const SchedulerOutput output = schedule();
    EXPECT_EQ(tokens_of(output, id), id == 1 ? 33 : 1);
    EXPECT_EQ(scheduler_->find(RequestId{id})->num_cached_tokens, id == 1 ? 0 : 32);
    update(output);
  }
}

TEST_F(SchedulerTest, AScoredPromptIsComputedAndResumesWhereItWas) {
  SchedulerOptions small = options();
  small.max_num_batched_tokens = 20;
  small.preempt_every = 3;
  build(64, small);
  const std::vector<TokenId> prompt(40, 7);
  const auto add_same = [&](uint64_t id, bool scores_prompt) {
    Request request = testing::new_request(id, prompt, 3);
    request.scores_prompt = scores_prompt;
    return scheduler_->add(std::move(request));
  };
  ASSERT_TRUE(add_same(1, false));
  while (scheduler_->has_work()) step();  // all of it is cached now
  ASSERT_TRUE(add_same(2, true));
  int32_t num_scored = 0;
  int num_preemptions = 0;
  while (num_scored < 39) {
    const SchedulerOutput output = schedule();
    num_preemptions += static_cast<int>(output.preempted.size());
    for (const ScheduledRequest& row : output.scheduled) {
      // No prompt row is skipped; after a preemption it resumes in the block where it was.
      EXPECT_LE(row.num_computed_tokens, num_scored);
      EXPECT_LT(num_scored - row.num_computed_tokens, 5);
      const int32_t end = row.num_computed_tokens + row.num_scheduled_tokens;
      num_scored = std::max(num_scored, std::min(end, 39));
    }
    update(output);
  }
  EXPECT_GT(num_preemptions, 0);
}

TEST_F(SchedulerTest, AbortActsAtOnceWhenIdleAndAtUpdateInFlight) {
  build(64, options());
  ASSERT_TRUE(add(1, 8, 20));
  EXPECT_TRUE(scheduler_->abort(RequestId{1}));  // waiting
  EXPECT_FALSE(scheduler_->abort(RequestId{1}));
  ASSERT_TRUE(add(2, 8, 20));
  step();
  EXPECT_TRUE(scheduler_->abort(RequestId{2}));  // idle between steps
  EXPECT_EQ(kv_->usage().num_referenced, 0);
  ASSERT_TRUE(add(3, 8, 20));
  const SchedulerOutput output = schedule();
  EXPECT_FALSE(scheduler_->abort(RequestId{3}));  // in flight
  EXPECT_FALSE(scheduler_->abort(RequestId{3}));
  EXPECT_GT(kv_->usage().num_referenced, 0);
  EXPECT_EQ(update(output), std::vector<RequestId>{RequestId{3}});
  EXPECT_EQ(kv_->usage().num_referenced, 0);
  EXPECT_FALSE(scheduler_->has_work());
}

TEST_F(SchedulerTest, DecodeIsScheduledBeforeItsInputIsSampled) {
  build(64, options());
  ASSERT_TRUE(add(1, 5, 3));
  const SchedulerOutput first = schedule();
  const SchedulerOutput second = schedule();
  ASSERT_EQ(second.scheduled.size(), 1u);
  EXPECT_EQ(second.scheduled[0].num_computed_tokens, 5);
  EXPECT_EQ(second.scheduled[0].chosen, (RowRange{5, 6}));
  EXPECT_EQ(second.token_ids, std::vector<TokenId>{kInvalidToken});
  update(first);
  const SchedulerOutput third = schedule();
  EXPECT_EQ(third.scheduled.at(0).num_computed_tokens, 6);
  update(second);
  EXPECT_TRUE(schedule().scheduled.empty());  // three tokens are pending
  update(third);
  EXPECT_FALSE(scheduler_->has_work());
}

TEST_F(SchedulerTest, RequestThatEndsWithAStepInFlightKeepsItsBlocksUntilThatRetires) {
  build(64, options());
  ASSERT_TRUE(add(1, 5, 9));
  const SchedulerOutput first = schedule();
  const SchedulerOutput second = schedule();
  std::vector<RequestId> aborted;
  const TokenId token = 42;
  const std::vector<StepResult> last = {{RequestId{1}, {&token, 1}, true}};
  scheduler_->update(first, last, 0, aborted);
  EXPECT_EQ(scheduler_->check_integrity(), "");
  EXPECT_GT(kv_->usage().num_referenced, 0);
  EXPECT_EQ(scheduler_->find(RequestId{1})->status, RequestStatus::kFinished);
  EXPECT_TRUE(schedule().scheduled.empty());
  update(second);
  EXPECT_EQ(kv_->usage().num_referenced, 0);
  EXPECT_EQ(scheduler_->find(RequestId{1}), nullptr);
  EXPECT_TRUE(aborted.empty());
}

// A window keeps two of its blocks, and a prompt computed whole needs all three at once.
TEST_F(SchedulerTest, OldestFailsWithAReasonWhenNothingCanEverRun) {
  SchedulerOptions whole = options();
  whole.whole_prompts = true;
  whole.max_model_len = whole.max_num_batched_tokens;
  build({.kind = KvGroupKind::kWindow, .window = 3, .num_blocks = 2}, /*caches=*/false, whole);
  ASSERT_TRUE(add(1, 12, 1));
  ASSERT_TRUE(add(2, 8, 1));
  const SchedulerOutput output = schedule();
  EXPECT_FALSE(output.is_starved);
  ASSERT_EQ(output.failed.size(), 1u);
  EXPECT_EQ(output.failed[0].id, RequestId{1});
  EXPECT_NE(output.failed[0].reason, nullptr);
  EXPECT_EQ(scheduler_->find(RequestId{1}), nullptr);
  EXPECT_EQ(tokens_of(step(), 2), 8);
}

TEST_F(SchedulerTest, WhoLacksBlocksThatOthersHoldIsStarvedAndGoesOnWhenTheyComeBack) {
  build(3, options());
  ASSERT_TRUE(kv_->allocate_slots(RequestId{99}, 12));
  ASSERT_TRUE(add(1, 6, 5));
  ASSERT_TRUE(add(2, 4, 2));
  const SchedulerOutput waiting = schedule();
  EXPECT_TRUE(waiting.scheduled.empty());
  EXPECT_TRUE(waiting.is_starved);
  EXPECT_TRUE(waiting.failed.empty());
  kv_->free(RequestId{99});
  const SchedulerOutput first = step();
  EXPECT_FALSE(first.is_starved);
  EXPECT_EQ(tokens_of(first, 1), 6);
  const BlockId other = [&] {
    EXPECT_TRUE(kv_->allocate_slots(RequestId{99}, 4));
    return kv_->block_table(RequestId{99}, 0).front();
  }();
  kv_->begin_transfer(0, other);
  kv_->free(RequestId{99});
  EXPECT_EQ(tokens_of(step(), 1), 1);
  EXPECT_EQ(tokens_of(step(), 1), 1);
  const SchedulerOutput running = schedule();  // its ninth token wants a third block
  EXPECT_TRUE(running.scheduled.empty());
  EXPECT_TRUE(running.is_starved);
  EXPECT_TRUE(running.failed.empty());
  kv_->end_transfer(0, other);
  EXPECT_EQ(tokens_of(step(), 1), 1);
  while (scheduler_->has_work()) EXPECT_FALSE(step().is_starved);
}

TEST_F(SchedulerTest, PreemptionEveryStepStillEndsAndChangesNoToken) {
  SchedulerOptions forced = options();
  forced.preempt_every = 1;
  forced.max_num_batched_tokens = 6;
  build(64, forced);
  ASSERT_TRUE(add(1, 20, 6));
  ASSERT_TRUE(add(2, 20, 6));
  int steps = 0;
  size_t num_preempted = 0;
  while (scheduler_->has_work()) {
    num_preempted += step().preempted.size();
    ASSERT_LT(++steps, 400);
  }
  EXPECT_GT(num_preempted, 5u);
}

// What a request finds again was its own, and what it computes again was not asked for.
TEST_F(SchedulerTest, APreemptedRequestCountsOnceInQueriesAndHits) {
  SchedulerOptions forced = options();
  forced.preempt_every = 1;
  build(64, forced);
  ASSERT_TRUE(add(1, 20, 6));
  size_t num_preempted = 0;
  while (scheduler_->has_work()) num_preempted += step().preempted.size();
  EXPECT_GT(num_preempted, 3u);
  EXPECT_EQ(kv_->usage().prefix_queries, 20u);
  EXPECT_EQ(kv_->usage().prefix_hits, 0u);
  // Another request with this prompt counts what it finds, once.
  const std::vector<TokenId> same(20, 1);
  ASSERT_TRUE(scheduler_->add(testing::new_request(2, same, 6)));
  while (scheduler_->has_work()) num_preempted += step().preempted.size();
  EXPECT_GT(num_preempted, 6u);
  EXPECT_EQ(kv_->usage().prefix_queries, 40u);
  EXPECT_EQ(kv_->usage().prefix_hits, 19u);
}

TEST_F(SchedulerTest, FailedStepIsNotKeptAsAPrefix) {
  build(64, options());
  ASSERT_TRUE(add(1, 8, 4));
  const SchedulerOutput output = schedule();
  const std::vector<StepResult> failed = {{RequestId{1}, {}, true}};
  std::vector<RequestId> aborted;
  scheduler_->update(output, failed, 0, aborted);
  EXPECT_EQ(kv_->usage().num_cached, 0);
  EXPECT_FALSE(scheduler_->has_work());
}

// A restoring request holds nothing, so that no block returns when it leaves.
TEST_F(SchedulerTest, ARequestThatRestartsBeginsAgainOnceItsStepsHaveRetired) {
  build(32, options());
  ASSERT_TRUE(add(1, 20, 6));
  ASSERT_TRUE(add(2, 9, 6));
  const SchedulerOutput first = schedule();
  const SchedulerOutput second = schedule();
  const TokenId token = 7;
  std::vector<RequestId> aborted;
  scheduler_->update(first,
                     std::vector<StepResult>{{.id = RequestId{1}, .tokens = {}, .restarts = true},
                                             {.id = RequestId{2}, .tokens = {&token, 1}}},
                     0,
                     aborted);
  const SchedulerOutput third = schedule();
  for (const ScheduledRequest& row : third.scheduled) EXPECT_EQ(row.id, RequestId{2});
  update(second);
  EXPECT_EQ(scheduler_->find(RequestId{1})->num_generated(), 0);
  update(third);
  const SchedulerOutput fourth = schedule();
  EXPECT_EQ(fourth.preempted, std::vector<RequestId>{RequestId{1}});
  const auto row = std::ranges::find(fourth.scheduled, RequestId{1}, &ScheduledRequest::id);
  ASSERT_NE(row, fourth.scheduled.end());
  EXPECT_EQ(row->num_computed_tokens, 0);
  EXPECT_EQ(row->num_scheduled_tokens, 20);
  update(fourth);
  EXPECT_EQ(scheduler_->find(RequestId{1})->num_generated(), 1);
  while (scheduler_->has_work()) step();
}

TEST_F(SchedulerTest, ARequestThatRestartsCanBeAborted) {
  build(32, options());
  ASSERT_TRUE(add(1, 20, 6));
  const SchedulerOutput first = schedule();
  const SchedulerOutput second = schedule();
  std::vector<RequestId> aborted;
  scheduler_->update(first, {{{.id = RequestId{1}, .tokens = {}, .restarts = true}}}, 0, aborted);
  EXPECT_FALSE(scheduler_->abort(RequestId{1}));
  EXPECT_EQ(update(second), std::vector<RequestId>{RequestId{1}});
  EXPECT_FALSE(scheduler_->has_work());
}

TEST_F(SchedulerTest, WhoDidNotFitIsTriedAgainWhenOneThatWasBeingRestoredHasLeft) {
  SchedulerOptions forced = options();
  forced.preempt_every = 1;
  forced.restores_preempted = true;
  build(20, forced);
  ASSERT_TRUE(add(1, 8, 8));
  ASSERT_TRUE(add(2, 40, 8));
  for (int i = 0; i < 10 && scheduler_->num_restoring() < 2; ++i) step();
  ASSERT_EQ(scheduler_->num_restoring(), 2);
  ASSERT_TRUE(add(3, 24, 4));
  ASSERT_TRUE(step().scheduled.empty());
  ASSERT_TRUE(scheduler_->abort(RequestId{2}));
  EXPECT_EQ(tokens_of(step(), 3), 24);
}

TEST_F(SchedulerTest, NeitherIsTheStepThatWasInFlightBehindOneThatFailed) {
  build(64, options());
  ASSERT_TRUE(add(1, 15, 4));
  const SchedulerOutput first = schedule();
  const SchedulerOutput second = schedule();
  ASSERT_EQ(second.scheduled.size(), 1U);
  std::vector<RequestId> aborted;
  const std::vector<StepResult> failed = {{RequestId{1}, {}, true}};
  scheduler_->update(first, failed, 0, aborted);
  const TokenId token = 5;
  const std::vector<StepResult> chosen = {{RequestId{1}, {&token, 1}, false}};
  scheduler_->update(second, chosen, 0, aborted);
  EXPECT_EQ(kv_->usage().num_cached, 0);
  EXPECT_FALSE(scheduler_->has_work());
}

// In a window group a chunk needs more blocks than are kept: a newcomer whose tenant got less could
// take them all, be preempted for the older request, and take them again.
TEST_F(SchedulerTest, NewcomersDoNotTakeForEverWhatARunningRequestIsShortOf) {
  SchedulerOptions chunked = options();
  chunked.long_prefill_token_threshold = 24;  // six of seven blocks
  build({.kind = KvGroupKind::kWindow, .window = 3, .num_blocks = 7}, /*caches=*/false, chunked);
  ASSERT_TRUE(add_of(1, 1, 150));
  step();
  ++now_ms_;
  ASSERT_TRUE(add_of(2, 2, 60));
  int num_steps = 0;
  for (; scheduler_->has_work() && num_steps < 100; ++num_steps) step();
  EXPECT_LT(num_steps, 100);
}

// Stages: two steps at a time have halves of the decodes in turn, and chunks of a prompt follow
// each other beside them.
TEST_F(SchedulerTest, StepsInFlightAreOverDisjointRequests) {
  SchedulerOptions disjoint = options();
  disjoint.steps_in_flight = 2;
  disjoint.max_num_batched_tokens = 12;
  disjoint.max_num_seqs = 5;
  build(64, disjoint);
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(add(id, 3, 8));
  step();
  const auto ids_of = [](const SchedulerOutput& output) {
    std::vector<uint64_t> ids;
    for (const ScheduledRequest& row : output.scheduled) ids.push_back(row.id.value);
    return ids;
  };
  SchedulerOutput first = schedule();
  EXPECT_EQ(ids_of(first), (std::vector<uint64_t>{1, 2}));
  ASSERT_TRUE(add(5, 24, 2));
  SchedulerOutput second = schedule();
  EXPECT_EQ(ids_of(second), (std::vector<uint64_t>{3, 4, 5}));
  EXPECT_EQ(tokens_of(second, 5), 10);
  const SchedulerOutput third = schedule();  // of who decodes, all are in flight
  EXPECT_EQ(ids_of(third), std::vector<uint64_t>{5});
  EXPECT_EQ(tokens_of(third, 5), 12);
  update(first);
  first = schedule();
  EXPECT_EQ(ids_of(first), (std::vector<uint64_t>{1, 2, 5}));
  update(second);
  second = schedule();
  EXPECT_EQ(ids_of(second), (std::vector<uint64_t>{3, 4}));
  for (const SchedulerOutput& output : {third, first, second}) update(output);
}

// Whose drafts are in flight counts when a step's part is taken.
TEST_F(SchedulerTest, DraftsInFlightDoNotShrinkTheNextStep) {
  SchedulerOptions disjoint = options();
  disjoint.steps_in_flight = 2;
  disjoint.max_chosen_rows = 16;
  disjoint.speculation.is_fixed = true;
  build(64, disjoint);
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(add(id, 3, 8));
  step();
  Draft draft;
  for (const TokenId token : {5, 6}) draft.push(token, 0);
  for (uint64_t id = 1; id <= 2; ++id) scheduler_->offer_drafts(RequestId{id}, draft);
  const SchedulerOutput first = schedule();
  ASSERT_EQ(first.scheduled.size(), 2U);
  EXPECT_EQ(tokens_of(first, 1), 3);
  EXPECT_EQ(tokens_of(first, 2), 3);
  const SchedulerOutput second = schedule();
  EXPECT_EQ(second.scheduled.size(), 2U);
  EXPECT_EQ(tokens_of(second, 3), 1);
  EXPECT_EQ(tokens_of(second, 4), 1);
  for (const SchedulerOutput& output : {first, second}) update(output);
}

}  // namespace
}  // namespace sluice
