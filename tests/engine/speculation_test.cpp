// SPDX-License-Identifier: Apache-2.0
// Speculation changes only the speed: answers equal those without drafts, bit for bit, and so do
// hits, counts and ends. Drafts are the answer itself with errors (method replay), so that runs of
// every length are accepted and cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/engine/speculation_rig.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::Alone;
using testing::alone;
using testing::Collected;
using testing::expect_same;
using testing::replay;
using testing::run_alone;
using testing::run_together;
using testing::settle;
using testing::start_engine;
using testing::sum;
using testing::tiny_config;
using testing::varied_requests;

Alone varied_alone(size_t count) {
  const std::unique_ptr<Engine> engine = start_engine(tiny_config());
  return alone(varied_requests(engine->model().vocab_size, count));
}

void expect_conserved(const DraftStats& drafts) {
  const uint64_t drafted = sum(drafts.num_draft_tokens);
  const uint64_t accepted = sum(drafts.num_accepted_tokens);
  EXPECT_EQ(sum(drafts.num_accepted_at), accepted);
  EXPECT_LE(accepted + drafts.num_padded_rows, drafted);
  EXPECT_EQ(sum(drafts.depth.counts), sum(drafts.num_drafts));
  for (size_t i = 1; i < drafts.num_accepted_at.size(); ++i) {
    EXPECT_LE(drafts.num_accepted_at[i], drafts.num_accepted_at[i - 1]);
  }
}

// The requests include penalties, min_tokens, bad words, stop tokens, log-probabilities and scored
// prompts; stop and max_tokens end inside accepted runs.
TEST(Speculation, IsNotToBeSeenInAnyAnswer) {
  const Alone expected = varied_alone(80);
  for (const double error_rate : {0.0, 0.2, 1.0}) {
    for (const int32_t num_seqs : {1, 7, 64}) {
      for (const bool overlap : {false, true}) {
        Config config = tiny_config();
        config.speculative_config = replay(error_rate, num_seqs == 7 ? 3 : 12);
        config.max_num_seqs = num_seqs;
        config.overlap = overlap;
        config.debug_preempt_every = num_seqs == 7 ? 5 : 0;
        const std::unique_ptr<Engine> engine = start_engine(config);
        ASSERT_NE(engine, nullptr);
        expect_same(expected.answers,
                    run_together(*engine, expected.requests),
                    config.speculative_config + std::to_string(num_seqs));
        if (HasFatalFailure()) return;
        settle(*engine);
        const EngineStats stats = engine->stats();
        EXPECT_EQ(stats.num_blocks_used, 0);
        expect_conserved(stats.drafts);
        EXPECT_GT(sum(stats.drafts.num_drafts), 0U);
        EXPECT_EQ(sum(stats.drafts.num_accepted_tokens) > 0, error_rate < 1);
      }
    }
  }
}

// Runs each method with its own guesses, under the budget.
TEST(Speculation, MethodsChangeNoAnswer) {
  const Alone expected = varied_alone(60);
  std::vector<ValidRequest> repeating = expected.requests;
  for (ValidRequest& request : repeating) {
    const std::vector<TokenId> once = request.prompt;
    for (int i = 0; i < 2; ++i) {
      request.prompt.insert(request.prompt.end(), once.begin(), once.end());
    }
    request.prediction.clear();
  }
  const std::vector<Collected> repeated = alone(repeating).answers;
  for (const char* method :
       {R"({"method":"ngram","prompt_lookup_max":3,"prompt_lookup_min":1})",
        R"({"method":"suffix","num_speculative_tokens":8})",
        R"({"method":"ngram,suffix","prompt_lookup_max":2,"prompt_lookup_min":1,"adaptive":false})",
        ""}) {
    Config config = tiny_config();
    config.speculative_config = method;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    expect_same(repeated, run_together(*engine, repeating), method);
    expect_same(expected.answers, run_together(*engine, expected.requests), method);
    expect_same(repeated, run_together(*engine, repeating), method);
    if (HasFatalFailure()) return;
    settle(*engine);
    expect_conserved(engine->stats().drafts);
    // With a budget, no draft may be worth its rows.
    const bool is_fixed = config.speculative_config.find("false") != std::string::npos;
    EXPECT_TRUE(!is_fixed || sum(engine->stats().drafts.num_drafts) > 0) << method;
  }
}

TEST(Speculation, RightDraftsTakeAsManyStepsLess) {
  std::vector<ValidRequest> requests = testing::seeded_requests(1);
  requests[0].sampling.max_tokens = 65;
  requests[0].sampling.ignore_eos = true;
  const Alone expected = alone(requests);
  Config config = tiny_config();
  config.speculative_config = replay(0, 15);
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  expect_same(expected.answers, run_together(*engine, expected.requests), "replay");
  // One token from the prompt, then sixteen per step, or fewer where a block ends.
  EXPECT_LE(engine->stats().num_steps, 6U);
}

