// SPDX-License-Identifier: Apache-2.0
// Workers whose caches have room for one long request: what waits for a peer gives way to requests
// that could not run otherwise, and to nobody else.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/engine/handoff_engine_rig.h"

namespace sluice {
namespace {

class HandoffRoomTest : public HandoffEngineTest {
 protected:
  HandoffRoomTest() {
    config_.kv_cache_memory = kBlocks * kBlockBytes;
    config_.kv_transfer_timeout_ms = 60'000;  // nothing is given up for being slow
  }

  // A prompt that shares no block with others, and its answer.
  static ValidRequest sized(int number, int32_t num_tokens, int32_t max_tokens) {
    ValidRequest made = request(number);
    made.prompt.clear();
    for (int32_t i = 0; i < num_tokens; ++i) {
      made.prompt.push_back(static_cast<TokenId>((number * 37 + i * 31 + i * i * 7) % 250));
    }
    made.sampling.max_tokens = max_tokens;
    return made;
  }

  // A prefill worker that keeps what it offers.
  std::unique_ptr<Engine> start_large(const std::string& name) {
    config_.kv_cache_memory = 8 * kBlocks * kBlockBytes;
    std::unique_ptr<Engine> started = start(name);
    config_.kv_cache_memory = kBlocks * kBlockBytes;
    return started;
  }

