// SPDX-License-Identifier: Apache-2.0
// Equal requests give equal bits in every way of running them. The model is the repository's tiny
// one, or the file named by SLUICE_DETERMINISM_MODEL; SLUICE_DETERMINISM_REQUESTS sets the number
// of requests (default 60). At a commit every pair of settings runs, in the long tier every
// combination. If either variable is given, the scalar kernels, some hundred times slower than the
// others, run only the shortest four requests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::expect_same;
using testing::run_together;
using testing::start_engine;
using testing::usable_isas;

bool names_model() { return std::getenv("SLUICE_DETERMINISM_MODEL") != nullptr; }

std::string model_path() {
  const char* path = std::getenv("SLUICE_DETERMINISM_MODEL");
  return path != nullptr ? path : golden_folder() + "/tiny/tiny-llama.gguf";
}

constexpr size_t kAllRequests = 60;

size_t num_requests() {
  const char* text = std::getenv("SLUICE_DETERMINISM_REQUESTS");
  return text != nullptr ? static_cast<size_t>(std::atoi(text)) : kAllRequests;
}

Config base_config() {
  Config config;
  config.model = model_path();
  config.max_model_len = 1024;
  config.max_num_seqs = 64;
  config.kv_cache_memory = int64_t{64} << 20;
  return config;
}

// Adds some penalties, biases and masks.
void add_token_rules(int32_t vocab_size, std::mt19937_64& random, SamplingParams& params) {
  const auto token = [&] {
    return static_cast<TokenId>(random() % static_cast<uint64_t>(vocab_size));
  };
  params.presence_penalty = static_cast<float>(random() % 3) * 0.5F;
  params.frequency_penalty = static_cast<float>(random() % 3) * 0.25F;
  params.repetition_penalty = 1.0F + static_cast<float>(random() % 3) * 0.2F;
  for (uint64_t i = random() % 4; i > 0; --i) params.logit_bias.push_back({token(), 5.0F});
  for (uint64_t i = random() % 4; i > 0; --i) params.bad_words.push_back({token()});
  if (random() % 4 == 0) {
    params.reasoning_limit = {
        .max_tokens = static_cast<int32_t>(random() % 8), .begin = {}, .end = {token(), token()}};
  }
  if (random() % 4 == 0) {
    for (int i = 0; i < 20; ++i) params.allowed_token_ids.push_back(token());
    std::ranges::sort(params.allowed_token_ids);
  }
}

// Requests with random lengths, parameters and seeds; half share one of a few prefixes.
std::vector<ValidRequest> make_requests(int32_t vocab_size, size_t count) {
  std::mt19937_64 random(20261121);
  const auto below = [&random](uint64_t bound) { return random() % bound; };
  const auto random_tokens = [&](size_t length) {
    std::vector<TokenId> tokens(length);
    for (TokenId& token : tokens) {
      token = static_cast<TokenId>(below(static_cast<uint64_t>(vocab_size)));
    }
    return tokens;
  };
  std::vector<std::vector<TokenId>> prefixes;
  for (int i = 0; i < 4; ++i) prefixes.push_back(random_tokens(20 + below(200)));
  std::vector<ValidRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    ValidRequest request;
    std::vector<TokenId> prompt;
    if (below(2) == 0) prompt = prefixes[below(prefixes.size())];
    const std::vector<TokenId> tail = random_tokens(1 + below(below(4) == 0 ? 300 : 40));
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    request.prompt = std::move(prompt);
    SamplingParams& params = request.sampling;
    params.temperature = below(3) == 0 ? 0.0F : 0.2F + 0.1F * static_cast<float>(below(14));
    params.top_p = below(2) == 0 ? 1.0F : 0.5F + 0.1F * static_cast<float>(below(5));
    params.top_k = below(2) == 0 ? 0 : static_cast<int32_t>(1 + below(60));
    params.min_p = below(3) == 0 ? 0.05F : 0.0F;
    params.seed = random();
    params.max_tokens = static_cast<int32_t>(1 + below(40));
    params.min_tokens = below(4) == 0 ? params.max_tokens / 2 : 0;
    params.ignore_eos = below(2) == 0;
    params.num_logprobs = static_cast<int32_t>(below(7)) - 1;
    if (below(3) == 0) add_token_rules(vocab_size, random, params);
    if (i % 4 == 2) params.num_prompt_logprobs = static_cast<int32_t>(i / 4 % 4);
    request.arrival = std::chrono::steady_clock::now();
    requests.push_back(std::move(request));
  }
  return requests;
}

