// SPDX-License-Identifier: Apache-2.0
// The whole engine on a device of type kCuda, with the shim in place of a GPU: the same tokens and
// bits as on the CPU where every matrix is INT8, and as every other way to run the requests where
// they are BF16. The shim's streams are lazy and its memory is closed to the host, so that a missing
// wait or a forgotten copy gives wrong bits or a fault.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/same_bits.h"
#include "tests/support/simt/memory.h"
#include "tests/support/tiny_hf_model.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::expect_same;
using testing::start_engine;
using testing::TinyWeights;

// A model of these weights for as long as it lives.
class TinyModel {
 public:
  explicit TinyModel(TinyWeights weights)
      : folder_(::testing::TempDir() + "cuda_engine_" + std::to_string(::getpid())) {
    std::filesystem::remove_all(folder_);
    EXPECT_TRUE(testing::write_tiny_hf_model(folder_, weights));
    std::filesystem::copy_file(std::string(SLUICE_TEST_DATA) + "/tokenizer/json/qwen.json",
                               folder_ + "/tokenizer.json");
  }

  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;

  ~TinyModel() { std::filesystem::remove_all(folder_); }

  [[nodiscard]] Config config(const std::string& device) const {
    Config config;
    config.model = folder_;
    config.device = device;
    config.threads = 1;
    config.max_model_len = 256;
    config.max_num_seqs = 8;
    config.kv_cache_memory = int64_t{1} << 20;
    return config;
  }

 private:
  std::string folder_;
};

std::vector<TokenId> prompt_of(size_t length, size_t seed) {
  std::vector<TokenId> tokens(length);
  for (size_t i = 0; i < length; ++i) {
    tokens[i] = static_cast<TokenId>(3 + (i * i * 31 + i * 7 + seed) % 430);
  }
  return tokens;
}

// Greedy and seeded rows, which the device samples; rows with edits, filters or alternatives, which
// the host does; a scored prompt; two prompts with a common beginning.
std::vector<ValidRequest> make_requests() {
  std::vector<ValidRequest> requests(5);
  constexpr size_t kLengths[] = {3, 34, 62, 12, 9};
  constexpr size_t kPrompts[] = {1, 2, 2, 3, 4};
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt.push_back({prompt_of(kLengths[i], kPrompts[i])});
    SamplingParams& params = requests[i].sampling;
    params.max_tokens = 5;
    params.ignore_eos = true;
    params.num_logprobs = 0;
    params.seed = 100 + i;
    params.temperature = i == 0 ? 0.0F : 0.9F;
  }
  requests[2].sampling.top_k = 20;
  requests[2].sampling.top_p = 0.8F;
  requests[3].sampling.num_logprobs = 3;
  requests[3].sampling.num_prompt_logprobs = 2;
  requests[4].sampling.presence_penalty = 0.5F;
  requests[4].sampling.logit_bias = {{17, 2.0F}};
  return requests;
}

struct Setting {
  int32_t budget;  // tokens a step
  bool prefix;     // caching
  int32_t preempt;
  bool overlap;

  void apply(Config& config) const {
    config.max_num_batched_tokens = budget;
    config.enable_prefix_caching = prefix;
    config.debug_preempt_every = preempt;
    config.overlap = overlap;
  }

  [[nodiscard]] std::string name() const {
    return "budget " + std::to_string(budget) + ", prefix " + std::to_string(prefix) +
           ", preempt " + std::to_string(preempt) + ", overlap " + std::to_string(overlap);
  }
};

constexpr Setting kSettings[] = {
    {256, false, 0, false}, {16, false, 3, false}, {48, true, 0, true}};

void expect_settings_hold(const TinyModel& model,
                          const std::vector<ValidRequest>& requests,
                          const std::vector<Collected>& expected) {
  uint64_t preemptions = 0;
  for (const Setting& setting : kSettings) {
    Config config = model.config("cuda");
    setting.apply(config);
    const int64_t launches = simt::num_device_launches();
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->model().backend, "cuda:shim");
    expect_same(expected, testing::run_together(*engine, requests), setting.name());
    // Steps of which no row samples follow each other.
    expect_same({expected[1]}, testing::run_alone(*engine, {requests[1]}), setting.name() + ", alone");
    if (::testing::Test::HasFatalFailure()) return;
    EXPECT_GT(simt::num_device_launches(), launches + 100);
    preemptions += engine->stats().num_preemptions;
  }
  EXPECT_GT(preemptions, 0U);
}

TEST(CudaEngine, Int8ModelHasTheTokensAndBitsOfTheCpu) {
  const TinyModel model(TinyWeights::kInt8);
  const std::vector<ValidRequest> requests = make_requests();
  std::vector<Collected> expected;
  {
    const std::unique_ptr<Engine> engine = start_engine(model.config("cpu"));
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->model().backend.substr(0, 4), "cpu:");
    expected = testing::run_alone(*engine, requests);
  }
  expect_settings_hold(model, requests, expected);
}

TEST(CudaEngine, Bf16ModelHasTheSameBitsHoweverItRuns) {
  const TinyModel model(TinyWeights::kBF16);
  const std::vector<ValidRequest> requests = make_requests();
  std::vector<Collected> expected;
  {
    Config config = model.config("cuda");
    config.enable_prefix_caching = false;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    expected = testing::run_alone(*engine, requests);
  }
  expect_settings_hold(model, requests, expected);
}

}  // namespace
}  // namespace sluice
