// SPDX-License-Identifier: Apache-2.0
// The engine through its facade: ends, aborts, drains, refusals.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/config.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden_folder.h"
#include "tests/support/respelled_model.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::CollectingSink;

Config tiny_config() {
  Config config;
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.threads = 2;
  config.kv_cache_memory = int64_t{16} << 20;
  return config;
}

std::unique_ptr<Engine> start(const Config& config) {
  Expected<std::unique_ptr<Engine>> engine = create_engine(config);
  EXPECT_TRUE(engine.has_value()) << engine.error().message;
  return engine ? std::move(*engine) : nullptr;
}

ValidRequest make_request(std::vector<TokenId> prompt, int32_t max_tokens) {
  ValidRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.arrival = std::chrono::steady_clock::now();
  return request;
}

TEST(Engine, ModelInfoDescribesTheFile) {
  const auto engine = start(tiny_config());
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->model().architecture, "llama");
  EXPECT_EQ(engine->model().vocab_size, engine->tokenizer().vocab_size());
  EXPECT_EQ(engine->model().max_model_len, 2048);
  EXPECT_FALSE(engine->model().chat_template.empty());
  EXPECT_EQ(engine->model().system_fingerprint.rfind("fp_", 0), 0U);
}

TEST(Engine, FingerprintFollowsTheDeterminismKeyOnly) {
  Config config = tiny_config();
  const std::string first = start(config)->model().system_fingerprint;
  config.threads = 1;
  config.isa = "scalar";
  config.max_num_batched_tokens = 64;
  config.enable_prefix_caching = false;
  EXPECT_EQ(start(config)->model().system_fingerprint, first);
  config.activation_bits = 16;
  EXPECT_NE(start(config)->model().system_fingerprint, first);
  config.activation_bits = 8;
  config.kv_cache_dtype = "float32";
  EXPECT_NE(start(config)->model().system_fingerprint, first);
}

// A bias does not bring them back, and neither do drafts or another number of ranks.
TEST(Engine, SuppressedTokensAreNeverChosen) {
  Config config = tiny_config();
  ValidRequest request = make_request({5, 6, 7, 5, 6, 7}, 24);
  request.sampling.num_logprobs = 2;
  const auto answer = [&] {
    const auto engine = start(config);
    CollectingSink sink;
    return sink.wait(*engine->submit(request, sink));
  };
  const std::string usual_name = start(config)->model().system_fingerprint;
  const std::vector<TokenId> usual = answer().tokens;
  const std::vector<TokenId> suppressed = {usual.at(0), usual.at(1), usual.at(5)};
  testing::RespelledGguf file("../tiny/tiny-llama");
  file.set_ints("tokenizer.ggml.suppress_tokens", suppressed);
  config.model = file.path();
  EXPECT_NE(start(config)->model().system_fingerprint, usual_name);
  const Collected left = answer();
  ASSERT_EQ(left.tokens.size(), 24U);
  for (const TokenId token : suppressed) {
    EXPECT_EQ(std::ranges::count(left.tokens, token), 0) << token;
    EXPECT_EQ(std::ranges::count(left.top_logprobs, token, &TokenLogprob::token), 0) << token;
  }
  config.tensor_parallel_size = 2;
  EXPECT_EQ(answer().tokens, left.tokens);
  EXPECT_EQ(answer().logprobs, left.logprobs);
  config.tensor_parallel_size = 1;
  config.speculative_config = R"({"method":"ngram","num_speculative_tokens":3})";
  EXPECT_EQ(answer().tokens, left.tokens);
  for (const TokenId token : suppressed) request.sampling.logit_bias.push_back({token, 100});
  request.sampling.repetition_penalty = 1.5F;
  request.sampling.temperature = 2;
  for (const TokenId token : suppressed) {
    EXPECT_EQ(std::ranges::count(answer().tokens, token), 0) << token;
  }
}

TEST(Engine, MaxTokensEndsWithLength) {
  const auto engine = start(tiny_config());
  CollectingSink sink;
  const Collected result = sink.wait(*engine->submit(make_request({1, 2, 3}, 7), sink));
  EXPECT_EQ(result.tokens.size(), 7U);
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
}

