// SPDX-License-Identifier: Apache-2.0
#include "server/router/stream_ledger.h"

#include <gtest/gtest.h>

#include <optional>

#include "server/router/worker_health.h"

namespace sluice {
namespace {

using Fate = StreamLedger::Verdict;
using std::chrono::milliseconds;
using std::chrono::seconds;

ValidRequest request_of(int32_t max_tokens) {
  ValidRequest request;
  request.prompt = {1, 2, 3};
  request.sampling.seed = 99;
  request.sampling.max_tokens = max_tokens;
  return request;
}

TokenOutput token(TokenId id, FinishReason reason = FinishReason::kNone) {
  TokenOutput output;
  output.token = id;
  output.finish_reason = reason;
  return output;
}

TokenOutput scored(std::vector<TokenId> ids) {
  TokenOutput output;
  for (const TokenId id : ids) output.prompt_logprobs.push_back({id, 0, 1, {}});
  return output;
}

TEST(StreamLedger, TheNextAttemptBeginsBehindTheTokensThatWerePublished) {
  StreamLedger ledger(request_of(10));
  const uint32_t first = ledger.begin_attempt();
  for (const TokenId id : {40, 41}) {
    TokenOutput output = token(id);
    EXPECT_EQ(ledger.accept(first, ledger.num_tokens(), output), Fate::kPublish);
  }
  EXPECT_TRUE(ledger.count_loss(5));
  const uint32_t second = ledger.begin_attempt();
  EXPECT_NE(first, second);
  const ValidRequest next = ledger.attempt_request();
  EXPECT_EQ(next.generated, (std::vector<TokenId>{40, 41}));
  EXPECT_EQ(next.prompt, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(next.sampling.seed, 99U);
  TokenOutput late = token(42);
  EXPECT_EQ(ledger.accept(first, 2, late), Fate::kDrop) << "of the worker that was lost";
  TokenOutput next_token = token(42);
  EXPECT_EQ(ledger.accept(second, 2, next_token), Fate::kPublish);
  EXPECT_EQ(ledger.num_tokens(), 3);
}

TEST(StreamLedger, NothingCountsBetweenAttempts) {
  StreamLedger ledger(request_of(10));
  const uint32_t first = ledger.begin_attempt();
  ledger.end_attempt();
  TokenOutput output = token(40);
  EXPECT_EQ(ledger.accept(first, 0, output), Fate::kDrop);
}

TEST(StreamLedger, AGapOrARepetitionIsNotPublished) {
  StreamLedger ledger(request_of(10));
  const uint32_t attempt = ledger.begin_attempt();
  TokenOutput output = token(40);
  EXPECT_EQ(ledger.accept(attempt, 1, output), Fate::kBroken);
  EXPECT_EQ(ledger.accept(attempt, 0, output), Fate::kPublish);
  EXPECT_EQ(ledger.accept(attempt, 0, output), Fate::kBroken);
}

TEST(StreamLedger, MoreTokensThanWereAskedForAreNotPublished) {
  StreamLedger ledger(request_of(1));
  const uint32_t attempt = ledger.begin_attempt();
  TokenOutput output = token(40);
  EXPECT_EQ(ledger.accept(attempt, 0, output), Fate::kPublish);
  TokenOutput more = token(41);
  EXPECT_EQ(ledger.accept(attempt, 1, more), Fate::kBroken);
}

TEST(StreamLedger, NothingFollowsTheEnd) {
  StreamLedger ledger(request_of(10));
  const uint32_t attempt = ledger.begin_attempt();
  TokenOutput output = token(40, FinishReason::kStop);
  EXPECT_EQ(ledger.accept(attempt, 0, output), Fate::kPublish);
  EXPECT_EQ(ledger.accept(attempt, 1, output), Fate::kDrop);
}

TEST(StreamLedger, LogprobsOfThePromptAreToldOnce) {
  ValidRequest request = request_of(10);
  request.sampling.num_prompt_logprobs = 2;
  StreamLedger ledger(std::move(request));
  const uint32_t first = ledger.begin_attempt();
  TokenOutput output = scored({2, 3});
  EXPECT_EQ(ledger.accept(first, 0, output), Fate::kPublish);
  ASSERT_TRUE(ledger.count_loss(5));

  const uint32_t second = ledger.begin_attempt();
  EXPECT_EQ(ledger.attempt_request().sampling.num_prompt_logprobs, 2);
  output = scored({2});
  EXPECT_EQ(ledger.accept(second, 0, output), Fate::kDrop);
  output = scored({3, 4});
  EXPECT_EQ(ledger.accept(second, 0, output), Fate::kPublish);
  ASSERT_EQ(output.prompt_logprobs.size(), 1U);
  EXPECT_EQ(output.prompt_logprobs[0].token, 4);
  output = token(40);
  EXPECT_EQ(ledger.accept(second, 0, output), Fate::kPublish);
  ASSERT_TRUE(ledger.count_loss(5));
  ledger.begin_attempt();
  EXPECT_EQ(ledger.attempt_request().sampling.num_prompt_logprobs, -1) << "all have been told";
}

TEST(StreamLedger, AHandoffIsTheFirstAttempts) {
  ValidRequest request = request_of(10);
  request.handoff.emplace();
  StreamLedger ledger(std::move(request));
  ledger.begin_attempt();
  EXPECT_TRUE(ledger.attempt_request().handoff);
  ASSERT_TRUE(ledger.count_loss(5));
  ledger.begin_attempt();
  EXPECT_FALSE(ledger.attempt_request().handoff);
}

TEST(StreamLedger, CountsOfPredictionsGoOn) {
  StreamLedger ledger(request_of(10));
  const uint32_t first = ledger.begin_attempt();
  TokenOutput output = token(40);
  output.num_accepted_predictions = 3;
  output.num_rejected_predictions = 1;
  EXPECT_EQ(ledger.accept(first, 0, output), Fate::kPublish);
  ASSERT_TRUE(ledger.count_loss(5));
  const uint32_t second = ledger.begin_attempt();
  output = token(41);
  output.num_accepted_predictions = 2;
  EXPECT_EQ(ledger.accept(second, 1, output), Fate::kPublish);
  EXPECT_EQ(output.num_accepted_predictions, 5);
  EXPECT_EQ(output.num_rejected_predictions, 1);
}

TEST(StreamLedger, TooManyLossesInARowWithoutATokenAreTheEnd) {
  StreamLedger ledger(request_of(10));
  for (int i = 0; i < 3; ++i) {
    const uint32_t attempt = ledger.begin_attempt();
    TokenOutput output = token(40);
    ASSERT_EQ(ledger.accept(attempt, ledger.num_tokens(), output), Fate::kPublish);
    EXPECT_TRUE(ledger.count_loss(2)) << "each attempt got on";
  }
  ledger.begin_attempt();
  EXPECT_TRUE(ledger.count_loss(2));
  ledger.begin_attempt();
  EXPECT_FALSE(ledger.count_loss(2));
}

TEST(StreamLedger, ErrorsAreTriedAgainTwice) {
  StreamLedger ledger(request_of(10));
  EXPECT_TRUE(ledger.may_retry());
  ledger.count_retry();
  EXPECT_TRUE(ledger.may_retry());
  ledger.count_retry();
  EXPECT_FALSE(ledger.may_retry());
}

TEST(StreamLedger, AnEndThatComesWithPromptLogprobsIsTheEnd) {
  ValidRequest request = request_of(10);
  request.sampling.num_prompt_logprobs = 0;
  StreamLedger ledger(request);
  const uint32_t first = ledger.begin_attempt();
  TokenOutput output = scored({2, 3});
  output.token = 40;
  output.finish_reason = FinishReason::kStop;
  EXPECT_EQ(ledger.accept(first, 0, output), Fate::kPublish);
  EXPECT_EQ(ledger.num_tokens(), 1);
  EXPECT_FALSE(ledger.is_current(first));
}

TEST(StreamLedger, ATokenThatComesWithPromptLogprobsCounts) {
  ValidRequest request = request_of(10);
  request.sampling.num_prompt_logprobs = 0;
  StreamLedger ledger(request);
  const uint32_t first = ledger.begin_attempt();
  TokenOutput output = scored({2, 3});
  output.token = 40;
  EXPECT_EQ(ledger.accept(first, 0, output), Fate::kPublish);
  TokenOutput next = token(41);
  EXPECT_EQ(ledger.accept(first, 1, next), Fate::kPublish);
  EXPECT_EQ(ledger.attempt_request().generated, (std::vector<TokenId>{40, 41}));
}

using Status = WorkerHealth::Status;
const WorkerHealth::Time kStart{seconds(1000)};

WorkerLoad load_of(uint64_t num_steps, int64_t num_running) {
  return {.epoch = 1, .num_steps = num_steps, .num_running = num_running, .num_open = std::nullopt};
}

TEST(WorkerHealth, AWorkerThatStopsToAnswerIsOutWithinFiveSeconds) {
  WorkerHealth health;
  EXPECT_EQ(health.status(kStart), Status::kUnknown);
  health.answered(load_of(1, 0), kStart);
  EXPECT_EQ(health.status(kStart + seconds(3)), Status::kLive);
  EXPECT_EQ(health.status(kStart + seconds(4)), Status::kSilent);
  // Stopped right after an answer; the next ping is a second later and has a second.
  EXPECT_LE(WorkerHealth::kMostSilence + WorkerHealth::kPingInterval, seconds(5));
  health.answered(load_of(1, 0), kStart + seconds(9));
  EXPECT_EQ(health.status(kStart + seconds(9)), Status::kLive);
}

TEST(WorkerHealth, ALostConnectionIsSilenceAtOnce) {
  WorkerHealth health;
  health.answered(load_of(1, 0), kStart);
  health.lost();
  EXPECT_EQ(health.status(kStart), Status::kSilent);
}

TEST(WorkerHealth, AWorkerWhoseWorkDoesNotMoveIsStuck) {
  WorkerHealth health;
  for (int i = 0; i <= 40; ++i) health.answered(load_of(7, 2), kStart + seconds(i));
  EXPECT_EQ(health.status(kStart + seconds(40)), Status::kStuck);
  health.answered(load_of(8, 2), kStart + seconds(41));
  EXPECT_EQ(health.status(kStart + seconds(41)), Status::kLive);
}

TEST(WorkerHealth, AnIdleWorkerNeedNotMove) {
  WorkerHealth health;
  for (int i = 0; i <= 100; ++i) health.answered(load_of(7, 0), kStart + seconds(i));
  EXPECT_EQ(health.status(kStart + seconds(100)), Status::kLive);
  health.answered(load_of(7, 1), kStart + seconds(101));
  EXPECT_EQ(health.status(kStart + seconds(101)), Status::kLive);
}

TEST(WorkerHealth, ItDrainsUntilItSaysOtherwise) {
  WorkerHealth health;
  health.answered(load_of(1, 0), kStart);
  health.drains();
  EXPECT_TRUE(health.load().is_draining);
  health.answered(load_of(1, 0), kStart + seconds(1));
  EXPECT_FALSE(health.load().is_draining);
}

TEST(WorkerHealth, AWorkerThatSaysForLongThatItHasNoRequestHasForgottenThoseThatItTook) {
  WorkerHealth health;
  const auto answer = [&](seconds at, std::optional<int64_t> num_open) {
    WorkerLoad load = load_of(1, 0);
    load.num_open = num_open;
    health.answered(load, kStart + at);
  };
  answer(seconds(0), 1);
  for (int s = 1; s <= 11; ++s) answer(seconds(s), 0);
  EXPECT_FALSE(health.has_forgotten_since(kStart)) << "for ten seconds";
  answer(seconds(12), 0);
  EXPECT_TRUE(health.has_forgotten_since(kStart));
  EXPECT_FALSE(health.has_forgotten_since(kStart + seconds(5))) << "it was heard of later";
  answer(seconds(13), 2);
  EXPECT_FALSE(health.has_forgotten_since(kStart));
  for (int s = 14; s <= 30; ++s) answer(seconds(s), std::nullopt);
  EXPECT_FALSE(health.has_forgotten_since(kStart)) << "it does not tell";
  for (int s = 31; s <= 50; ++s) answer(seconds(s), 0);
  EXPECT_TRUE(health.has_forgotten_since(kStart));
  health.lost();
  EXPECT_FALSE(health.has_forgotten_since(kStart));
}

}  // namespace
}  // namespace sluice
