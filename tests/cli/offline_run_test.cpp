// SPDX-License-Identifier: Apache-2.0
#include "server/cli/offline_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "engine/core/config.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

std::unique_ptr<Engine> start(int32_t max_num_queued_reqs = 1024) {
  Config config;
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.max_model_len = 128;
  config.max_num_seqs = 2;
  config.max_num_queued_reqs = max_num_queued_reqs;
  config.kv_cache_memory = int64_t{8} << 20;
  auto engine = create_engine(config);
  EXPECT_TRUE(engine.has_value()) << engine.error().message;
  return engine ? std::move(*engine) : nullptr;
}

OfflineRequest request(size_t index, int32_t max_tokens) {
  OfflineRequest request;
  request.prompt.assign(8 + index % 5, static_cast<TokenId>(5 + index % 90));
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.seed = index;
  return request;
}

Expected<std::optional<OfflineRequest>> one_turn(size_t index, const Conversation& before) {
  if (!before.empty()) return std::nullopt;
  return request(index, 6);
}

TEST(OfflineRun, EveryRequestIsAnsweredInFullWithTheTimeOfEachToken) {
  const auto engine = start();
  ASSERT_NE(engine, nullptr);
  const auto conversations = run_offline(*engine, 7, one_turn);
  ASSERT_TRUE(conversations.has_value()) << conversations.error().message;
  ASSERT_EQ(conversations->size(), 7U);
  for (const Conversation& conversation : *conversations) {
    ASSERT_EQ(conversation.size(), 1U);
    const OfflineAnswer& answer = conversation.front();
    EXPECT_EQ(answer.finish_reason, FinishReason::kLength);
    EXPECT_EQ(answer.tokens.size(), 6U);
    ASSERT_EQ(answer.times.size(), 6U);
    EXPECT_TRUE(std::is_sorted(answer.times.begin(), answer.times.end()));
    EXPECT_LE(answer.submitted, answer.times.front());
    EXPECT_EQ(answer.ended, answer.times.back());
  }
}

TEST(OfflineRun, AFullQueueDelaysRequestsAndLosesNone) {
  const auto roomy = start();
  const auto tight = start(/*max_num_queued_reqs=*/1);
  ASSERT_NE(roomy, nullptr);
  ASSERT_NE(tight, nullptr);
  const auto expected = run_offline(*roomy, 40, one_turn);
  const auto actual = run_offline(*tight, 40, one_turn);
  ASSERT_TRUE(expected.has_value());
  ASSERT_TRUE(actual.has_value()) << actual.error().message;
  for (size_t i = 0; i < expected->size(); ++i) {
    EXPECT_EQ((*expected)[i].front().tokens, (*actual)[i].front().tokens) << i;
  }
}

TEST(OfflineRun, ATurnBeginsWhenTheAnswerBeforeItHasEnded) {
  const auto engine = start(/*max_num_queued_reqs=*/1);
  ASSERT_NE(engine, nullptr);
  const auto three_turns =
      [](size_t index, const Conversation& before) -> Expected<std::optional<OfflineRequest>> {
    if (before.size() == 3) return std::nullopt;
    OfflineRequest next = request(index, 4);
    if (!before.empty()) {
      next.prompt = before.back().prompt;
      const auto& answer = before.back().tokens;
      next.prompt.insert(next.prompt.end(), answer.begin(), answer.end());
    }
    return next;
  };
  const auto conversations = run_offline(*engine, 9, three_turns);
  ASSERT_TRUE(conversations.has_value()) << conversations.error().message;
  for (const Conversation& conversation : *conversations) {
    ASSERT_EQ(conversation.size(), 3U);
    for (size_t turn = 1; turn < 3; ++turn) {
      EXPECT_GE(conversation[turn].submitted, conversation[turn - 1].ended);
      EXPECT_EQ(conversation[turn].prompt.size(), conversation[turn - 1].prompt.size() + 4);
    }
  }
}

TEST(OfflineRun, NoMoreThanTheLimitAreUnderWay) {
  const auto engine = start();
  ASSERT_NE(engine, nullptr);
  const auto conversations =
      run_offline(*engine, 6, one_turn, {.max_concurrency = 1, .on_progress = {}});
  ASSERT_TRUE(conversations.has_value());
  for (size_t i = 1; i < 6; ++i) {
    EXPECT_GE((*conversations)[i].front().submitted, (*conversations)[i - 1].front().ended);
  }
}

TEST(OfflineRun, ARequestBeyondTheContextIsNamed) {
  const auto engine = start();
  ASSERT_NE(engine, nullptr);
  const auto too_long = [](size_t index,
                           const Conversation& before) -> Expected<std::optional<OfflineRequest>> {
    if (!before.empty()) return std::nullopt;
    return request(index, index == 2 ? 121 : 6);  // 10 + 121 > 128
  };
  const auto refused = run_offline(*engine, 4, too_long);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("request 2 has 10 prompt and 121 answer tokens"),
            std::string::npos)
      << refused.error().message;
  // Those under way were ended, and the engine goes on.
  EXPECT_TRUE(run_offline(*engine, 2, one_turn).has_value());
}

}  // namespace
}  // namespace sluice