TEST(Engine, TopPOfZeroTakesTheTokensOfTemperatureZero) {
  const auto engine = start(tiny_config());
  CollectingSink sink;
  ValidRequest request = make_request({5, 6, 7}, 20);
  request.sampling.ignore_eos = true;
  request.sampling.num_logprobs = 0;
  request.sampling.temperature = 0;
  const Collected greedy = sink.wait(*engine->submit(request, sink));
  request.sampling.temperature = 1.5F;
  request.sampling.seed = 9;
  const Collected sampled = sink.wait(*engine->submit(request, sink));
  EXPECT_NE(sampled.tokens, greedy.tokens);
  request.sampling.top_p = 0;
  const Collected narrowed = sink.wait(*engine->submit(request, sink));
  EXPECT_EQ(narrowed.tokens, greedy.tokens);
  EXPECT_EQ(narrowed.logprobs, greedy.logprobs);
}

TEST(Engine, StopTokenEndsWithStopAndMinTokensHoldsItBack) {
  const auto engine = start(tiny_config());
  CollectingSink sink;
  const Collected free_run = sink.wait(*engine->submit(make_request({5, 6, 7}, 20), sink));
  const TokenId stop = free_run.tokens[3];
  const auto first =
      std::find(free_run.tokens.begin(), free_run.tokens.end(), stop) - free_run.tokens.begin();
  ValidRequest request = make_request({5, 6, 7}, 20);
  request.sampling.stop_token_ids = {stop};
  const Collected stopped = sink.wait(*engine->submit(request, sink));
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens.size(), static_cast<size_t>(first) + 1);
  request.sampling.min_tokens = 12;
  const Collected held = sink.wait(*engine->submit(request, sink));
  EXPECT_EQ(std::count(held.tokens.begin(), held.tokens.begin() + 12, stop), 0);
}

TEST(Engine, EndTokensOfTheGenerationConfigEndAnswers) {
  Config config = tiny_config();
  std::vector<TokenId> free_run;
  {
    const auto engine = start(config);
    CollectingSink sink;
    free_run = sink.wait(*engine->submit(make_request({5, 6, 7}, 20), sink)).tokens;
  }
  const TokenId end = free_run.at(3);
  const auto first = std::find(free_run.begin(), free_run.end(), end) - free_run.begin();
  const std::string id = std::to_string(end);
  for (const std::string& ids : {id, "[0, " + id + ".0]"}) {
    config.override_generation_config = "{\"eos_token_id\":" + ids + "}";
    const auto engine = start(config);
    ASSERT_NE(engine, nullptr);
    CollectingSink sink;
    ValidRequest request = make_request({5, 6, 7}, 20);
    const Collected ignored = sink.wait(*engine->submit(request, sink));
    EXPECT_EQ(ignored.tokens, free_run) << ids;
    request.sampling.ignore_eos = false;
    const Collected ended = sink.wait(*engine->submit(request, sink));
    EXPECT_EQ(ended.finish_reason, FinishReason::kStop) << ids;
    EXPECT_EQ(ended.tokens.size(), static_cast<size_t>(first) + 1) << ids;
  }
  config.override_generation_config = R"({"eos_token_id":100000})";
  const auto refused = create_engine(config);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message,
            "--override-generation-config: eos_token_id: found 100000, expected an id below 487");
}

TEST(Engine, PromptLogprobsCoverThePromptFromItsSecondTokenOn) {
  const auto engine = start(tiny_config());
  CollectingSink sink;
  // Scoring the generated tokens as a prompt gives equal log-probabilities.
  ValidRequest request = make_request({5, 6, 7}, 40);
  request.sampling.num_logprobs = 2;
  const Collected generated = sink.wait(*engine->submit(request, sink));
  std::vector<TokenId> prompt = {5, 6, 7};
  prompt.insert(prompt.end(), generated.tokens.begin(), generated.tokens.end());
  request = make_request(prompt, 1);
  request.sampling.num_prompt_logprobs = 2;
  for (int run = 0; run < 2; ++run) {  // the second run finds the prefix cached and computes it
    const Collected scored = sink.wait(*engine->submit(request, sink));
    EXPECT_EQ(scored.num_cached_tokens, 0);
    ASSERT_EQ(scored.prompt_logprobs.size(), prompt.size() - 1);
    for (size_t i = 0; i < generated.tokens.size(); ++i) {
      const PromptLogprob& got = scored.prompt_logprobs[i + 2];
      EXPECT_EQ(got.token, generated.tokens[i]);
      EXPECT_EQ(got.rank, 1);  // greedy
      EXPECT_EQ(got.logprob, generated.logprobs[i]);
      ASSERT_EQ(got.top_logprobs.size(), 2U);
      EXPECT_EQ(got.top_logprobs[0].token, got.token);
      EXPECT_EQ(got.top_logprobs[1].logprob, generated.top_logprobs[2 * i + 1].logprob);
    }
    EXPECT_GE(scored.prompt_logprobs[0].rank, 1);
    EXPECT_LT(scored.prompt_logprobs[0].logprob, 0);
  }
  // Other requests find the blocks of a scored prompt.
  EXPECT_GT(sink.wait(*engine->submit(make_request(prompt, 1), sink)).num_cached_tokens, 0);
}

