// SPDX-License-Identifier: Apache-2.0
// Models with recurrent layers in a whole engine: a request gets the same bits however it runs,
// states are found again like KV, and go to the tiers below the cache and come back.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/engine/speculation_rig.h"
#include "tests/support/covering_array.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using testing::ArrayRow;
using testing::Collected;
using testing::run_together;
using testing::start_engine;

Config config_of(const std::string& model) {
  Config config;
  config.model = golden_folder() + "/models/" + model + ".gguf";
  config.max_model_len = 512;
  config.kv_cache_memory = int64_t{32} << 20;
  config.threads = 1;
  return config;
}

// "replay" drafts what a request predicts, with errors.
std::string speculation_of(const std::string& drafts) {
  if (drafts == "off") return "";
  if (drafts == "replay") return testing::replay(0.2, 12);
  std::string text = R"({"num_speculative_tokens":4,"adaptive":false,"method":")" + drafts + '"';
  if (drafts == "ngram,suffix") text += R"(,"prompt_lookup_max":2,"prompt_lookup_min":1)";
  if (drafts == "draft_model") {
    text += R"(,"model":")" + golden_folder() + R"(/models/engine-experts.gguf")";
  }
  return text + "}";
}

// Prompts with common beginnings, some of which are conversations that go on.
std::vector<ValidRequest> make_requests(size_t count) {
  std::mt19937_64 random(20261129);
  const auto tokens = [&](size_t length) {
    std::vector<TokenId> ids(length);
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % 250);
    return ids;
  };
  const std::vector<std::vector<TokenId>> beginnings = {tokens(16), tokens(48), tokens(131)};
  std::vector<ValidRequest> requests(count);
  for (ValidRequest& request : requests) {
    if (random() % 3 != 0) request.prompt = beginnings[random() % beginnings.size()];
    const std::vector<TokenId> own = tokens(1 + random() % 60);
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.sampling.temperature = random() % 3 == 0 ? 0.0F : 0.9F;
    request.sampling.seed = random();
    request.sampling.max_tokens = static_cast<int32_t>(8 + random() % 40);
    request.sampling.ignore_eos = true;
    request.sampling.num_logprobs = static_cast<int32_t>(random() % 3);
    if (random() % 5 == 0) request.sampling.num_prompt_logprobs = 1;
    request.arrival = std::chrono::steady_clock::now();
  }
  return requests;
}

enum Axis : uint8_t {
  kBatch,
  kChunk,
  kPrefix,
  kPreempt,
  kOverlap,
  kThreads,
  kIsa,
  kStates,
  kRanks,
  kDrafts,
  kTier,
  kNumAxes
};

using Values = std::array<std::vector<std::string>, kNumAxes>;

// Whether a model's feed-forward halves are too narrow for ranks.
bool runs_on_one_rank(const std::string& model) {
  return model == "engine-halves" || model == "engine-two-mixers";
}

Values all_values(const std::string& model) {
  Values values;
  values[kBatch] = {"1", "8", "64"};
  values[kChunk] = {"16", "77", "2048"};
  values[kPrefix] = {"off", "cold", "hit", "partial"};
  values[kPreempt] = {"no", "recompute", "swap"};
  values[kOverlap] = {"off", "on"};
  values[kThreads] = {"1", "2"};
  values[kIsa] = testing::usable_isas();
  values[kStates] = {"many", "few"};
  values[kRanks] = {"1", "2", "4", "1 of 2 stages"};
  if (runs_on_one_rank(model)) values[kRanks] = {"1", "1 of 2 stages"};
  values[kDrafts] = {"off", "replay", "ngram,suffix", "draft_model"};
  values[kTier] = {"none", "host", "disk"};
  return values;
}