// Selects the requests that an instruction set runs.
std::vector<size_t> chosen_requests(const std::string& isa,
                                    const std::vector<ValidRequest>& requests) {
  std::vector<size_t> chosen(requests.size());
  std::iota(chosen.begin(), chosen.end(), size_t{0});
  if (isa != "scalar" || (!names_model() && num_requests() == kAllRequests)) return chosen;
  // Forced preemption recomputes the prompt for each generated token.
  const auto work = [&requests](size_t i) {
    const auto max_tokens = static_cast<size_t>(requests[i].sampling.max_tokens);
    return (requests[i].prompt.size() + max_tokens) * max_tokens;
  };
  std::sort(chosen.begin(), chosen.end(), [&](size_t a, size_t b) { return work(a) < work(b); });
  chosen.resize(std::min<size_t>(4, chosen.size()));
  return chosen;
}

template <typename T>
std::vector<T> pick(const std::vector<T>& values, const std::vector<size_t>& indices) {
  std::vector<T> picked;
  for (const size_t index : indices) picked.push_back(values[index]);
  return picked;
}

struct Setting {
  int32_t threads = 1;
  int32_t budget = 0;
  bool prefix = false;
  int32_t preempt = 0;

  [[nodiscard]] std::string name() const {
    return "threads " + std::to_string(threads) + ", budget " + std::to_string(budget) +
           ", prefix " + std::to_string(prefix) + ", preempt " + std::to_string(preempt);
  }
};

// All combinations, or six that cover any two values of different axes.
std::vector<Setting> make_settings(bool pairs_only) {
  std::vector<Setting> settings;
  for (const int32_t threads : {1, 2}) {
    for (const int32_t budget : {16, 128, 2048}) {
      for (const bool prefix : {false, true}) {
        for (const int32_t preempt : {0, 3}) {
          const bool a = (threads == 2) == prefix;
          const bool b = prefix == (preempt != 0);
          const bool in_pairs = budget == 16 ? a && b : budget == 128 ? !a && b : a && !b;
          if (in_pairs || !pairs_only) settings.push_back({threads, budget, prefix, preempt});
        }
      }
    }
  }
  return settings;
}

// Requests and their answers when run alone, on one thread, without a cache.
struct Alone {
  std::vector<ValidRequest> requests;
  std::vector<Collected> results;
};

Alone run_alone(Config config, size_t count) {
  config.threads = 1;
  config.enable_prefix_caching = false;
  const std::unique_ptr<Engine> engine = start_engine(config);
  if (engine == nullptr) return {};
  std::vector<ValidRequest> requests = make_requests(engine->model().vocab_size, count);
  std::vector<Collected> results = testing::run_alone(*engine, requests);
  return {std::move(requests), std::move(results)};
}

// Runs `base` with the settings on each instruction set. Adds the engines' counts to `stats`.
void expect_holds(const Config& base,
                  const Alone& alone,
                  const std::function<std::vector<Setting>(const std::string& isa)>& settings_of,
                  const std::string& what,
                  EngineStats& stats) {
  ASSERT_FALSE(alone.requests.empty());
  for (const std::string& isa : usable_isas()) {
    const std::vector<size_t> chosen = chosen_requests(isa, alone.requests);
    for (const Setting& setting : settings_of(isa)) {
      Config config = base;
      config.isa = isa;
      config.threads = setting.threads;
      config.max_num_batched_tokens = setting.budget;
      config.max_num_seqs = setting.budget == 16 ? 16 : 64;
      config.enable_prefix_caching = setting.prefix;
      config.debug_preempt_every = setting.preempt;
      const std::unique_ptr<Engine> engine = start_engine(config);
      ASSERT_NE(engine, nullptr);
      const std::string name = what + ", " + isa + ", " + setting.name();
      expect_same(
          pick(alone.results, chosen), run_together(*engine, pick(alone.requests, chosen)), name);
      if (::testing::Test::HasFatalFailure()) return;
      if (names_model()) std::fprintf(stderr, "same: %s\n", name.c_str());
      const EngineStats counted = engine->stats();
      stats.num_preemptions += counted.num_preemptions;
      stats.prefix_cache_hits += counted.prefix_cache_hits;
    }
  }
}

