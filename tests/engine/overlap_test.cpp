// SPDX-License-Identifier: Apache-2.0
// --overlap: a step is decided while another one runs, and no answer shows it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/weights/gguf.h"
#include "tests/support/gguf_tensor.h"
#include "tests/support/golden_folder.h"
#include "tests/support/random_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::CollectingSink;
using testing::run_alone;
using testing::run_together;
using testing::settle;
using testing::start_engine;
using testing::steps_of;
using testing::varied_requests;

Config tiny_config(bool overlap) {
  Config config;
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.threads = 2;
  config.max_model_len = 512;
  config.kv_cache_memory = int64_t{8} << 20;
  config.overlap = overlap;
  return config;
}

TEST(Overlap, IsNotToBeSeenInAnyAnswer) {
  const std::unique_ptr<Engine> plain = start_engine(tiny_config(false));
  ASSERT_NE(plain, nullptr);
  const std::vector<ValidRequest> requests = varied_requests(plain->model().vocab_size, 80);
  const std::vector<Collected> expected = run_alone(*plain, requests);
  EXPECT_TRUE(std::ranges::any_of(expected, [](const Collected& answer) {
    return answer.finish_reason == FinishReason::kStop;
  }));
  for (const int32_t num_seqs : {1, 7, 64}) {
    for (const int32_t chunk : {64, 512}) {
      Config config = tiny_config(true);
      config.max_num_seqs = num_seqs;
      config.max_num_batched_tokens = chunk;
      config.debug_preempt_every = num_seqs == 7 ? 5 : 0;
      const std::unique_ptr<Engine> engine = start_engine(config);
      ASSERT_NE(engine, nullptr);
      testing::expect_same(expected, run_together(*engine, requests), std::to_string(num_seqs));
      if (HasFatalFailure()) return;
      settle(*engine);
      EXPECT_EQ(engine->stats().num_blocks_used, 0);
    }
  }
}

TEST(Overlap, AStepIsDecidedWhileAnotherOneRuns) {
  const std::unique_ptr<Engine> engine = start_engine(tiny_config(true));
  ASSERT_NE(engine, nullptr);
  std::vector<ValidRequest> requests = varied_requests(engine->model().vocab_size, 1);
  requests[0].sampling = {};
  requests[0].sampling.ignore_eos = true;
  requests[0].sampling.max_tokens = 100;
  run_alone(*engine, requests);
  const std::vector<StepRecord> steps = steps_of(*engine);
  ASSERT_GE(steps.size(), 100U);
  EXPECT_EQ(steps[0].num_in_flight, 0);
  for (size_t i = 1; i < 100; ++i) {
    EXPECT_EQ(steps[i].num_in_flight, 1);
    EXPECT_LE(steps[i].scheduled_ns, steps[i - 1].retired_ns);
    EXPECT_LE(steps[i - 1].sampled_ns, steps[i].started_ns);
    EXPECT_LE(steps[i].sampled_ns, steps[i].retired_ns);
  }
  // No step is wasted if the end is known.
  EXPECT_EQ(steps.size(), 100U);

  const std::unique_ptr<Engine> plain = start_engine(tiny_config(false));
  run_alone(*plain, requests);
  for (const StepRecord& step : steps_of(*plain)) EXPECT_EQ(step.num_in_flight, 0);
}

// The row in flight when the end token came is dropped, and its blocks are kept until then.
TEST(Overlap, AnEndThatNobodyForesawCostsARowAndNothingElse) {
  const std::unique_ptr<Engine> plain = start_engine(tiny_config(false));
  ASSERT_NE(plain, nullptr);
  std::vector<ValidRequest> requests = varied_requests(plain->model().vocab_size, 1);
  requests[0].prompt.resize(50, 9);
  requests[0].sampling = {};
  requests[0].sampling.ignore_eos = true;
  requests[0].sampling.max_tokens = 40;
  const Collected answer = run_alone(*plain, requests)[0];
  const TokenId last = answer.tokens.back();
  const auto length = std::ranges::find(answer.tokens, last) - answer.tokens.begin() + 1;
  requests[0].sampling.stop_token_ids = {last};
  requests[0].sampling.max_tokens = 60;

  const std::unique_ptr<Engine> engine = start_engine(tiny_config(true));
  ASSERT_NE(engine, nullptr);
  const Collected stopped = run_alone(*engine, requests)[0];
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  ASSERT_EQ(static_cast<std::ptrdiff_t>(stopped.tokens.size()), length);
  settle(*engine);
  ValidRequest next = requests[0];
  std::vector<TokenId>& prompt = next.prompt;
  prompt.insert(prompt.end(), stopped.tokens.begin(), stopped.tokens.end());
  prompt.resize(prompt.size() + 20, 11);
  const Collected second = run_alone(*engine, {next})[0];
  // That row computed the end token's KV.
  EXPECT_EQ(second.num_cached_tokens, 50 + length);
  testing::expect_same(run_alone(*plain, {next}), {second}, "next turn");
  settle(*engine);
  EXPECT_EQ(engine->stats().num_blocks_used, 0);
}