TEST(Engine, APromptOfOneTokenHasNothingToScore) {
  const auto engine = start(tiny_config());
  CollectingSink sink;
  ValidRequest request = make_request({5}, 2);
  request.sampling.num_prompt_logprobs = 1;
  const Collected result = sink.wait(*engine->submit(request, sink));
  EXPECT_TRUE(result.prompt_logprobs.empty());
  EXPECT_EQ(result.tokens.size(), 2U);
}

TEST(Engine, AbortEndsARunningRequestOnce) {
  const auto engine = start(tiny_config());
  CollectingSink sink;
  const RequestId id = *engine->submit(make_request({1, 2, 3}, 2000), sink);
  sink.wait_tokens(id, 3);
  engine->abort(id);
  engine->abort(id);
  const Collected result = sink.wait(id);
  EXPECT_EQ(result.finish_reason, FinishReason::kAbort);
  EXPECT_LT(result.tokens.size(), 2000U);
  // The blocks are back, and other requests run.
  EXPECT_EQ(sink.wait(*engine->submit(make_request({4}, 3), sink)).tokens.size(), 3U);
  EXPECT_EQ(engine->stats().num_blocks_used, 0);
  EXPECT_EQ(sink.wait(id).num_ends, 1);
}

TEST(Engine, AbortOfAnUnknownRequestIsIgnored) {
  const auto engine = start(tiny_config());
  engine->abort(RequestId(12345));
  CollectingSink sink;
  EXPECT_EQ(sink.wait(*engine->submit(make_request({4}, 3), sink)).tokens.size(), 3U);
}

TEST(Engine, DrainRefusesNewRequestsAndFinishesRunningOnes) {
  const auto engine = start(tiny_config());
  CollectingSink sink;
  const RequestId id = *engine->submit(make_request({1, 2}, 200), sink);
  sink.wait_tokens(id, 1);
  engine->drain();
  const Expected<RequestId> refused = engine->submit(make_request({1}, 1), sink);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(sink.wait(id).tokens.size(), 200U);
  EXPECT_TRUE(engine->stats().draining);
}

TEST(Engine, StopGivesEveryRequestItsReply) {
  auto engine = start(tiny_config());
  CollectingSink sink;
  std::vector<RequestId> ids;
  for (int i = 0; i < 100; ++i) ids.push_back(*engine->submit(make_request({1, 2}, 1000), sink));
  engine->stop();
  for (const RequestId id : ids) EXPECT_EQ(sink.wait(id).num_ends, 1);
  EXPECT_FALSE(engine->submit(make_request({1}, 1), sink).has_value());
}

