// SPDX-License-Identifier: Apache-2.0
// The device queues its next step before the host has seen the current one's tokens, and no answer
// shows it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/engine/cuda/counters.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::expect_same;
using testing::start_engine;
using testing::TinyModel;
using testing::TinyWeights;

ValidRequest decoding_request(int32_t max_tokens) {
  ValidRequest request;
  request.prompt = testing::tiny_prompt(9, 1);
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.num_logprobs = 2;
  request.sampling.seed = 3;
  return request;
}

TEST(CudaQueue, IsNeverEmptyBetweenSteps) {
  const TinyModel model(TinyWeights::kInt8, "float32");
  const int32_t max_tokens = testing::is_short() ? 4 : 20;
  const std::unique_ptr<Engine> engine = start_engine(model.config("cuda"));
  ASSERT_NE(engine, nullptr);
  testing::steps_of(*engine);  // waits until it is idle
  const testing::DeviceCounters counters;
  const Collected answer = testing::run_alone(*engine, {decoding_request(max_tokens)})[0];
  ASSERT_EQ(answer.tokens.size(), static_cast<size_t>(max_tokens));
  testing::settle(*engine);
  counters.expect_drains_at_most(1);  // the last step is the only one with nothing behind it
  const std::vector<StepRecord> steps = testing::steps_of(*engine);
  ASSERT_EQ(steps.size(), static_cast<size_t>(max_tokens));
  int64_t idle_ns = 0;
  for (size_t i = 1; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].num_in_flight, 1);
    EXPECT_LE(steps[i].scheduled_ns, steps[i - 1].retired_ns);
    EXPECT_LE(steps[i - 1].executed_ns, steps[i].started_ns);
    EXPECT_LE(steps[i].executed_ns, steps[i].sampled_ns);
    EXPECT_GE(steps[i].device_idle_ns, 0);
    idle_ns += steps[i].device_idle_ns;
  }
  EXPECT_GT(idle_ns, 0);
  EXPECT_EQ(steps[0].device_idle_ns, 0);  // no request was waiting
  EXPECT_EQ(engine->stats().device_idle_ns, static_cast<uint64_t>(idle_ns));
}

// With work for the host each step is finished before the next is decided: its token is sent at
// once.
TEST(CudaQueue, StepsThatTheHostHasAPartInAreRetiredAtOnce) {
  const TinyModel model(TinyWeights::kInt8, "float32");
  const std::unique_ptr<Engine> engine = start_engine(model.config("cuda"));
  ASSERT_NE(engine, nullptr);
  ValidRequest request = decoding_request(4);
  request.sampling.repetition_penalty = 1.5F;
  ASSERT_EQ(testing::run_alone(*engine, {request})[0].tokens.size(), 4U);
  const std::vector<StepRecord> steps = testing::steps_of(*engine);
  ASSERT_EQ(steps.size(), 4U);
  for (size_t i = 1; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].num_in_flight, 0);
    EXPECT_LE(steps[i - 1].end_ns, steps[i].begin_ns);
    EXPECT_EQ(steps[i].device_idle_ns, 0);
  }
}

// Rows chosen by the host among those of the device, one of them bound by a grammar, steps of
// either kind and of both, unforeseen ends, scored prompts, preemption.
TEST(CudaQueue, IsNotToBeSeenInAnyAnswer) {
  const TinyModel model(TinyWeights::kInt8, "float32");
  const std::unique_ptr<Engine> cpu = start_engine(model.config("cpu"));
  ASSERT_NE(cpu, nullptr);
  std::vector<ValidRequest> requests =
      testing::varied_requests(400, testing::is_short() ? 4 : 14);
  for (size_t i = 0; i < requests.size(); ++i) {
    SamplingParams& params = requests[i].sampling;
    params.max_tokens = std::min(params.max_tokens, testing::is_short() ? 3 : 12);
    if (i == 2 || i % 4 == 3) continue;  // the former has forbidden words and tokens
    // No work for the host: without a majority of such requests, no step is queued.
    params.repetition_penalty = 1;
    params.presence_penalty = 0;
    params.frequency_penalty = 0;
    params.min_tokens = 0;
    params.allowed_token_ids.clear();
    params.bad_words.clear();
    params.num_prompt_logprobs = i == 0 ? 2 : -1;
  }
  // The host makes the masks while the device computes.
  requests[3].sampling.allowed_token_ids.clear();
  GrammarSpec grammar;
  grammar.kind = GrammarKind::kRegex;
  grammar.text = "[a-f]{2}-[0-9]+";
  requests[3].grammar = std::make_shared<const GrammarSpec>(std::move(grammar));
  std::vector<Collected> expected = testing::run_alone(*cpu, requests);
  // The third token ends the answer.
  SamplingParams& ends = requests[1].sampling;
  ASSERT_GE(expected[1].tokens.size(), 3U);
  ends.stop_token_ids = {expected[1].tokens[2]};
  expected = testing::run_alone(*cpu, requests);
  EXPECT_EQ(expected[1].finish_reason, FinishReason::kStop);
  EXPECT_GE(expected[3].tokens.size(), 2U) << expected[3].error;
  for (const int32_t num_seqs : {3, 8}) {
    if (testing::is_short() && num_seqs != 3) continue;
    Config config = model.config("cuda");
    config.max_num_seqs = num_seqs;
    config.debug_preempt_every = num_seqs == 3 ? 5 : 0;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    expect_same(expected, testing::run_together(*engine, requests), std::to_string(num_seqs));
    if (HasFatalFailure()) return;
    testing::settle(*engine);
    EXPECT_EQ(engine->stats().num_blocks_used, 0);
  }
}

}  // namespace
}  // namespace sluice