TEST(Overlap, AbortsAtAnyMomentEndOnceAndGiveTheBlocksBack) {
  Config config = tiny_config(true);
  config.kv_offloading_size = 1;
  config.kv_cache_memory = int64_t{1} << 18;
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  const std::vector<ValidRequest> requests = varied_requests(engine->model().vocab_size, 100);
  CollectingSink sink;
  std::mt19937_64 random(3);
  for (int round = 0; round < 5; ++round) {
    std::vector<RequestId> ids;
    for (const ValidRequest& request : requests) {
      Expected<RequestId> id = engine->submit(request, sink);
      ASSERT_TRUE(id.has_value());
      ids.push_back(*id);
      if (random() % 3 != 0) continue;
      const RequestId other = ids[random() % ids.size()];
      if (random() % 2 == 0) sink.wait_tokens(other, 1 + random() % 4);
      engine->abort(other);
    }
    for (const RequestId id : ids) EXPECT_EQ(sink.wait(id).num_ends, 1);
  }
  settle(*engine);
  EXPECT_EQ(engine->stats().num_blocks_used, 0);
  std::vector<RequestId> ends = sink.ends();
  std::ranges::sort(ends);
  EXPECT_EQ(std::ranges::adjacent_find(ends), ends.end());
}

TEST(Overlap, StopWithAStepInFlightGivesEveryRequestItsReply) {
  for (int round = 0; round < 10; ++round) {
    const std::unique_ptr<Engine> engine = start_engine(tiny_config(true));
    ASSERT_NE(engine, nullptr);
    CollectingSink sink;
    std::vector<RequestId> ids;
    for (const ValidRequest& request : varied_requests(engine->model().vocab_size, 20)) {
      ids.push_back(*engine->submit(request, sink));
    }
    sink.wait_tokens(ids[0], static_cast<size_t>(round) % 4);
    engine->stop();
    for (const RequestId id : ids) EXPECT_EQ(sink.wait(id).num_ends, 1);
  }
}