TEST(Speculation, OfARequestThatWantsNoneNothingIsDrafted) {
  Alone expected = varied_alone(10);
  for (ValidRequest& request : expected.requests) request.speculative = false;
  Config config = tiny_config();
  config.speculative_config = replay(0, 8);
  const std::unique_ptr<Engine> engine = start_engine(config);
  expect_same(expected.answers, run_together(*engine, expected.requests), "none");
  EXPECT_EQ(sum(engine->stats().drafts.num_drafts), 0U);
}

// A step waits for a previous one with drafts instead of leaving out their request.
TEST(Speculation, ARequestWithDraftsIsInEveryStep) {
  std::vector<ValidRequest> requests = testing::seeded_requests(2);
  for (ValidRequest& request : requests) {
    request.sampling.max_tokens = 60;
    request.sampling.ignore_eos = true;
  }
  Alone expected = alone(requests);
  expected.requests[1].speculative = false;
  Config config = tiny_config();
  config.speculative_config = replay(0.5, 2);
  config.overlap = true;
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  expect_same(expected.answers, run_together(*engine, expected.requests), "overlap");
  settle(*engine);
  const std::vector<StepRecord> steps = testing::steps_of(*engine);
  const auto has = [](const StepRecord& step, RequestId id) {
    return std::ranges::find(step.items, id, &StepItem::id) != step.items.end();
  };
  int num_drafted = 0;
  for (size_t i = 0; i + 2 < steps.size(); ++i) {
    for (const StepItem& item : steps[i].items) {
      if (item.num_drafts == 0 || !has(steps[i + 2], item.id)) continue;
      EXPECT_TRUE(has(steps[i + 1], item.id)) << steps[i].number;
      ++num_drafted;
    }
  }
  EXPECT_GT(num_drafted, 10);
}

// Usage counts a prediction's delivered tokens: each output has the count up to it.
TEST(Speculation, PredictionsAreCountedAsTheirTokensCome) {
  std::vector<ValidRequest> requests = testing::seeded_requests(1);
  requests[0].sampling.max_tokens = 12;
  requests[0].sampling.ignore_eos = true;
  const Alone expected = alone(requests);
  const std::unique_ptr<Engine> engine = start_engine(tiny_config());
  ASSERT_NE(engine, nullptr);
  class Sink final : public OutputSink {
   public:
    void publish(OutputBatch batch) override {
      const std::scoped_lock lock(mutex);
      for (const TokenOutput& output : batch.outputs) {
        accepted.push_back(output.num_accepted_predictions);
        if (output.finish_reason != FinishReason::kNone) ended.set_value();
      }
    }

    std::mutex mutex;
    std::vector<int32_t> accepted;
    std::promise<void> ended;
  } sink;
  ASSERT_TRUE(engine->submit(expected.requests[0], sink).has_value());
  sink.ended.get_future().wait();
  const std::scoped_lock lock(sink.mutex);
  ASSERT_EQ(sink.accepted.size(), 12U);
  for (size_t i = 0; i < sink.accepted.size(); ++i) {
    const int32_t before = i == 0 ? 0 : sink.accepted[i - 1];
    EXPECT_LE(sink.accepted[i], before + 1);
  }
}

// Prefix cache hits equal those without drafts, to the token, in a cache that is always full.
TEST(Speculation, PrefixHitTokensEqualNoSpeculation) {
  std::vector<ValidRequest> requests = testing::seeded_requests(40);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = requests[i % 5].prompt;
    requests[i].prompt.resize(64 + i % 3 * 16, static_cast<TokenId>(i % 5));
    requests[i].prompt.push_back(static_cast<TokenId>(i));
    requests[i].sampling.max_tokens = 40;
    requests[i].sampling.ignore_eos = true;
  }
  std::vector<uint64_t> hits;
  std::vector<Collected> answers;
  for (const std::string& method : {std::string(), replay(0.1, 12), replay(1, 12)}) {
    Config config = tiny_config();
    config.speculative_config = method;
    config.kv_cache_memory = int64_t{1} << 18;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    const std::vector<Collected> results = run_alone(*engine, requests);
    if (answers.empty()) answers = results;
    expect_same(answers, results, method);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(results[i].num_cached_tokens, answers[i].num_cached_tokens) << method;
      requests[i].prediction = answers[i].tokens;
    }
    hits.push_back(engine->stats().prefix_cache_hits);
  }
  EXPECT_GT(hits[0], 0U);
  EXPECT_EQ(hits[1], hits[0]);
  EXPECT_EQ(hits[2], hits[0]);
}