class States : public ::testing::TestWithParam<std::string> {
 protected:
  Config config_of_row(const Values& values, const ArrayRow& row) {
    const auto value = [&](Axis axis) { return values[axis][row[axis]]; };
    Config config = config_of(GetParam());
    config.max_num_seqs = std::stoi(value(kBatch));
    config.max_num_batched_tokens = std::stoi(value(kChunk));
    config.enable_prefix_caching = value(kPrefix) != "off";
    if (value(kPreempt) != "no") config.debug_preempt_every = 3;
    config.overlap = value(kOverlap) == "on";
    config.threads = std::stoi(value(kThreads));
    config.isa = value(kIsa);
    config.tensor_parallel_size = std::stoi(value(kRanks));
    // Little more than one request: snapshots are evicted all the time.
    if (value(kStates) == "few") config.kv_cache_memory = few_bytes();
    config.speculative_config = speculation_of(value(kDrafts));
    // Tiers need a prefix cache, one rank and one stage; swapping needs a tier.
    if (config.enable_prefix_caching && config.tensor_parallel_size == 1) {
      if (value(kTier) == "disk") config.kv_disk_path = folder_.at(std::to_string(num_folders_++));
      const bool swaps = value(kPreempt) == "swap";
      if (swaps) config.preemption_mode = "swap";
      if (value(kTier) == "host" || (swaps && config.kv_disk_path.empty())) {
        config.kv_offloading_size = 1;
      }
    }
    // A cache in which all stays would read nothing back.
    const bool has_tier = config.kv_offloading_size > 0 || !config.kv_disk_path.empty();
    if (has_tier) config.kv_cache_memory = few_bytes();
    if (value(kRanks).ends_with("stages") && !has_tier) config.pipeline_parallel_size = 2;
    // What drafts take beside each state, or beside each token; and heads that ranks have twice.
    if (value(kDrafts) != "off") config.kv_cache_memory *= 4;
    if (value(kRanks) == "4") config.kv_cache_memory *= 2;
    return config;
  }

  static int64_t few_bytes() {
    if (GetParam() == "engine-mamba" || GetParam() == "engine-halves") return 300'000;
    return GetParam() == "engine-conv" ? 140'000 : 400'000;
  }

  static void warm_up(Engine& engine,
                      const std::string& prefix,
                      std::vector<ValidRequest> requests) {
    if (prefix != "hit" && prefix != "partial") return;
    for (ValidRequest& request : requests) {
      if (prefix == "partial") request.prompt.resize(request.prompt.size() / 2 + 1);
      request.sampling.max_tokens = 2;
    }
    run_together(engine, requests);
  }

  testing::TemporaryFolder folder_;
  int num_folders_ = 0;
};

TEST_P(States, AnyTwoWaysOfRunningARequestGiveItTheSameBits) {
  const bool full = testing::is_full();
  // Its layers are those of two other models, which are here and in the array of attention.
  if (!full && GetParam() == "engine-channels") GTEST_SKIP() << "only with SLUICE_FULL=1";
  const std::vector<ValidRequest> requests = make_requests(full ? 2400 : 40);
  Config alone = config_of(GetParam());
  alone.max_num_seqs = 1;
  alone.enable_prefix_caching = false;
  const std::unique_ptr<Engine> reference = start_engine(alone);
  ASSERT_NE(reference, nullptr);
  const std::vector<Collected> expected = testing::run_alone(*reference, requests);
  std::vector<ValidRequest> predicting = requests;
  for (size_t i = 0; i < requests.size(); ++i) predicting[i].prediction = expected[i].tokens;

  const Values values = all_values(GetParam());
  std::vector<size_t> sizes;
  for (const auto& of_axis : values) sizes.push_back(of_axis.size());
  uint64_t num_tokens = 0;
  uint64_t num_hits = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_accepted = 0;
  uint64_t num_rejected = 0;
  uint64_t num_restored = 0;
  for (const ArrayRow& row : testing::covering_array(sizes)) {
    std::string what;
    for (size_t a = 0; a < kNumAxes; ++a) what += values[a][row[a]] + " ";
    const Config config = config_of_row(values, row);
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr) << what;
    const bool is_slow = values[kIsa][row[kIsa]] == "scalar";
    // Ranks wait for each other, long where other work has the cores.
    const bool waits =
        !full && (config.tensor_parallel_size > 1 || config.pipeline_parallel_size > 1);
    const size_t count = is_slow ? (full ? 60 : 3) : waits ? 8 : requests.size();
    constexpr size_t kPart = 200;  // that the queue can hold
    for (size_t from = 0; from < count; from += kPart) {
      const auto begin = static_cast<ptrdiff_t>(from);
      const auto end = static_cast<ptrdiff_t>(std::min(from + kPart, count));
      const auto& all = values[kDrafts][row[kDrafts]] == "off" ? requests : predicting;
      const std::vector<ValidRequest> part(all.begin() + begin, all.begin() + end);
      warm_up(*engine, values[kPrefix][row[kPrefix]], part);
      const std::vector<Collected> results = run_together(*engine, part);
      testing::expect_same({expected.begin() + begin, expected.begin() + end}, results, what);
      if (HasFatalFailure()) return;
      for (const Collected& result : results) num_tokens += result.tokens.size();
    }
    const EngineStats stats = engine->stats();
    num_hits += stats.prefix_cache_hits;
    num_preemptions += stats.num_preemptions;
    num_restored += stats.kv_tier_hits;
    num_accepted += testing::sum(stats.drafts.num_accepted_tokens);
    num_rejected += testing::sum(stats.drafts.num_draft_tokens) -
                    testing::sum(stats.drafts.num_accepted_tokens);
  }
  std::printf("%llu tokens compared\n", static_cast<unsigned long long>(num_tokens));
  EXPECT_GT(num_tokens, full ? 400'000U : 5'000U);
  EXPECT_GT(num_hits, 1000U);
  EXPECT_GT(num_preemptions, 0U);
  EXPECT_GT(num_accepted, 500U);
  EXPECT_GT(num_rejected, 400U);
  EXPECT_GT(num_restored, 50U);
}