std::function<std::vector<Setting>(const std::string& isa)> always(std::vector<Setting> settings) {
  return [settings = std::move(settings)](const std::string&) { return settings; };
}

TEST(Determinism, TokensAndLogprobsDoNotDependOnHowARequestIsRun) {
  const Alone alone = run_alone(base_config(), num_requests());
  size_t num_tokens = 0;
  size_t num_scored = 0;
  for (const Collected& result : alone.results) {
    num_tokens += result.tokens.size();
    num_scored += result.prompt_logprobs.size();
  }
  ASSERT_GT(num_tokens, alone.requests.size() * 5);
  ASSERT_GT(num_scored, alone.requests.size() * 5);
  EngineStats stats;
  const auto settings_of = [](const std::string&) {
    return make_settings(/*pairs_only=*/!testing::is_full());
  };
  expect_holds(base_config(), alone, settings_of, "all", stats);
  // The axes had their effects.
  EXPECT_GT(stats.num_preemptions, 0U);
  EXPECT_GT(stats.prefix_cache_hits, 0U);
}

// Windowed layers in their own KV group, a mixture of experts, one in groups beside shared experts
// and a dense layer, halves of a layer side by side, gates of attention, layers that read the K and
// V of others, experts beside dense halves, chunks and growing queries, narrow values and sinks,
// kinds of layers with more heads and gates of heads, learned positions, and scores that fall with
// distance.
TEST(Determinism, HoldsForWindowsAndExperts) {
  for (const char* name : {"engine-windows",
                           "engine-experts",
                           "engine-router",
                           "engine-parallel",
                           "engine-gates",
                           "engine-shared",
                           "engine-beside",
                           "engine-chunks",
                           "engine-sinks",
                           "engine-heads",
                           "engine-positions",
                           "engine-distances"}) {
    Config config = base_config();
    config.model = golden_folder() + "/models/" + name + ".gguf";
    config.kv_cache_memory = int64_t{16} << 20;
    EngineStats stats;
    expect_holds(
        config,
        run_alone(config, std::max<size_t>(8, num_requests() / 4)),
        always({{2, 512, false, 0}, {2, 512, true, 3}, {1, 16, false, 0}, {1, 16, true, 3}}),
        name,
        stats);
    if (HasFatalFailure()) return;
  }
}

// INT8 weights and activations with a scale per token: codes depend only on the token's row.
void expect_int8_holds(const std::string& name) {
  const std::string data = golden_folder();
  const testing::TemporaryFolder folder;
  std::filesystem::copy(data + "/w8a8/" + name, folder.path());
  std::filesystem::copy_file(data + "/tokenizer/json/qwen.json", folder.at("tokenizer.json"));
  Config config = base_config();
  config.model = folder.path();
  EngineStats stats;
  expect_holds(config,
               run_alone(config, std::min<size_t>(40, num_requests())),
               always({{2, 512, true, 0}, {1, 16, true, 3}, {2, 128, false, 5}}),
               name,
               stats);
}

TEST(Determinism, HoldsForInt8Checkpoints) { expect_int8_holds("engine-w8a8"); }

TEST(Determinism, HoldsForInt8Experts) { expect_int8_holds("engine-experts-w8a8"); }