// Accepted tokens of a request in flight count once when it is preempted and restored from a tier.
TEST(Speculation, PreemptedInFlightKeepsAcceptedTokensOnce) {
  const Alone expected = varied_alone(40);
  for (const char* mode : {"recompute", "swap"}) {
    for (const bool overlap : {false, true}) {
      const testing::TemporaryFolder folder;
      Config config = tiny_config();
      config.speculative_config = replay(0.3, 6);
      config.kv_cache_memory = int64_t{1} << 18;
      config.preemption_mode = mode;
      config.kv_disk_path = folder.path();
      config.debug_preempt_every = 2;
      config.overlap = overlap;
      const std::unique_ptr<Engine> engine = start_engine(config);
      ASSERT_NE(engine, nullptr);
      expect_same(expected.answers, run_together(*engine, expected.requests), mode);
      if (HasFatalFailure()) return;
      settle(*engine);
      EXPECT_GT(engine->stats().num_preemptions, 0U);
      expect_conserved(engine->stats().drafts);
    }
  }
}

// The gauge in the metrics is the budget's expectation for the latest drafts.
TEST(Speculation, GainOfTheLatestDraftsIsInTheStats) {
  std::vector<ValidRequest> requests = testing::seeded_requests(1);
  requests[0].sampling.max_tokens = 300;
  requests[0].sampling.ignore_eos = true;
  const Alone expected = alone(requests);
  Config config = tiny_config();
  config.speculative_config = replay(0, 12, /*is_fixed=*/false);
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->stats().drafts.gain_ratio, 1);
  // On a busy machine some rounds of the small model's steps may look like losses.
  for (int round = 0; round < 20 && engine->stats().drafts.gain_ratio <= 1; ++round) {
    expect_same(expected.answers, run_together(*engine, expected.requests), "adaptive");
    settle(*engine);
  }
  EXPECT_GT(engine->stats().drafts.gain_ratio, 1);
  EXPECT_GT(sum(engine->stats().drafts.num_drafts), 0U);
}

// A running request's draft counts are reported.
TEST(Speculation, StateTellsOfEachRequestsDrafts) {
  std::vector<ValidRequest> requests = testing::seeded_requests(1);
  requests[0].sampling.max_tokens = 400;
  requests[0].sampling.ignore_eos = true;
  Config config = tiny_config();
  config.speculative_config = R"({"method":"ngram","prompt_lookup_min":1,"prompt_lookup_max":1,)"
                              R"("num_speculative_tokens":4,"adaptive":false})";
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  testing::CollectingSink sink;
  ASSERT_TRUE(engine->submit(requests[0], sink).has_value());
  bool is_told = false;
  while (!is_told && engine->stats().num_steps < 500) {
    std::promise<EngineState> promise;
    engine->report_state(1, [&](EngineState state) { promise.set_value(std::move(state)); });
    for (const RequestSummary& summary : promise.get_future().get().requests) {
      EXPECT_LE(summary.num_accepted_tokens, summary.num_draft_tokens);
      EXPECT_LT(summary.num_accepted_tokens, std::max(summary.num_generated, 1));
      is_told = is_told || summary.num_draft_tokens > 0;
    }
  }
  EXPECT_TRUE(is_told);
  engine->stop();
}

// Equal results with three ranks, whose steps rank 0 decides.
TEST(Speculation, RanksShareTheRowsOfDrafts) {
  const Alone expected = varied_alone(20);
  Config config = tiny_config();
  config.speculative_config = replay(0.2, 5);
  config.tensor_parallel_size = 2;
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  expect_same(expected.answers, run_together(*engine, expected.requests), "ranks");
  EXPECT_GT(sum(engine->stats().drafts.num_accepted_tokens), 0U);
}

// Experience with good drafts does not fade with their number.
TEST(Speculation, AcceptanceDoesNotDecay) {
  std::vector<ValidRequest> requests = testing::seeded_requests(200);
  for (ValidRequest& request : requests) {
    request.prompt.resize(20);
    request.sampling.max_tokens = 30;
  }
  const Alone expected = alone(requests);
  Config config = tiny_config();
  config.speculative_config = replay(0.1, 6, /*is_fixed=*/true);
  const std::unique_ptr<Engine> engine = start_engine(config);
  double first = 0;
  uint64_t drafted = 0;
  uint64_t accepted = 0;
  for (int round = 0; round < 5; ++round) {
    expect_same(expected.answers, run_together(*engine, expected.requests), "round");
    if (HasFatalFailure()) return;
    const DraftStats drafts = engine->stats().drafts;
    const auto share = static_cast<double>(sum(drafts.num_accepted_tokens) - accepted) /
                       static_cast<double>(sum(drafts.num_draft_tokens) - drafted);
    drafted = sum(drafts.num_draft_tokens);
    accepted = sum(drafts.num_accepted_tokens);
    if (round == 0) first = share;
    EXPECT_NEAR(share, first, 0.05) << round;
  }
  EXPECT_GT(first, 0.5);
}

}  // namespace
}  // namespace sluice
