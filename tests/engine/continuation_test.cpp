// SPDX-License-Identifier: Apache-2.0
// A stream continued in another engine: prompt, earlier tokens and seed give the rest, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::Collected;

constexpr size_t kNumRequests = 28;

Config tiny_config(const std::string& model = "/tiny/tiny-llama.gguf") {
  Config config;
  config.model = golden_folder() + model;
  config.threads = 2;
  config.kv_cache_memory = int64_t{16} << 20;
  return config;
}

// Returns the request as another worker takes it over after `cut` of its tokens.
ValidRequest continued(ValidRequest request, const Collected& whole, size_t cut) {
  request.generated.assign(whole.tokens.begin(),
                           whole.tokens.begin() + static_cast<ptrdiff_t>(cut));
  request.sampling.num_prompt_logprobs = -1;
  return request;
}

// Returns the answer behind `cut` tokens.
Collected rest_of(const Collected& whole, size_t cut) {
  Collected rest;
  rest.finish_reason = whole.finish_reason;
  const auto behind = static_cast<ptrdiff_t>(cut);
  rest.tokens.assign(whole.tokens.begin() + behind, whole.tokens.end());
  if (!whole.logprobs.empty()) {
    rest.logprobs.assign(whole.logprobs.begin() + behind, whole.logprobs.end());
  }
  const size_t num_top = whole.top_logprobs.size() / whole.tokens.size();
  rest.top_logprobs.assign(whole.top_logprobs.begin() + static_cast<ptrdiff_t>(cut * num_top),
                           whole.top_logprobs.end());
  return rest;
}

void expect_the_rest(const Config& second, const char* what) {
  Config config = tiny_config();
  config.model = second.model;
  const auto first = testing::start_engine(config);
  ASSERT_NE(first, nullptr);
  const std::vector<ValidRequest> requests =
      testing::varied_requests(first->model().vocab_size, kNumRequests);
  const std::vector<Collected> whole = testing::run_together(*first, requests);
  std::vector<ValidRequest> later;
  std::vector<Collected> expected;
  for (size_t i = 0; i < requests.size(); ++i) {
    const size_t num_tokens = whole[i].tokens.size();
    for (const size_t cut : {size_t{1}, num_tokens / 2, num_tokens - 1}) {
      if (cut == 0 || cut >= num_tokens) continue;
      later.push_back(continued(requests[i], whole[i], cut));
      expected.push_back(rest_of(whole[i], cut));
    }
  }
  ASSERT_GT(later.size(), requests.size());
  const auto other = testing::start_engine(second);
  ASSERT_NE(other, nullptr);
  testing::expect_same(expected, testing::run_together(*other, later), what);
  // Repeats with all of it in the prefix cache.
  testing::expect_same(expected, testing::run_alone(*other, later), what);
  // Tokens generated elsewhere are not counted here.
  uint64_t num_tokens = 0;
  for (const Collected& rest : expected) num_tokens += 2 * rest.tokens.size();
  EXPECT_EQ(other->stats().generation_tokens, num_tokens);
}

TEST(Continuation, HasTheBitsOfTheUndisturbedStream) {
  expect_the_rest(tiny_config(), "another engine");
}

TEST(Continuation, HasThemInSmallChunksAndWithPreemptions) {
  Config config = tiny_config();
  config.max_num_batched_tokens = 16;
  config.debug_preempt_every = 3;
  expect_the_rest(config, "small chunks, preempted");
}

TEST(Continuation, HasThemWithOverlap) {
  Config config = tiny_config();
  config.overlap = true;
  expect_the_rest(config, "overlap");
}

TEST(Continuation, HasThemWithLatents) {
  Config config = tiny_config("/models/engine-latents.gguf");
  config.max_num_batched_tokens = 16;
  expect_the_rest(config, "latents");
}

TEST(Continuation, HasThemWithStates) {
  for (const char* model : {"/models/engine-delta.gguf", "/models/engine-mamba.gguf"}) {
    Config config = tiny_config(model);
    config.max_num_batched_tokens = 48;
    expect_the_rest(config, model);
  }
}

TEST(Continuation, OfAnAnswerThatIsOverIsRefused) {
  const auto engine = testing::start_engine(tiny_config());
  ASSERT_NE(engine, nullptr);
  ValidRequest request;
  request.prompt = {5, 6, 7};
  request.generated = {8, 9};
  request.sampling.max_tokens = 2;
  testing::CollectingSink sink;
  const Collected refused = sink.wait(*engine->submit(request, sink));
  EXPECT_EQ(refused.finish_reason, FinishReason::kError);
  EXPECT_EQ(refused.error, "2 of 2 tokens have been generated");
  EXPECT_TRUE(refused.tokens.empty());
}

}  // namespace
}  // namespace sluice
