// SPDX-License-Identifier: Apache-2.0
// Prompts that a router has computed by another worker than the one that answers: who is asked for
// what, and that no failure of the former reaches the client.
#include "server/router/prefill_leg.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/router/router_bed.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::CollectingSink;
using testing::kHelloAndEnd;
using testing::request_of;
using testing::Router;
using testing::TestWorker;
using testing::text_of;

// A pair, before a router knows it.
struct Pair {
  explicit Pair(const std::string& host = "127.0.0.1") {
    prefill->editable_model().handoff =
        HandoffInfo{.epoch = 77, .host = host, .port = 7001, .offers = true, .fetches = false};
    decode->editable_model().handoff =
        HandoffInfo{.epoch = 78, .host = host, .port = 7002, .offers = false, .fetches = true};
  }

  TestWorker prefill;
  TestWorker decode;
};

Config config_of(int32_t min_tokens) {
  Config config;
  config.handoff_min_tokens = min_tokens;
  return config;
}

std::vector<TokenId> prompt_of(size_t num_tokens, TokenId first = 60) {
  std::vector<TokenId> prompt;
  for (size_t i = 0; i < num_tokens; ++i) prompt.push_back(first + static_cast<TokenId>(i % 30));
  return prompt;
}

// To the end of the answer.
Collected finish(Pair& pair, CollectingSink& sink, RequestId id) {
  const std::jthread steps([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pair.decode->step();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  return sink.wait(id);
}

TEST(PrefillLeg, ALongPromptIsComputedForTheWorkerThatAnswers) {
  Pair pair;
  CollectingSink sink;
  Router router({&pair.prefill, &pair.decode}, config_of(16));
  ValidRequest request = request_of(prompt_of(16));
  request.sampling.seed = 99;
  request.sampling.min_tokens = 3;
  const RequestId id = router.submit(sink, request);
  ASSERT_TRUE(eventually([&] { return pair.prefill->num_running() == 1; }));
  pair.prefill->step();  // no tenant has its token
  EXPECT_EQ(text_of(finish(pair, sink, id)), kHelloAndEnd);

  ASSERT_EQ(pair.prefill->submitted().size(), 1U);
  const ValidRequest offer = pair.prefill->submitted()[0];
  EXPECT_EQ(offer.prompt, request.prompt);
  EXPECT_EQ(offer.sampling.seed, 99U);
  EXPECT_EQ(offer.sampling.max_tokens, 1);
  EXPECT_EQ(offer.sampling.min_tokens, 1);
  ASSERT_TRUE(offer.handoff);
  EXPECT_EQ(offer.handoff->kind, HandoffKind::kOffer);
  EXPECT_EQ(offer.handoff->mode, HandoffMode::kConcurrent);

  ASSERT_EQ(pair.decode->submitted().size(), 1U);
  const ValidRequest fetch = pair.decode->submitted()[0];
  EXPECT_EQ(fetch.sampling.max_tokens, request.sampling.max_tokens);
  EXPECT_EQ(fetch.sampling.min_tokens, 3);
  ASSERT_TRUE(fetch.handoff);
  EXPECT_EQ(fetch.handoff->kind, HandoffKind::kFetch);
  EXPECT_EQ(fetch.handoff->mode, HandoffMode::kConcurrent);
  EXPECT_EQ(fetch.handoff->transfer, offer.handoff->transfer);
  EXPECT_NE(fetch.handoff->transfer, TransferId{});
  EXPECT_EQ(fetch.handoff->peer, "127.0.0.1:7001");
  EXPECT_EQ(fetch.handoff->peer_fingerprint, "fp_fake");
  EXPECT_FALSE(fetch.handoff->adopts_seed);
  EXPECT_EQ(router.stats().num_handoffs, 1U);
}

TEST(PrefillLeg, WhatIsShortOrCachedStaysWhereItIsAnswered) {
  Pair pair;
  CollectingSink sink;
  Router router({&pair.prefill, &pair.decode}, config_of(16));
  EXPECT_EQ(text_of(finish(pair, sink, router.submit(sink, request_of(prompt_of(15))))),
            kHelloAndEnd);
  EXPECT_FALSE(pair.decode->submitted().back().handoff);
  // The decode worker has 32 of 40 tokens from the second time on.
  for (int i = 0; i < 2; ++i) {
    const RequestId id = router.submit(sink, request_of(prompt_of(40)));
    EXPECT_EQ(text_of(finish(pair, sink, id)), kHelloAndEnd);
    pair.prefill->step();
    EXPECT_EQ(pair.decode->submitted().back().handoff.has_value(), i == 0);
  }
  EXPECT_EQ(pair.prefill->submitted().size(), 1U);
}

TEST(PrefillLeg, LogProbabilitiesOfThePromptAreComputedWhereItIsAnswered) {
  Pair pair;
  CollectingSink sink;
  Router router({&pair.prefill, &pair.decode}, config_of(16));
  ValidRequest request = request_of(prompt_of(40));
  request.sampling.num_prompt_logprobs = 0;
  finish(pair, sink, router.submit(sink, request));
  EXPECT_FALSE(pair.decode->submitted().back().handoff);
  EXPECT_TRUE(pair.prefill->submitted().empty());
}

TEST(PrefillLeg, ABusyPrefillWorkerIsLeftOut) {
  Pair pair;
  pair.prefill.load(500);
  CollectingSink sink;
  Router router({&pair.prefill, &pair.decode}, config_of(16));
  EXPECT_EQ(text_of(finish(pair, sink, router.submit(sink, request_of(prompt_of(40))))),
            kHelloAndEnd);
  EXPECT_TRUE(pair.prefill->submitted().empty());
}

TEST(PrefillLeg, APrefillWorkerThatDiesOrFailsChangesNothing) {
  Pair pair;
  CollectingSink sink;
  Router router({&pair.prefill, &pair.decode}, config_of(16));
  const RequestId id = router.submit(sink, request_of(prompt_of(40)));
  ASSERT_TRUE(eventually([&] { return pair.prefill->num_running() == 1; }));
  pair.prefill.stop();
  ASSERT_TRUE(eventually([&] { return router.num_usable() == 1; }));
  EXPECT_EQ(text_of(finish(pair, sink, id)), kHelloAndEnd);
  EXPECT_EQ(router.stats().num_continuations, 0U);
  EXPECT_EQ(router.stats().num_retries, 0U);

  pair.prefill->fail_at(0);
  pair.prefill.start_again();
  ASSERT_TRUE(eventually([&] { return router.num_usable() == 2; }));
  const RequestId next = router.submit(sink, request_of(prompt_of(90, 40)));
  ASSERT_TRUE(eventually([&] { return pair.prefill->num_running() == 1; }));
  pair.prefill->step();
  EXPECT_EQ(text_of(finish(pair, sink, next)), kHelloAndEnd);
  EXPECT_EQ(router.stats().num_retries, 0U);
  EXPECT_TRUE(eventually([&] {
    for (const WorkerStats& worker : router.stats().workers) {
      if (worker.num_requests != 0) return false;
    }
    return true;
  }));
}

// The first request to a worker that has come back tries it out, also one that it cannot take.
TEST(PrefillLeg, APromptThatIsTooLongLeavesAWorkerUsableThatHasComeBack) {
  Pair pair;
  CollectingSink sink;
  Router router({&pair.prefill, &pair.decode}, config_of(16));
  pair.prefill.stop();
  ASSERT_TRUE(eventually([&] { return router.num_usable() == 1; }));
  pair.prefill.start_again();
  ASSERT_TRUE(eventually([&] { return router.num_usable() == 2; }));
  const Collected refused = sink.wait(router.submit(sink, request_of(prompt_of(600))));
  EXPECT_EQ(refused.error_code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(eventually([&] { return router.num_usable() == 2; }));
  const RequestId id = router.submit(sink, request_of(prompt_of(40)));
  ASSERT_TRUE(eventually([&] { return pair.prefill->num_running() == 1; }));
  pair.prefill->step();
  EXPECT_EQ(text_of(finish(pair, sink, id)), kHelloAndEnd);
}

TEST(PrefillLeg, AnAbortReachesBothWorkers) {
  Pair pair;
  CollectingSink sink;
  Router router({&pair.prefill, &pair.decode}, config_of(16));
  const RequestId id = router.submit(sink, request_of(prompt_of(40)));
  ASSERT_TRUE(eventually(
      [&] { return pair.prefill->num_running() == 1 && pair.decode->num_running() == 1; }));
  router->abort(id);
  EXPECT_EQ(sink.wait(id).finish_reason, FinishReason::kAbort);
  EXPECT_TRUE(eventually(
      [&] { return pair.prefill->num_aborted() == 1 && pair.decode->num_aborted() == 1; }));
  pair.prefill->step();
  pair.decode->step();
}

TEST(PrefillLeg, ADecodeWorkerThatIsLostIsReplacedByWhoeverIsThere) {
  Pair pair;
  CollectingSink sink;
  Router router({&pair.prefill, &pair.decode}, config_of(16));
  const RequestId id = router.submit(sink, request_of(prompt_of(40)));
  ASSERT_TRUE(eventually([&] { return pair.decode->num_running() == 1; }));
  pair.decode->step();
  sink.wait_tokens(id, 1);
  pair.decode.stop();
  ASSERT_TRUE(eventually([&] { return pair.prefill->submitted().size() == 2; }));
  EXPECT_FALSE(pair.prefill->submitted().back().handoff);
  EXPECT_EQ(pair.prefill->submitted().back().generated, std::vector<TokenId>{'H'});
  for (int i = 0; i < 6; ++i) pair.prefill->step();
  EXPECT_EQ(text_of(sink.wait(id)), kHelloAndEnd);
}

TEST(PrefillLeg, AWorkerThatListensEverywhereIsFoundWhereTheRouterFindsIt) {
  Pair pair("0.0.0.0");
  CollectingSink sink;
  Router router({&pair.prefill, &pair.decode}, config_of(16));
  finish(pair, sink, router.submit(sink, request_of(prompt_of(40))));
  EXPECT_EQ(pair.decode->submitted().back().handoff->peer, "127.0.0.1:7001");
}

}  // namespace
}  // namespace sluice
