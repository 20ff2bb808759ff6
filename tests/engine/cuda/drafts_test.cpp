// SPDX-License-Identifier: Apache-2.0
// Drafts beside a target on a device: answers and log-probabilities are those without, whoever
// guesses, and what a model drafts there is what it drafts on the CPU.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/inspect.h"
#include "tests/engine/cuda/counters.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::expect_same;
using testing::start_engine;
using testing::TinyGguf;

const std::string kTiny = std::string(SLUICE_TEST_DATA) + "/tiny/tiny-llama.gguf";

uint64_t sum(const auto& counters) {
  return std::accumulate(counters.begin(), counters.end(), uint64_t{0});
}

std::string spec_of(const std::string& method, const std::string& model = "") {
  std::string spec = R"({"method": ")" + method + R"(", "num_speculative_tokens": 3,
      "adaptive": false)";
  if (!model.empty()) spec += R"(, "model": ")" + model + "\"";
  return spec + "}";
}

std::string head(const std::string& name) {
  return std::string(SLUICE_TEST_DATA) + "/eagle/" + name;
}

Config config_with(const std::string& spec) {
  Config config = TinyGguf(kTiny).config("cuda");
  config.max_num_seqs = 4;
  config.cuda_graph_sizes = {8};
  config.speculative_config = spec;
  return config;
}

// Greedy and drawn rows, which the device samples, and one that the host does, behind prompts that
// say everything twice.
std::vector<ValidRequest> requests_of(int32_t num_tokens) {
  std::vector<ValidRequest> requests(3);
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<TokenId> once = testing::tiny_prompt(11 + 4 * i, i);
    requests[i].prompt = once;
    requests[i].prompt.insert(requests[i].prompt.end(), once.begin(), once.end());
    SamplingParams& params = requests[i].sampling;
    params.max_tokens = num_tokens + static_cast<int32_t>(i);
    params.ignore_eos = true;
    params.num_logprobs = 2;
    params.seed = 70 + i;
    params.temperature = i == 0 ? 0.0F : 0.7F;
  }
  requests[2].sampling.presence_penalty = 0.5F;
  return requests;
}

const std::vector<ValidRequest>& requests() {
  static const std::vector<ValidRequest> made = requests_of(testing::is_short() ? 3 : 6);
  return made;
}

// What the device gives without drafts.
const std::vector<Collected>& expected() {
  static const std::vector<Collected> answers = [] {
    const std::unique_ptr<Engine> engine = start_engine(config_with(""));
    return engine == nullptr ? std::vector<Collected>()
                             : testing::run_together(*engine, requests());
  }();
  return answers;
}

DraftStats drafted_by(const Config& config, const std::vector<ValidRequest>& asked) {
  const std::unique_ptr<Engine> engine = start_engine(config);
  if (engine == nullptr) return {};
  const testing::DeviceCounters counters;
  expect_same(expected(), testing::run_together(*engine, asked), config.speculative_config);
  if (!config.enforce_eager) counters.expect_replays(true);
  testing::settle(*engine);
  EXPECT_EQ(engine->stats().num_blocks_used, 0) << config.speculative_config;
  return engine->stats().drafts;
}

TEST(CudaDrafts, OfProposersChangeNoAnswer) {
  std::vector<ValidRequest> predicted = requests();
  for (size_t i = 0; i < predicted.size(); ++i) predicted[i].prediction = expected()[i].tokens;
  EXPECT_GT(sum(drafted_by(config_with(spec_of("ngram")), predicted).num_accepted_tokens), 0U);
  if (HasFatalFailure() || testing::is_short()) return;
  for (const char* method : {"ngram", "suffix"}) {
    Config config = config_with(spec_of(method));
    config.debug_preempt_every = 4;
    config.enforce_eager = std::string(method) == "suffix";
    drafted_by(config, requests());
    if (HasFatalFailure()) return;
  }
}

// The device puts a step's rows behind the drafts of the step before, which it judges: the host has
// seen neither when it hands the next step over, at any error rate.
TEST(CudaDrafts, DoNotKeepTheQueueWaiting) {
  for (const char* rate : {"0", "0.3"}) {
    Config config = config_with(
        R"({"method": "replay", "num_speculative_tokens": 3, "adaptive": false,
            "replay_error_rate": )" +
        std::string(rate) + "}");
    config.enforce_eager = rate[1] != 0;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    std::vector<ValidRequest> asked = {requests()[0], requests()[1]};
    for (size_t i = 0; i < asked.size(); ++i) asked[i].prediction = expected()[i].tokens;
    testing::steps_of(*engine);
    const std::vector<Collected> answers = testing::run_together(*engine, asked);
    expect_same({expected().begin(), expected().begin() + 2}, answers, rate);
    testing::settle(*engine);
    EXPECT_GT(sum(engine->stats().drafts.num_accepted_tokens), 0U);
    const std::vector<StepRecord> steps = testing::steps_of(*engine);
    int32_t num_behind = 0;
    for (size_t i = 1; i < steps.size(); ++i) num_behind += steps[i].num_in_flight;
    EXPECT_GE(num_behind, 2) << rate;
    if (HasFatalFailure() || testing::is_short()) return;
  }
}

// The target drafts for itself, by the same noise: it is right every time, also where passes of
// drafts are recorded, and at a temperature.
TEST(CudaDrafts, OfTheTargetItselfAreAlwaysRight) {
  for (const bool eager : {false, true}) {
    Config config = config_with(spec_of("draft_model", kTiny));
    config.enforce_eager = eager;
    const DraftStats drafts = drafted_by(config, requests());
    EXPECT_GT(sum(drafts.num_draft_tokens), 3U);
    EXPECT_EQ(sum(drafts.num_accepted_tokens) + drafts.num_padded_rows,
              sum(drafts.num_draft_tokens));
    if (HasFatalFailure() || testing::is_short()) return;
  }
}

TEST(CudaDrafts, OfAModelThatIsPreemptedChangeNoAnswer) {
  Config config = config_with(spec_of("draft_model", kTiny));
  config.debug_preempt_every = 3;
  config.max_num_batched_tokens = 16;
  config.overlap = true;
  EXPECT_GT(sum(drafted_by(config, requests()).num_drafts), 0U);
}

// With ids of its own, with the target's, and of the output layer's states alone.
TEST(CudaDrafts, OfHeadsChangeNoAnswer) {
  for (const char* name : {"mapped", "layers", "first"}) {
    const bool is_first = std::string(name) == "first";
    Config config = config_with(spec_of(is_first ? "eagle" : "eagle3", head(name)));
    config.enforce_eager = std::string(name) == "layers";
    config.debug_preempt_every = is_first ? 4 : 0;
    config.max_num_batched_tokens = is_first ? 16 : 512;
    EXPECT_GT(sum(drafted_by(config, requests()).num_drafts), 0U) << name;
    if (HasFatalFailure() || testing::is_short()) return;
  }
}

// Prompts in pieces, hits of the cache, drafts of every length: the same engine again and again.
TEST(CudaDrafts, BehindHitsChangeNoAnswer) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  const std::unique_ptr<Engine> engine =
      start_engine(config_with(spec_of("eagle3", head("mapped"))));
  ASSERT_NE(engine, nullptr);
  for (const char* what : {"first", "again"}) {
    expect_same(expected(), testing::run_alone(*engine, requests()), what);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(engine->stats().prefix_cache_hits, 0U);
}

}  // namespace
}  // namespace sluice