  static void await(const Engine& engine, const auto& condition) {
    for (int i = 0; i < 3000 && !condition(engine.stats()); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    EXPECT_TRUE(condition(engine.stats()));
  }

  // P's parts of this transfer stay where they are.
  void freeze(const KvTransferId& transfer) {
    peers_.drop = [transfer](const KvMessage& message) {
      const auto* const credit = std::get_if<KvCredit>(&message);
      return credit != nullptr && credit->ref.transfer == transfer;
    };
  }

  static constexpr int64_t kBlocks = 64;  // as many as --max-model-len tokens take
  static constexpr int64_t kBlockBytes = 6144;
};

TEST_P(HandoffRoomTest, AStreamThatNeedsTheLastBlocksGetsThoseOfAFetch) {
  const std::unique_ptr<Engine> p = start("p");
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  ASSERT_EQ(d->stats().num_blocks_total, kBlocks);
  const ValidRequest frozen = fetched(*p, sized(1, 400, 20));
  freeze(frozen.handoff->transfer);
  testing::CollectingSink sink;
  const auto waiting = d->submit(frozen, sink);
  ASSERT_TRUE(waiting);
  await(*d, [](const EngineStats& stats) { return stats.handoff->num_reserved_blocks == 24; });
  const auto stream = d->submit(sized(2, 100, 850), sink);
  ASSERT_TRUE(stream);
  const Collected long_answer = sink.wait(*stream);
  EXPECT_EQ(long_answer.finish_reason, FinishReason::kLength) << long_answer.error;
  EXPECT_EQ(long_answer.tokens.size(), 850U);
  const Collected answer = sink.wait(*waiting);
  EXPECT_EQ(answer.finish_reason, FinishReason::kLength) << answer.error;
  expect_fallback(*d, HandoffFallback::kPreempted);
  EXPECT_EQ(d->stats().num_preemptions, 0U);
  d->stop();
  p->stop();
}

TEST_P(HandoffRoomTest, APromptThatNeedsTheBlocksOfAnOfferIsComputed) {
  const std::unique_ptr<Engine> p = start("p");
  ASSERT_NE(p, nullptr);
  fetched(*p, sized(1, 250, 1));
  EXPECT_EQ(p->stats().handoff->num_pinned_blocks, 15);
  const Collected answer = testing::run_together(*p, {sized(2, 920, 20)}).front();
  EXPECT_EQ(answer.finish_reason, FinishReason::kLength) << answer.error;
  EXPECT_EQ(p->stats().handoff->num_expired, 1U);
  expect_free(*p);
  p->stop();
}

// Both fit, though the cache has not room for the longest request beside either.
TEST_P(HandoffRoomTest, AFetchThatHasLandedLeavesOthersTheirRoom) {
  const std::unique_ptr<Engine> p = start("p");
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  const ValidRequest frozen = fetched(*p, sized(1, 200, 20));
  const ValidRequest first = fetched(*p, sized(2, 400, 20));
  freeze(frozen.handoff->transfer);
  testing::CollectingSink sink;
  const auto waiting = d->submit(frozen, sink);
  ASSERT_TRUE(waiting);
  await(*d, [](const EngineStats& stats) { return stats.handoff->num_reserved_blocks == 12; });
  const auto landing = d->submit(first, sink);
  ASSERT_TRUE(landing);
  const Collected answer = sink.wait(*landing);
  EXPECT_EQ(answer.finish_reason, FinishReason::kLength) << answer.error;
  EXPECT_EQ(answer.num_cached_tokens, 384);
  EXPECT_EQ(num_fallbacks(*d, HandoffFallback::kPreempted), 0U);
  EXPECT_EQ(d->stats().handoff->num_receiving, 1);
  d->abort(*waiting);
  sink.wait(*waiting);
  expect_free(*d);
  d->stop();
  p->stop();
}

// A request that has landed and waits for its turn finds its blocks then.
TEST_P(HandoffRoomTest, AFetchDoesNotTakeTheBlocksOfOneThatHasLanded) {
  config_.max_num_seqs = 1;
  const std::unique_ptr<Engine> p = start_large("p");
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  std::vector<ValidRequest> fetches;
  for (int i = 1; i < 4; ++i) fetches.push_back(fetched(*p, sized(i, 250, 4)));
  testing::CollectingSink sink;
  const auto stream = d->submit(sized(9, 640, 100), sink);  // 40 blocks of 64, and 7 more
  ASSERT_TRUE(stream);
  sink.wait_tokens(*stream, 1);
  std::vector<RequestId> ids;
  for (const ValidRequest& one : fetches) {
    const auto id = d->submit(one, sink);
    ASSERT_TRUE(id);
    ids.push_back(*id);
    await(*d, [](const EngineStats& stats) { return stats.handoff->num_in > 0; });
  }
  for (const RequestId id : ids) EXPECT_EQ(sink.wait(id).num_cached_tokens, 240);
  EXPECT_EQ(sink.wait(*stream).finish_reason, FinishReason::kLength);
  expect_free(*d);
  d->stop();
  p->stop();
}

TEST_P(HandoffRoomTest, AFetchOfManyBlocksIsNotPassedByThoseOfFew) {
  const std::unique_ptr<Engine> p = start_large("p");
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  const ValidRequest frozen = fetched(*p, sized(1, 480, 4));
  const ValidRequest large = fetched(*p, sized(2, 640, 4));
  std::vector<ValidRequest> small;
  for (int i = 3; i < 13; ++i) small.push_back(fetched(*p, sized(i, 20, 4)));
  std::vector<KvTransferId> begun;
  peers_.change = [&begun](KvMessage& message) {
    if (const auto* credit = std::get_if<KvCredit>(&message)) begun.push_back(credit->ref.transfer);
  };
  freeze(frozen.handoff->transfer);
  testing::CollectingSink sink;
  const auto holding = d->submit(frozen, sink);
  ASSERT_TRUE(holding);
  await(*d, [](const EngineStats& stats) { return stats.handoff->num_receiving == 1; });
  std::vector<RequestId> ids;
  const auto submit = [&](const ValidRequest& request) {
    const auto id = d->submit(request, sink);
    ASSERT_TRUE(id);
    ids.push_back(*id);
    await(*d, [&ids](const EngineStats& stats) {
      return stats.handoff->num_claims == 1 + ids.size();
    });
  };
  submit(large);
  await(*d, [](const EngineStats& stats) { return stats.handoff->num_awaiting_room == 1; });
  for (const ValidRequest& one : small) submit(one);
  await(*d, [](const EngineStats& stats) { return stats.handoff->num_claiming == 0; });
  EXPECT_EQ(d->stats().handoff->num_awaiting_room, 11);
  d->abort(*holding);
  for (const RequestId id : ids) EXPECT_EQ(sink.wait(id).finish_reason, FinishReason::kLength);
  ASSERT_EQ(begun.size(), 11U);
  EXPECT_EQ(begun.front(), large.handoff->transfer);
  d->stop();
  p->stop();
}

// Whether it waits for room or for its blocks, and whatever becomes of requests without blocks.
TEST_P(HandoffRoomTest, ADeadlineEndsAFetchThatWaits) {
  config_.kv_transfer_config =
      R"({"kv_connector":"NixlConnector","kv_role":"kv_both","kv_load_failure_policy":"fail"})";
  const std::unique_ptr<Engine> p = start_large("p");
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  ValidRequest frozen = fetched(*p, sized(1, 640, 20));
  ValidRequest waiting = fetched(*p, sized(2, 480, 20));
  EXPECT_EQ(p->stats().handoff->num_pinned_blocks, 39 + 29);
  freeze(frozen.handoff->transfer);
  testing::CollectingSink sink;
  frozen.max_queue_wait_ms = 1'000;
  frozen.arrival = std::chrono::steady_clock::now();
  const auto first = d->submit(frozen, sink);
  ASSERT_TRUE(first);
  await(*d, [](const EngineStats& stats) { return stats.handoff->num_receiving == 1; });
  waiting.max_queue_wait_ms = 200;
  waiting.arrival = std::chrono::steady_clock::now();
  const auto second = d->submit(waiting, sink);
  ASSERT_TRUE(second);
  EXPECT_EQ(sink.wait(*second).error_code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(sink.wait(*first).error_code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(sink.ends(), (std::vector<RequestId>{*second, *first}));
  EXPECT_EQ(num_fallbacks(*d, HandoffFallback::kDeadline), 2U);
  EXPECT_EQ(d->stats().num_expired, 2U);
  expect_free(*d);
  expect_free(*p);
  d->stop();
  p->stop();
}

INSTANTIATE_TEST_SUITE_P(Full,
                         HandoffRoomTest,
                         ::testing::Values(std::make_tuple("tcp", "tiny/tiny-llama.gguf")));

}  // namespace
}  // namespace sluice
