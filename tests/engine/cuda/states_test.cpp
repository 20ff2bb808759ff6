// SPDX-License-Identifier: Apache-2.0
// Models with recurrent layers on a device: the tokens and bits of the CPU in every way of running
// them, with states that leave it and come back, and behind drafts, which states take back.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/engine/cuda/counters.h"
#include "tests/engine/cuda/draft_requests.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"
#include "tests/support/tier.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::expect_same;
using testing::start_engine;

uint64_t sum(const auto& counters) {
  return std::accumulate(counters.begin(), counters.end(), uint64_t{0});
}

// Blocks of codes and a cache of floats have the CPU's bits.
Config config_of(const std::string& model, const std::string& device) {
  Config config = testing::tiny_config(
      device, golden_folder() + "/models/engine-" + model + ".gguf", "float32");
  config.kv_cache_memory = int64_t{8} << 20;
  config.cuda_graph_sizes = {2, 4};
  return config;
}

// Prompts of several lengths, in the long tier two with a common beginning.
std::vector<ValidRequest> make_requests() {
  std::vector<ValidRequest> requests(testing::sample_of<size_t>(2, 4));
  constexpr size_t kLengths[] = {21, 1, 40, 52};
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt.resize(kLengths[i]);
    const size_t seed = i == 3 ? 2 : i;
    for (size_t j = 0; j < kLengths[i]; ++j) {
      requests[i].prompt[j] = static_cast<TokenId>((j * j * 31 + j * 7 + seed * 13) % 250);
    }
    SamplingParams& params = requests[i].sampling;
    params.max_tokens = 4 + static_cast<int32_t>(i);
    params.ignore_eos = true;
    params.num_logprobs = 1;
    params.seed = 40 + i;
    params.temperature = i == 0 ? 0.0F : 0.8F;
  }
  if (testing::is_full()) requests[2].sampling.num_prompt_logprobs = 1;
  return requests;
}

// Has room for little more than one request of 64 tokens.
std::unique_ptr<Engine> start_with_little_room(Config config) {
  config.max_model_len = 64;
  int64_t& room = config.kv_cache_memory;
  for (room = int64_t{16} << 10; room < int64_t{8} << 20; room += room / 8) {
    auto engine = create_engine(config);
    if (engine.has_value()) return std::move(*engine);
  }
  return nullptr;
}

class CudaStates : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
    Config config = config_of(GetParam(), "cpu");
    config.enable_prefix_caching = false;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    requests_ = make_requests();
    expected_ = testing::run_alone(*engine, requests_);
  }

  // The quickest model stands for all at a commit.
  static bool is_left_out() { return GetParam() != "conv" && !testing::is_full(); }

  EngineStats run(const Config& config, const std::string& what) {
    const std::unique_ptr<Engine> engine = start_engine(config);
    if (engine == nullptr) return {};
    EXPECT_EQ(engine->model().backend.substr(0, 5), "cuda:");
    expect_same(expected_, testing::run_together(*engine, requests_), what);
    if (!HasFatalFailure() && config.enable_prefix_caching) {
      expect_same(expected_, testing::run_alone(*engine, requests_), what + ", again");
    }
    testing::settle(*engine);
    EXPECT_EQ(engine->stats().num_blocks_used, 0) << what;
    return engine->stats();
  }

  std::vector<ValidRequest> requests_;
  std::vector<Collected> expected_;
};

TEST_P(CudaStates, HaveTheTokensAndBitsOfTheCpu) {
  Config config = config_of(GetParam(), "cuda");
  config.max_num_batched_tokens = 16;
  config.enable_prefix_caching = false;
  config.debug_preempt_every = 3;
  const testing::DeviceCounters counters;
  EXPECT_GT(run(config, "in chunks").num_preemptions, 0U);
  counters.expect_replays(true);
}

TEST_P(CudaStates, AreFoundAgainAndComeBackFromTheHost) {
  if (is_left_out()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  Config config = config_of(GetParam(), "cuda");
  config.enforce_eager = true;
  EXPECT_GT(run(config, "hits").prefix_cache_hits, 0U);
  // Another prompt fills the cache between two runs of a request.
  config.kv_offloading_size = 1;
  config.preemption_mode = "swap";  // reads at any cost
  config.debug_preempt_every = 3;
  const std::unique_ptr<Engine> engine = start_with_little_room(config);
  ASSERT_NE(engine, nullptr);
  ValidRequest between = requests_[0];
  between.prompt.resize(55, 7);
  const std::vector<Collected> answers =
      testing::run_alone(*engine, {requests_[0], between, requests_[0]});
  expect_same({expected_[0], expected_[0]}, {answers[0], answers[2]}, "swapped");
  EXPECT_GT(engine->stats().kv_tier_hits, 0U);
}

TEST_P(CudaStates, TakeDraftsBack) {
  if (is_left_out()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  testing::predict(requests_, expected_);
  for (const bool eager : {false, true}) {
    Config config = config_of(GetParam(), "cuda");
    config.speculative_config = testing::replay_spec("0.3");
    config.enforce_eager = eager;
    config.debug_preempt_every = eager ? 4 : 0;
    const DraftStats drafts = run(config, eager ? "eager" : "recorded").drafts;
    EXPECT_GT(sum(drafts.num_accepted_tokens), 0U);
    EXPECT_GT(sum(drafts.num_draft_tokens), sum(drafts.num_accepted_tokens));
    if (HasFatalFailure() || !testing::is_full()) return;
  }
}

// Attention with a gate for each head, whose columns lie beside the weights.
TEST(CudaGatesOfHeads, HaveTheTokensAndBitsOfTheCpu) {
  if (!testing::is_full()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  const std::vector<ValidRequest> requests = make_requests();
  const std::unique_ptr<Engine> cpu = start_engine(config_of("heads", "cpu"));
  const std::unique_ptr<Engine> cuda = start_engine(config_of("heads", "cuda"));
  ASSERT_TRUE(cpu != nullptr && cuda != nullptr);
  expect_same(testing::run_alone(*cpu, requests), testing::run_together(*cuda, requests), "heads");
}

// The module is made to guess well.
TEST(CudaModuleOfStates, ChangesNoAnswer) {
  if (!testing::is_full()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  const std::vector<ValidRequest> requests = make_requests();
  const std::unique_ptr<Engine> cpu = start_engine(config_of("delta-mtp", "cpu"));
  ASSERT_NE(cpu, nullptr);
  const std::vector<Collected> expected = testing::run_alone(*cpu, requests);
  Config config = config_of("delta-mtp", "cuda");
  config.speculative_config = testing::spec_of("mtp");
  config.debug_preempt_every = 4;
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  for (const char* pass : {"cold", "cached"}) {
    expect_same(expected, testing::run_together(*engine, requests), pass);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(sum(engine->stats().drafts.num_accepted_tokens), 0U);
}

// Delta rules behind gated attention and experts, Mamba-2 with norms of groups, short convolutions;
// then two mixers in a layer, and layers of one half.
std::vector<std::string> models() {
  std::vector<std::string> names = {"delta", "mamba", "conv"};
  if (testing::is_full()) names.insert(names.end(), {"two-mixers", "halves"});
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, CudaStates, ::testing::ValuesIn(models()));

}  // namespace
}  // namespace sluice