// A model with an infinite logit behind one token: only this token's last hidden state has a
// component so large that its product with one weight of the head overflows.
class PoisonedModel : public ::testing::Test {
 protected:
  PoisonedModel() {
    constexpr WeightFormat kFormat = WeightFormat::kF32;
    const std::string tiny = golden_folder() + "/tiny/tiny-llama.gguf";
    EXPECT_TRUE(testing::write_random_model(tiny, path_, std::span(&kFormat, 1), kFormat));
    std::ifstream in(path_, std::ios::binary);
    std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    in.close();
    const auto file = GgufFile::parse(std::as_bytes(std::span(bytes)), path_);
    EXPECT_TRUE(file.has_value());
    const auto set_row = [&](const char* name, TokenId token, float first) {
      const GgufTensor* tensor = find_tensor(**file, name);
      ASSERT_NE(tensor, nullptr) << name;
      std::vector<float> row(tensor->dims[0]);
      row[0] = first;
      const auto size = row.size() * sizeof(float);
      const auto begin = reinterpret_cast<const char*>(tensor->data.data()) - bytes.data();
      std::memcpy(bytes.data() + begin + static_cast<size_t>(token) * size, row.data(), size);
    };
    set_row("token_embd.weight", kPoison, 1e6F);
    set_row("token_embd.weight", kInfinite, 4e37F);  // also used as the head
    std::ofstream(path_, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  static constexpr TokenId kPoison = 77;
  static constexpr TokenId kInfinite = 300;
  const testing::TemporaryFolder folder_;
  const std::string path_ = folder_.at("poisoned.gguf");
};

TEST_F(PoisonedModel, ARequestWithoutFiniteLogitsEndsAloneAndLeavesNothingBehind) {
  for (const bool overlap : {false, true}) {
    Config config = tiny_config(overlap);
    config.model = path_;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    std::vector<ValidRequest> requests = varied_requests(engine->model().vocab_size, 24);
    for (ValidRequest& request : requests) {
      std::ranges::replace(request.prompt, kPoison, TokenId{1});
      std::ranges::replace(request.prompt, kInfinite, TokenId{1});
      request.sampling.allowed_token_ids = {3, 4, 5, 6, 7};
    }
    const std::vector<Collected> alone = run_alone(*engine, requests);
    for (size_t i = 0; i < requests.size(); i += 3) {
      requests[i].prompt.back() = kPoison;
    }
    const std::vector<Collected> together = run_together(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i % 3 != 0) {
        testing::expect_same({alone[i]}, {together[i]}, std::to_string(i));
        if (HasFatalFailure()) return;
        continue;
      }
      EXPECT_EQ(together[i].finish_reason, FinishReason::kError);
      EXPECT_EQ(together[i].error, "The model produced logits that are not finite.");
      EXPECT_EQ(together[i].num_ends, 1);
      EXPECT_TRUE(together[i].tokens.empty());
    }
    settle(*engine);
    EXPECT_EQ(engine->stats().num_blocks_used, 0);
  }
}

// The next chunk or token of such a request is in flight when the first one turns out bad.
TEST_F(PoisonedModel, WhatFollowsABadStepIsNeitherToldNorKept) {
  Config config = tiny_config(true);
  config.model = path_;
  config.max_num_batched_tokens = 16;
  config.kv_offloading_size = 1;
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  std::vector<ValidRequest> requests = varied_requests(engine->model().vocab_size, 1);
  ValidRequest& request = requests[0];
  request.sampling = {};
  request.sampling.max_tokens = 8;
  request.prompt.assign(80, 9);
  request.prompt[5] = kPoison;
  request.sampling.num_prompt_logprobs = 0;
  const Collected scored = run_alone(*engine, requests)[0];
  EXPECT_EQ(scored.finish_reason, FinishReason::kError);
  EXPECT_EQ(scored.num_ends, 1);
  EXPECT_LT(scored.prompt_logprobs.size(), 80U);

  // With the token that was never chosen the block would be whole.
  request.prompt.assign(15, 9);
  request.prompt.back() = kPoison;
  request.sampling.num_prompt_logprobs = -1;
  const Collected sampled = run_alone(*engine, requests)[0];
  EXPECT_EQ(sampled.finish_reason, FinishReason::kError);
  settle(*engine);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for a write that must not come
  settle(*engine);
  EXPECT_EQ(engine->stats().kv_tier_stored, 0U);
  EXPECT_EQ(engine->stats().num_blocks_used, 0);
}

// A wrong draft gives the row behind it logits without a finite value; they are not used.
TEST_F(PoisonedModel, ARejectedRowWithoutFiniteLogitsIsNothing) {
  for (const bool overlap : {false, true}) {
    Config config = tiny_config(overlap);
    config.model = path_;
    config.speculative_config =
        R"({"method":"replay","replay_error_rate":0,"num_speculative_tokens":6,"adaptive":false})";
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    std::vector<ValidRequest> requests = varied_requests(engine->model().vocab_size, 8);
    for (ValidRequest& request : requests) {
      std::ranges::replace(request.prompt, kPoison, TokenId{1});
      std::ranges::replace(request.prompt, kInfinite, TokenId{1});
      request.sampling.allowed_token_ids = {3, 4, 5, 6, 7};
      request.sampling.max_tokens = 30;
      request.sampling.ignore_eos = true;
    }
    const std::vector<Collected> plain = run_alone(*engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].prediction = plain[i].tokens;
      for (size_t n = 4; n < plain[i].tokens.size(); n += 5) requests[i].prediction[n] = kPoison;
    }
    testing::expect_same(plain, run_together(*engine, requests), overlap ? "overlap" : "in turns");
    settle(*engine);
    uint64_t accepted = 0;
    for (const uint64_t count : engine->stats().drafts.num_accepted_tokens) accepted += count;
    EXPECT_GT(accepted, 20U);
    EXPECT_EQ(engine->stats().num_blocks_used, 0);
  }
}

}  // namespace
}  // namespace sluice
