// SPDX-License-Identifier: Apache-2.0
// The whole engine on a device of type kCuda, the shim or a GPU: the same tokens and bits as on the
// CPU with INT8 matrices and a cache of floats, and with BF16 or GGUF matrices the same as in every
// other way of running the requests; with experts too. The shim's streams are lazy and its memory
// is closed to the host, so that a missing wait or copy gives wrong bits or a fault.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/engine/cuda/counters.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::expect_same;
using testing::start_engine;
using testing::TinyGguf;
using testing::TinyModel;
using testing::TinyWeights;

struct Setting {
  int32_t budget;  // tokens per step
  bool prefix;     // caching
  int32_t preempt;

  void apply(Config& config) const {
    config.max_num_batched_tokens = budget;
    config.enable_prefix_caching = prefix;
    config.debug_preempt_every = preempt;
  }

  [[nodiscard]] std::string name() const {
    return "budget " + std::to_string(budget) + ", prefix " + std::to_string(prefix) +
           ", preempt " + std::to_string(preempt);
  }
};

constexpr Setting kSettings[] = {{16, false, 3}, {256, false, 0}, {48, true, 0}};

// `vocab`: of the model, whose first three tokens are left out.
std::vector<ValidRequest> requests_to_run(TokenId vocab = 437) {
  std::vector<ValidRequest> requests = testing::tiny_requests();
  for (ValidRequest& request : requests) {
    for (TokenId& token : request.prompt) token = 3 + (token - 3) % (vocab - 3);
    if (testing::is_short()) request.sampling.max_tokens = 2;
  }
  return requests;
}

template <typename Model>
void expect_settings_hold(const Model& model,
                          const std::vector<ValidRequest>& requests,
                          const std::vector<Collected>& expected) {
  uint64_t preemptions = 0;
  const size_t count = testing::is_short() ? 1 : std::size(kSettings);
  for (const Setting& setting : std::span(kSettings).first(count)) {
    Config config = model.config("cuda");
    setting.apply(config);
    const testing::DeviceCounters counters;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->model().backend.substr(0, 5), "cuda:");
    expect_same(expected, testing::run_together(*engine, requests), setting.name());
    // Steps without sampling rows follow each other.
    expect_same(
        {expected[1]}, testing::run_alone(*engine, {requests[1]}), setting.name() + ", alone");
    if (::testing::Test::HasFatalFailure()) return;
    counters.expect_launches_above(100);
    preemptions += engine->stats().num_preemptions;
  }
  EXPECT_GT(preemptions, 0U);
}

template <typename Model>
void expect_the_bits_of_the_cpu(
    const Model& model, const std::vector<ValidRequest>& requests = requests_to_run()) {
  std::vector<Collected> expected;
  {
    const std::unique_ptr<Engine> engine = start_engine(model.config("cpu"));
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->model().backend.substr(0, 4), "cpu:");
    expected = testing::run_alone(*engine, requests);
  }
  expect_settings_hold(model, requests, expected);
}

template <typename Model>
void expect_the_same_bits_however_it_runs(
    const Model& model, const std::vector<ValidRequest>& requests = requests_to_run()) {
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

TEST(CudaEngine, Int8ModelHasTheTokensAndBitsOfTheCpu) {
  expect_the_bits_of_the_cpu(TinyModel(TinyWeights::kInt8, "float32"));
}

TEST(CudaEngine, Int8ExpertsHaveTheTokensAndBitsOfTheCpu) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  expect_the_bits_of_the_cpu(TinyModel(TinyWeights::kInt8Experts, "float32"));
}

// Formats Q4_1, Q8_0, F32 and F16; F16 has bits of its own.
TEST(CudaEngine, AGgufModelHasTheSameBitsHoweverItRuns) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  const std::string path = golden_folder() + "/tiny/tiny-llama.gguf";
  expect_the_same_bits_however_it_runs(TinyGguf(path));
}

constexpr TokenId kGoldenVocab = 71;
constexpr TokenId kLatentVocab = 259;

// A model of latents in which most tokens see more keys than they choose, and a layer reads what
// the one before has chosen.
TEST(CudaEngine, ChosenLatentsHaveTheTokensAndBitsOfTheCpu) {
  expect_the_bits_of_the_cpu(testing::TinyGolden("glm-moe-dsa", "float32"),
                             requests_to_run(kGoldenVocab));
}

// Scores that fall with distance, values narrower than keys, layers with inputs of their own.
TEST(CudaEngine, AttentionOfOtherFamiliesHasTheSameBitsHoweverItRuns) {
  if (!testing::is_full()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  for (const char* name : {"bloom", "mimo-v2", "gemma4-all"}) {
    SCOPED_TRACE(name);
    expect_the_same_bits_however_it_runs(testing::TinyGolden(name, "float32"),
                                         requests_to_run(kGoldenVocab));
  }
}

// Latents of 16 bits, and matrices of heads in floats and in codes.
TEST(CudaEngine, LatentsHaveTheSameBitsHoweverTheyRun) {
  if (!testing::is_full()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  const std::string path = golden_folder() + "/models/engine-latents.gguf";
  expect_the_same_bits_however_it_runs(TinyGguf(path), requests_to_run(kLatentVocab));
  expect_the_bits_of_the_cpu(TinyGguf(path, "float32"), requests_to_run(kLatentVocab));
  expect_the_same_bits_however_it_runs(testing::TinyGolden("deepseek-v32", "float16"),
                                       requests_to_run(kGoldenVocab));
}

TEST(CudaEngine, Bf16ModelHasTheSameBitsHoweverItRuns) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  expect_the_same_bits_however_it_runs(TinyModel(TinyWeights::kBF16));
}

TEST(CudaEngine, Bf16ExpertsHaveTheSameBitsHoweverTheyRun) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  expect_the_same_bits_however_it_runs(TinyModel(TinyWeights::kBF16Experts));
}

}  // namespace
}  // namespace sluice