TEST(Engine, FullQueueIsRefusedNotLost) {
  Config config = tiny_config();
  config.max_num_queued_reqs = 4;
  config.max_num_seqs = 1;
  const auto engine = start(config);
  CollectingSink sink;
  std::vector<RequestId> accepted;
  int refused = 0;
  for (int i = 0; i < 50; ++i) {
    const Expected<RequestId> id = engine->submit(make_request({1, 2}, 50), sink);
    if (id) {
      accepted.push_back(*id);
    } else {
      EXPECT_EQ(id.error().code, ErrorCode::kResourceExhausted);
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  for (const RequestId id : accepted) EXPECT_EQ(sink.wait(id).tokens.size(), 50U);
}

TEST(Engine, WhoHasNotStartedAtTheDeadlineEndsAndIsToldWhenToComeBack) {
  Config config = tiny_config();
  config.max_num_seqs = 1;
  const auto engine = start(config);
  CollectingSink sink;
  const RequestId running = *engine->submit(make_request({1, 2, 3}, 2000), sink);
  ValidRequest impatient = make_request({4, 5}, 3);
  impatient.max_queue_wait_ms = 1;
  const RequestId late = *engine->submit(impatient, sink);
  const Collected result = sink.wait(late);
  EXPECT_EQ(result.finish_reason, FinishReason::kError);
  EXPECT_EQ(result.error_code, ErrorCode::kDeadlineExceeded);
  EXPECT_GE(result.retry_after_s, 1);
  EXPECT_EQ(engine->stats().num_expired, 1U);
  engine->abort(running);
  EXPECT_EQ(sink.wait(running).num_ends, 1);
  EXPECT_EQ(engine->stats().num_requests_waiting, 0);
}

TEST(Engine, ARequestThatNeverFitsIsItsClientsError) {
  const auto engine = start(tiny_config());
  CollectingSink sink;
  const Collected result = sink.wait(*engine->submit(make_request({1, 2, 3}, 1 << 20), sink));
  EXPECT_EQ(result.finish_reason, FinishReason::kError);
  EXPECT_EQ(result.error_code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine->stats().num_requests_waiting, 0);
}

TEST(Engine, ATenantOfOneRequestDoesNotWaitForAllOfAnother) {
  Config config = tiny_config();
  config.max_num_seqs = 1;
  const auto engine = start(config);
  CollectingSink sink;
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) {
    ValidRequest request = make_request({1, 2, 3 + i}, i == 0 ? 1500 : 20);
    request.tenant = TenantId(i < 5 ? 1 : 2);
    ids.push_back(*engine->submit(request, sink));
  }
  for (const RequestId id : ids) EXPECT_EQ(sink.wait(id).num_ends, 1);
  EXPECT_EQ(sink.ends(), (std::vector<RequestId>{ids[0], ids[5], ids[1], ids[2], ids[3], ids[4]}));
}

TEST(Engine, ManyThreadsSubmitAndAbortAndEveryRequestEndsOnce) {
  const auto engine = start(tiny_config());
  CollectingSink sink;
  std::vector<std::thread> clients;
  std::vector<std::vector<RequestId>> ids(4);
  for (size_t t = 0; t < ids.size(); ++t) {
    clients.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const auto prompt_token = static_cast<TokenId>(t * 40 + static_cast<size_t>(i)) % 200;
        const RequestId id = *engine->submit(make_request({prompt_token, 9, 8}, 5 + i % 20), sink);
        ids[t].push_back(id);
        if (i % 3 == 0) engine->abort(id);
        const EngineStats stats = engine->stats();
        EXPECT_GE(stats.num_blocks_total, stats.num_blocks_used);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (const auto& list : ids) {
    for (const RequestId id : list) EXPECT_EQ(sink.wait(id).num_ends, 1);
  }
  engine->stop();
  EXPECT_EQ(engine->stats().num_blocks_used, 0);
}

EngineState ask_state(Engine& engine, int32_t num_steps) {
  std::promise<EngineState> answer;
  engine.report_state(num_steps, [&](EngineState state) { answer.set_value(std::move(state)); });
  return answer.get_future().get();
}

// Every turn of a conversation computes the last token of the previous answer, which was never fed
// back, and the new ones; prompts with a common beginning compute from where they part.
TEST(Engine, WhatWasComputedBeforeIsFoundToTheToken) {
  const auto engine = start(tiny_config());
  ASSERT_NE(engine, nullptr);
  CollectingSink sink;
  std::vector<TokenId> tokens;
  size_t num_known = 0;  // tokens that have KV
  for (TokenId turn = 0; turn < 12; ++turn) {
    for (TokenId i = 0; i < 7 + turn * 3; ++i) tokens.push_back((turn * 31 + i * 7) % 250);
    const Collected answer = sink.wait(*engine->submit(make_request(tokens, 5 + turn), sink));
    EXPECT_EQ(answer.num_cached_tokens, static_cast<int32_t>(num_known)) << "turn " << turn;
    tokens.insert(tokens.end(), answer.tokens.begin(), answer.tokens.end());
    num_known = tokens.size() - 1;
  }
  for (size_t shared = 17; shared < 90; shared += 9) {
    std::vector<TokenId> other(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(shared));
    other.push_back((tokens[shared] + 1) % 250);
    for (TokenId i = 0; i < 20; ++i) other.push_back((i * 13 + static_cast<TokenId>(shared)) % 250);
    const Collected answer = sink.wait(*engine->submit(make_request(other, 3), sink));
    EXPECT_EQ(answer.num_cached_tokens, static_cast<int32_t>(shared));
  }
}

TEST(Engine, StateShowsWhatRunsWhatWaitsAndTheLastSteps) {
  Config config = tiny_config();
  config.max_num_seqs = 1;
  const auto engine = start(config);
  CollectingSink sink;
  const RequestId first = *engine->submit(make_request(std::vector<TokenId>(40, 7), 1000), sink);
  const RequestId second = *engine->submit(make_request({1, 2, 3}, 5), sink);
  sink.wait_tokens(first, 4);
  const EngineState state = ask_state(*engine, 1000);
  ASSERT_EQ(state.requests.size(), 2U);
  const RequestSummary& running = state.requests[0];
  EXPECT_EQ(running.id, first);
  EXPECT_EQ(running.status, "running");
  EXPECT_EQ(running.num_prompt_tokens, 40);
  EXPECT_GE(running.num_generated, 4);
  EXPECT_EQ(running.num_computed_tokens, 40 + running.num_generated - 1);
  EXPECT_EQ(running.num_blocks, (running.num_computed_tokens + 15) / 16);
  EXPECT_GT(running.timings.prefill_ms, 0);
  const RequestSummary& waiting = state.requests[1];
  EXPECT_EQ(waiting.id, second);
  EXPECT_EQ(waiting.status, "waiting");
  EXPECT_GT(waiting.timings.queued_ms, 0);
  EXPECT_EQ(waiting.timings.prefill_ms, 0);
  EXPECT_EQ(state.stats.num_requests_running, 1);
  EXPECT_EQ(state.stats.num_blocks_used + state.num_blocks_free + state.num_blocks_cached,
            state.stats.num_blocks_total);

  // The steps contain the request's tokens, each once and in order.
  ASSERT_EQ(state.steps.size(), state.stats.num_steps);
  int32_t position = 0;
  for (const StepRecord& step : state.steps) {
    EXPECT_EQ(step.number, static_cast<uint64_t>(&step - state.steps.data()) + 1);
    EXPECT_LE(step.begin_ns, step.scheduled_ns);
    EXPECT_LT(step.scheduled_ns, step.executed_ns);
    EXPECT_LE(step.executed_ns, step.sampled_ns);
    EXPECT_LE(step.sampled_ns, step.end_ns);
    ASSERT_EQ(step.items.size(), 1U);
    EXPECT_EQ(step.items[0].id, first);
    EXPECT_EQ(step.items[0].position, position);
    EXPECT_EQ(step.items[0].num_tokens, step.num_tokens);
    position += step.num_tokens;
  }
  EXPECT_EQ(position, running.num_computed_tokens);
  EXPECT_EQ(ask_state(*engine, 2).steps.size(), 2U);
  engine->stop();  // before the sink goes
}

TEST(Engine, StateIsToldAfterTheEndToo) {
  const auto engine = start(tiny_config());
  CollectingSink sink;
  sink.wait(*engine->submit(make_request({1, 2, 3}, 5), sink));
  EXPECT_TRUE(ask_state(*engine, 10).requests.empty());
  engine->stop();
  const EngineState state = ask_state(*engine, 10);
  EXPECT_EQ(state.stats.num_steps, 5U);
  EXPECT_TRUE(state.steps.empty());
}

TEST(Engine, TimingsAddUpAndCountPreemptions) {
  Config config = tiny_config();
  config.debug_preempt_every = 4;
  const auto engine = start(config);
  CollectingSink sink;
  const auto begin = std::chrono::steady_clock::now();
  const Collected result = sink.wait(*engine->submit(make_request({1, 2, 3}, 40), sink));
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - begin;
  const RequestTimings& timings = result.timings;
  EXPECT_GT(timings.prefill_ms, 0);
  EXPECT_GT(timings.decode_ms, 0);
  EXPECT_LE(timings.queued_ms + timings.prefill_ms + timings.decode_ms, elapsed.count());
  EXPECT_GT(timings.num_preemptions, 0);
  EXPECT_EQ(static_cast<uint64_t>(timings.num_preemptions), engine->stats().num_preemptions);
}

TEST(Engine, UnreadableAndUnfittingModelsAreOneLine) {
  Config config = tiny_config();
  config.model = "/nonexistent/model.gguf";
  const auto missing = create_engine(config);
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message.find("/nonexistent/model.gguf"), std::string::npos);
  EXPECT_EQ(missing.error().message.find('\n'), std::string::npos);
  config = tiny_config();
  config.max_model_len = 4096;
  const auto too_long = create_engine(config);
  ASSERT_FALSE(too_long.has_value());
  EXPECT_NE(too_long.error().message.find("2048"), std::string::npos);
}

// The error has the requested size, the available one, and a working value of the flag.
TEST(Engine, TooLargeACacheIsRefusedWithTheNumbersAndTheFlag) {
  Config config = tiny_config();
  config.kv_cache_memory = int64_t{1} << 50;
  const auto refused = create_engine(config);
  ASSERT_FALSE(refused.has_value());
  const std::string& message = refused.error().message;
  EXPECT_NE(message.find("KV cache 1073741824.0 MiB as asked for"), std::string::npos) << message;
  EXPECT_NE(message.find("--kv-cache-memory "), std::string::npos) << message;
}

}  // namespace
}  // namespace sluice