// Eight turns; a second conversation begins with the same system prompt, then a third.
TEST_P(States, AConversationFindsWhatItComputed) {
  const auto share_found = [](const std::string& model) {
    Config config = config_of(model);
    config.max_model_len = 2048;
    const std::unique_ptr<Engine> engine = start_engine(config);
    EXPECT_NE(engine, nullptr);
    if (engine == nullptr) return 0.0;
    std::mt19937_64 random(7);
    std::vector<TokenId> system(160);
    for (TokenId& id : system) id = static_cast<TokenId>(random() % 250);
    for (int conversation = 0; conversation < 16; ++conversation) {
      std::vector<TokenId> prompt = system;
      for (int turn = 0; turn < 8; ++turn) {
        for (int i = 0; i < 40; ++i) prompt.push_back(static_cast<TokenId>(random() % 250));
        ValidRequest request;
        request.prompt = prompt;
        request.sampling.max_tokens = 60;
        request.sampling.ignore_eos = true;
        request.sampling.seed = random();
        const std::vector<Collected> answers = run_together(*engine, {request});
        const std::vector<TokenId>& answer = answers.front().tokens;
        prompt.insert(prompt.end(), answer.begin(), answer.end());
      }
    }
    const EngineStats stats = engine->stats();
    return static_cast<double>(stats.prefix_cache_hits) /
           static_cast<double>(stats.prefix_cache_queries);
  };
  const double of_attention = share_found("engine-experts");
  const double found = share_found(GetParam());
  std::printf(
      "found %.3f of the prompts' tokens, a model of attention %.3f\n", found, of_attention);
  EXPECT_GT(of_attention, 0.8);
  EXPECT_GT(found, 0.95 * of_attention);
}

TEST_P(States, ThePlanCountsThemAndRefusesWhatDoesNotFit) {
  Config config = config_of(GetParam());
  config.max_num_seqs = 4;
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  const std::string& plan = engine->model().memory_plan;
  EXPECT_NE(plan.find("states"), std::string::npos) << plan;
  EXPECT_NE(plan.find("for 4 requests at once"), std::string::npos) << plan;
  config.kv_cache_memory = 4096;
  const auto refused = create_engine(config);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("for one request"), std::string::npos)
      << refused.error().message;
}

// What a request computes with these settings, alone, after other requests.
class StatesBelow : public States {
 protected:
  static ValidRequest request_of(std::vector<TokenId> prompt, int32_t max_tokens) {
    ValidRequest request;
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    request.sampling.seed = 5;
    request.sampling.temperature = 0.9F;
    request.sampling.num_logprobs = 1;
    return request;
  }

  static std::vector<TokenId> draw(int32_t length, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<TokenId> ids(static_cast<size_t>(length));
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % 250);
    return ids;
  }

  // The first turn of a conversation.
  static ValidRequest first_turn() { return request_of(draw(200, 1), 40); }

  // What follows its answer: of 239 tokens with a state, 224 are whole blocks.
  static ValidRequest second_turn(const Collected& answer) {
    std::vector<TokenId> prompt = first_turn().prompt;
    prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
    const std::vector<TokenId> more = draw(20, 2);
    prompt.insert(prompt.end(), more.begin(), more.end());
    return request_of(std::move(prompt), 20);
  }

  // Both turns without a cache.
  static std::vector<Collected> run_uncached() {
    Config config = config_of(GetParam());
    config.enable_prefix_caching = false;
    const std::unique_ptr<Engine> engine = start_engine(config);
    std::vector<Collected> expected = run_together(*engine, {first_turn()});
    expected.push_back(run_together(*engine, {second_turn(expected.front())}).front());
    return expected;
  }
};