TEST(Determinism, ScarceMemoryPreemptsAndChangesNothing) {
  Config config = base_config();
  config.threads = 2;
  const std::unique_ptr<Engine> roomy = start_engine(config);
  ASSERT_NE(roomy, nullptr);
  // Short prompts are admitted together, and their long answers outgrow the cache.
  std::vector<ValidRequest> requests = make_requests(roomy->model().vocab_size, 24);
  for (ValidRequest& request : requests) {
    std::vector<TokenId>& prompt = request.prompt;
    prompt.resize(std::min<size_t>(prompt.size(), 30));
    request.sampling.max_tokens = 300;
    request.sampling.min_tokens = 0;
    request.sampling.ignore_eos = true;
  }
  const std::vector<Collected> expected = run_together(*roomy, requests);
  config.kv_cache_memory = 1;  // the plan's error names what one request needs
  const Expected<std::unique_ptr<Engine>> refused = create_engine(config);
  ASSERT_FALSE(refused.has_value());
  // Leaves room for two requests of full length.
  const EngineStats stats = roomy->stats();
  const int64_t bytes_per_block = base_config().kv_cache_memory / stats.num_blocks_total;
  config.kv_cache_memory = bytes_per_block * 2 * config.max_model_len / config.block_size;
  const std::unique_ptr<Engine> tight = start_engine(config);
  ASSERT_NE(tight, nullptr);
  expect_same(expected, run_together(*tight, requests), "scarce memory");
  EXPECT_GT(tight->stats().num_preemptions, 0U);
}

// Too little memory to keep prefixes, a disk that keeps them, and a restart in between.
TEST(Determinism, HoldsWithTiersBelowTheCache) {
  for (const char* dtype : {"auto", "int8"}) {
    const testing::TemporaryFolder folder;
    Config config = base_config();
    config.kv_cache_dtype = dtype;
    config.threads = 2;
    config.max_num_batched_tokens = 128;
    std::vector<ValidRequest> requests;
    std::vector<Collected> expected;
    {
      const std::unique_ptr<Engine> engine = start_engine(config);
      ASSERT_NE(engine, nullptr);
      requests = make_requests(engine->model().vocab_size, std::min<size_t>(60, num_requests()));
      expected = run_together(*engine, requests);
      const int64_t bytes_per_block = config.kv_cache_memory / engine->stats().num_blocks_total;
      config.kv_cache_memory = bytes_per_block * 2 * config.max_model_len / config.block_size;
    }
    uint64_t num_restored = 0;
    for (const int32_t preempt : {0, 5}) {
      config.kv_disk_path = folder.path();
      config.kv_offloading_size = preempt == 0 ? 0 : 1;
      config.debug_preempt_every = preempt;
      const std::unique_ptr<Engine> engine = start_engine(config);
      ASSERT_NE(engine, nullptr);
      for (const char* round : {"first", "second"}) {
        expect_same(expected,
                    run_together(*engine, requests),
                    std::string("disk tier, ") + dtype + ", preempt " + std::to_string(preempt) +
                        ", " + round + " round");
        if (HasFatalFailure()) return;
      }
      num_restored += engine->stats().kv_tier_hits;
    }
    EXPECT_GT(num_restored, 0U) << dtype;
  }
}

TEST(Determinism, PrefixHitGivesTheSameBitsAndIsReported) {
  Config config = base_config();
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  std::vector<ValidRequest> requests = make_requests(engine->model().vocab_size, 1);
  requests[0].prompt.resize(100, 7);
  const std::vector<Collected> cold = testing::run_alone(*engine, requests);
  const std::vector<Collected> warm = testing::run_alone(*engine, requests);
  expect_same(cold, warm, "prefix hit");
  EXPECT_EQ(cold[0].num_cached_tokens, 0);
  EXPECT_EQ(warm[0].num_cached_tokens, 99);  // one token is left to compute
  // Another tenant does not find it, and computes the same.
  requests[0].tenant_salt = 1;
  const std::vector<Collected> other = testing::run_alone(*engine, requests);
  expect_same(cold, other, "other tenant");
  EXPECT_EQ(other[0].num_cached_tokens, 0);
}

}  // namespace
}  // namespace sluice
