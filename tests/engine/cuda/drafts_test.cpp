// SPDX-License-Identifier: Apache-2.0
// Drafts beside a target on a device: answers and log-probabilities equal those without, for every
// proposer, and a model drafts there what it drafts on the CPU.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/inspect.h"
#include "tests/engine/cuda/counters.h"
#include "tests/engine/cuda/draft_requests.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::drafting_config;
using testing::eagle_head;
using testing::expect_same;
using testing::kTinyLlama;
using testing::spec_of;
using testing::start_engine;

uint64_t sum(const auto& counters) {
  return std::accumulate(counters.begin(), counters.end(), uint64_t{0});
}

const std::vector<ValidRequest>& requests() {
  static const std::vector<ValidRequest> made =
      testing::draft_requests(testing::is_short() ? 3 : 6);
  return made;
}

// The device's answers without drafts.
const std::vector<Collected>& expected() {
  static const std::vector<Collected> answers = [] {
    const std::unique_ptr<Engine> engine = start_engine(drafting_config(""));
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
  testing::predict(predicted, expected());
  EXPECT_GT(sum(drafted_by(drafting_config(spec_of("ngram")), predicted).num_accepted_tokens), 0U);
  if (HasFatalFailure() || testing::is_short()) return;
  for (const char* method : {"ngram", "suffix"}) {
    Config config = drafting_config(spec_of(method));
    config.debug_preempt_every = 4;
    config.enforce_eager = std::string(method) == "suffix";
    drafted_by(config, requests());
    if (HasFatalFailure()) return;
  }
}

// The device places a step's rows behind the previous step's drafts, which it judges: the host
// submits the next step before it has seen either, at any error rate.
TEST(CudaDrafts, DoNotKeepTheQueueWaiting) {
  for (const char* rate : {"0", "0.3"}) {
    Config config = drafting_config(testing::replay_spec(rate));
    config.enforce_eager = rate[1] != 0;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    std::vector<ValidRequest> asked = {requests()[0], requests()[1]};
    testing::predict(asked, expected());
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

// The target drafts for itself with the same noise: it is always right, also in recorded passes and
// at a temperature.
TEST(CudaDrafts, OfTheTargetItselfAreAlwaysRight) {
  for (const bool eager : {false, true}) {
    Config config = drafting_config(spec_of("draft_model", kTinyLlama));
    config.enforce_eager = eager;
    const DraftStats drafts = drafted_by(config, requests());
    EXPECT_GT(sum(drafts.num_draft_tokens), 3U);
    EXPECT_EQ(sum(drafts.num_accepted_tokens) + drafts.num_padded_rows,
              sum(drafts.num_draft_tokens));
    if (HasFatalFailure() || testing::is_short()) return;
  }
}

TEST(CudaDrafts, OfAModelThatIsPreemptedChangeNoAnswer) {
  Config config = drafting_config(spec_of("draft_model", kTinyLlama));
  config.debug_preempt_every = 3;
  config.max_num_batched_tokens = 16;
  config.overlap = true;
  EXPECT_GT(sum(drafted_by(config, requests()).num_drafts), 0U);
}

// Heads with ids of their own, with the target's, and on the output layer's states only.
TEST(CudaDrafts, OfHeadsChangeNoAnswer) {
  for (const char* name : {"mapped", "layers", "first"}) {
    const bool is_first = std::string(name) == "first";
    Config config = drafting_config(spec_of(is_first ? "eagle" : "eagle3", eagle_head(name)));
    config.enforce_eager = std::string(name) == "layers";
    config.debug_preempt_every = is_first ? 4 : 0;
    config.max_num_batched_tokens = is_first ? 16 : 512;
    EXPECT_GT(sum(drafted_by(config, requests()).num_drafts), 0U) << name;
    if (HasFatalFailure() || testing::is_short()) return;
  }
}

// A head's launches for a short prompt overlap: its tables of rotations grow in front of them.
TEST(CudaDrafts, OfHeadsBehindShortPromptsChangeNoAnswer) {
  std::vector<ValidRequest> asked = {requests().front()};
  asked.front().prompt.resize(5);
  asked.front().sampling.max_tokens = 4;
  const std::unique_ptr<Engine> plain = start_engine(drafting_config(""));
  Config config = drafting_config(spec_of("eagle3", eagle_head("mapped")));
  config.enforce_eager = true;  // recording fills the tables
  const std::unique_ptr<Engine> drafting = start_engine(config);
  ASSERT_TRUE(plain != nullptr && drafting != nullptr);
  expect_same(
      testing::run_together(*plain, asked), testing::run_together(*drafting, asked), "short");
  EXPECT_GT(sum(drafting->stats().drafts.num_drafts), 0U);
}

// Rows of an aborted request in the device's queue, behind unjudged drafts or as drafts, are
// dropped, and its slot and blocks serve other requests.
TEST(CudaDrafts, AbortsInFlightEndOnceAndChangeNoOtherAnswer) {
  std::vector<ValidRequest> asked = requests();
  testing::predict(asked, expected());
  std::vector<std::string> specs = {testing::replay_spec("0.3")};
  if (testing::is_full()) {
    specs.push_back(testing::replay_spec("0"));
    specs.push_back(spec_of("draft_model", kTinyLlama));
    specs.push_back(spec_of("eagle3", eagle_head("mapped")));
  }
  for (const std::string& spec : specs) {
    const std::unique_ptr<Engine> engine = start_engine(drafting_config(spec));
    ASSERT_NE(engine, nullptr);
    testing::expect_aborts_end_once(*engine, asked, expected(), testing::is_full() ? 9 : 3);
    EXPECT_GT(sum(engine->stats().drafts.num_accepted_tokens), 0U) << spec;
    if (HasFatalFailure()) return;
  }
}

TEST(CudaDrafts, OfAModuleBehindTheLayersChangeNoAnswer) {
  if (!testing::is_full()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  const Config config = drafting_config(spec_of("mtp", eagle_head("mtp-mimo")));
  EXPECT_GT(sum(drafted_by(config, requests()).num_drafts), 0U);
}

// Covers chunked prompts, cache hits and drafts of every length, repeatedly in one engine.
TEST(CudaDrafts, BehindHitsChangeNoAnswer) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  const std::unique_ptr<Engine> engine =
      start_engine(drafting_config(spec_of("eagle3", eagle_head("mapped"))));
  ASSERT_NE(engine, nullptr);
  for (const char* what : {"first", "again"}) {
    expect_same(expected(), testing::run_alone(*engine, requests()), what);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(engine->stats().prefix_cache_hits, 0U);
}

}  // namespace
}  // namespace sluice