TEST_P(StatesBelow, ARestartFindsStatesOnDisk) {
  const std::vector<Collected> expected = run_uncached();
  Config config = config_of(GetParam());
  config.kv_disk_path = folder_.path();
  {
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    testing::expect_same({expected[0]}, run_together(*engine, {first_turn()}), "first");
    EXPECT_EQ(engine->stats().kv_tier_hits, 0U);
  }
  {
    const std::unique_ptr<Engine> engine = start_engine(config);
    const std::vector<Collected> next = run_together(*engine, {second_turn(expected[0])});
    testing::expect_same({expected[1]}, next, "goes on behind the answer");
    EXPECT_EQ(next[0].num_cached_tokens, 224);
    EXPECT_EQ(engine->stats().kv_tier_hits, 224U);
  }
  const std::unique_ptr<Engine> engine = start_engine(config);
  const std::vector<Collected> again = run_together(*engine, {first_turn()});
  testing::expect_same({expected[0]}, again, "the same prompt");
  EXPECT_EQ(again[0].num_cached_tokens, 192);
}

TEST_P(StatesBelow, ThePlanCountsThemAndLessThanOneIsRefused) {
  Config config = config_of(GetParam());
  config.kv_disk_path = folder_.path();
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  EXPECT_NE(engine->model().memory_plan.find("KV below the cache"), std::string::npos);
  config.kv_disk_size = 20'000;
  const auto refused = create_engine(config);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().param, "kv-disk-size");
  EXPECT_NE(refused.error().message.find("is for states of recurrent layers, one of which takes"),
            std::string::npos)
      << refused.error().message;
}

// The state alone is lost while its KV stays, then both.
TEST_P(StatesBelow, AnEvictedStateComesBackWithTheSameBits) {
  const std::vector<Collected> expected = run_uncached();
  for (const bool is_small : {false, true}) {
    Config config = config_of(GetParam());
    config.max_num_seqs = 1;
    if (is_small) config.kv_cache_memory = few_bytes();
    config.kv_offloading_size = 1;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    testing::expect_same({expected[0]}, run_together(*engine, {first_turn()}), "first");
    for (uint64_t i = 0; i < 6; ++i) run_together(*engine, {request_of(draw(40, 10 + i), 2)});
    EXPECT_EQ(engine->stats().kv_tier_hits, 0U);
    const std::vector<Collected> next = run_together(*engine, {second_turn(expected[0])});
    testing::expect_same({expected[1]}, next, is_small ? "both lost" : "lost");
    EXPECT_EQ(next[0].num_cached_tokens, 224);
    EXPECT_EQ(engine->stats().kv_tier_hits, 224U);
  }
}

// Clients' own guesses are no configuration: they are let be.
TEST_P(States, APredictionChangesNothing) {
  const std::unique_ptr<Engine> engine = start_engine(config_of(GetParam()));
  ASSERT_NE(engine, nullptr);
  std::vector<ValidRequest> requests = make_requests(4);
  const std::vector<Collected> expected = run_together(*engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) requests[i].prediction = expected[i].tokens;
  testing::expect_same(expected, run_together(*engine, requests), "with predictions");
}

std::string name_of(const ::testing::TestParamInfo<std::string>& info) {
  if (info.param == "engine-mamba") return "Mamba2";
  if (info.param == "engine-channels") return "DeltaOfChannels";
  if (info.param == "engine-halves") return "LayersOfOneHalf";
  if (info.param == "engine-two-mixers") return "LayersOfTwoMixers";
  return info.param == "engine-delta" ? "Delta" : "ShortConv";
}

INSTANTIATE_TEST_SUITE_P(Models,
                         States,
                         ::testing::Values(
                             "engine-delta",
                             "engine-channels",
                             "engine-conv",
                             "engine-mamba",
                             "engine-halves",
                             "engine-two-mixers"),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Models,
                         StatesBelow,
                         ::testing::Values("engine-delta", "engine-mamba"),
                         name_of);

}  // namespace
}  // namespace sluice
