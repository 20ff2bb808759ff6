// SPDX-License-Identifier: Apache-2.0
// Same request, same bits: the same requests under every way the engine may run them. The model is
// the tiny one of the repository, or the file named by SLUICE_DETERMINISM_MODEL;
// SLUICE_DETERMINISM_REQUESTS sets how many requests (default 200). The scalar kernels, some
// hundred times slower than the others, run every pair of settings instead of every combination
// (unless SLUICE_FULL is set), and where either variable is given only the shortest four requests.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "kernels/device.h"
#include "tests/support/collecting_sink.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::CollectingSink;

bool names_model() { return std::getenv("SLUICE_DETERMINISM_MODEL") != nullptr; }

std::string model_path() {
  const char* path = std::getenv("SLUICE_DETERMINISM_MODEL");
  return path != nullptr ? path : std::string(SLUICE_TEST_DATA) + "/tiny/tiny-llama.gguf";
}

constexpr size_t kAllRequests = 200;

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

std::unique_ptr<Engine> start(const Config& config) {
  Expected<std::unique_ptr<Engine>> engine = create_engine(config);
  EXPECT_TRUE(engine.has_value()) << engine.error().message;
  return engine ? std::move(*engine) : nullptr;
}

// Penalties, bias and masks, some of each.
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
    request.prompt.push_back({std::move(prompt)});
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

std::vector<Collected> run_mixed(Engine& engine, const std::vector<ValidRequest>& requests) {
  CollectingSink sink;
  std::vector<RequestId> ids;
  for (const ValidRequest& request : requests) {
    const Expected<RequestId> id = engine.submit(request, sink);
    EXPECT_TRUE(id.has_value()) << id.error().message;
    ids.push_back(*id);
  }
  std::vector<Collected> results;
  for (const RequestId id : ids) results.push_back(sink.wait(id));
  return results;
}

std::vector<Collected> run_alone(Engine& engine, const std::vector<ValidRequest>& requests) {
  std::vector<Collected> results;
  for (const ValidRequest& request : requests) results.push_back(run_mixed(engine, {request})[0]);
  return results;
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

void expect_same_prompt_logprobs(const Collected& a, const Collected& b, const std::string& what) {
  ASSERT_EQ(a.prompt_logprobs.size(), b.prompt_logprobs.size()) << what;
  for (size_t i = 0; i < a.prompt_logprobs.size(); ++i) {
    const PromptLogprob& left = a.prompt_logprobs[i];
    const PromptLogprob& right = b.prompt_logprobs[i];
    ASSERT_TRUE(left.token == right.token && left.rank == right.rank &&
                same_bits(left.logprob, right.logprob))
        << what << ", prompt token " << i + 1;
    ASSERT_EQ(left.top_logprobs.size(), right.top_logprobs.size()) << what;
    for (size_t k = 0; k < left.top_logprobs.size(); ++k) {
      ASSERT_EQ(left.top_logprobs[k].token, right.top_logprobs[k].token) << what;
      ASSERT_TRUE(same_bits(left.top_logprobs[k].logprob, right.top_logprobs[k].logprob)) << what;
    }
  }
}

// Bits, not values: memcmp of the log-probabilities.
void expect_same(const std::vector<Collected>& expected,
                 const std::vector<Collected>& actual,
                 const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const Collected& a = expected[i];
    const Collected& b = actual[i];
    ASSERT_EQ(b.num_ends, 1) << what << ", request " << i;
    ASSERT_EQ(a.tokens, b.tokens) << what << ", request " << i;
    ASSERT_EQ(a.finish_reason, b.finish_reason) << what << ", request " << i;
    ASSERT_EQ(std::memcmp(a.logprobs.data(), b.logprobs.data(), a.logprobs.size() * sizeof(float)),
              0)
        << what << ", request " << i << ": log-probabilities differ in bits";
    expect_same_prompt_logprobs(a, b, what + ", request " + std::to_string(i));
    ASSERT_EQ(a.top_logprobs.size(), b.top_logprobs.size()) << what << ", request " << i;
    for (size_t k = 0; k < a.top_logprobs.size(); ++k) {
      ASSERT_EQ(a.top_logprobs[k].token, b.top_logprobs[k].token) << what << ", request " << i;
      ASSERT_EQ(std::memcmp(&a.top_logprobs[k].logprob, &b.top_logprobs[k].logprob, sizeof(float)),
                0)
          << what << ", request " << i;
    }
  }
}

// Which requests an instruction set runs.
std::vector<size_t> chosen_requests(const std::string& isa,
                                    const std::vector<ValidRequest>& requests) {
  std::vector<size_t> chosen(requests.size());
  std::iota(chosen.begin(), chosen.end(), size_t{0});
  if (isa != "scalar" || (!names_model() && num_requests() == kAllRequests)) return chosen;
  // Forced preemption computes the prompt again for each generated token.
  const auto work = [&requests](size_t i) {
    const auto max_tokens = static_cast<size_t>(requests[i].sampling.max_tokens);
    return (requests[i].prompt[0].token_ids.size() + max_tokens) * max_tokens;
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

// All combinations; or six of them in which any two values of different axes meet.
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

std::vector<std::string> usable_isas() {
  std::vector<std::string> isas;
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    if (kernels::Device::create({.isa = isa, .threads = 1})) isas.emplace_back(isa);
  }
  return isas;
}

TEST(Determinism, TokensAndLogprobsDoNotDependOnHowARequestIsRun) {
  std::vector<ValidRequest> requests;
  std::vector<Collected> expected;
  {
    Config config = base_config();
    config.threads = 1;
    config.enable_prefix_caching = false;
    const std::unique_ptr<Engine> engine = start(config);
    ASSERT_NE(engine, nullptr);
    requests = make_requests(engine->model().vocab_size, num_requests());
    expected = run_alone(*engine, requests);
  }
  size_t num_tokens = 0;
  size_t num_scored = 0;
  for (const Collected& result : expected) {
    num_tokens += result.tokens.size();
    num_scored += result.prompt_logprobs.size();
  }
  ASSERT_GT(num_tokens, requests.size() * 5);
  ASSERT_GT(num_scored, requests.size() * 5);

  int64_t num_preemptions = 0;
  int64_t num_cached = 0;
  for (const std::string& isa : usable_isas()) {
    const std::vector<size_t> chosen = chosen_requests(isa, requests);
    const std::vector<ValidRequest> some = pick(requests, chosen);
    const std::vector<Collected> expected_some = pick(expected, chosen);
    const bool pairs_only = isa == "scalar" && std::getenv("SLUICE_FULL") == nullptr;
    for (const Setting& setting : make_settings(pairs_only)) {
      Config config = base_config();
      config.isa = isa;
      config.threads = setting.threads;
      config.max_num_batched_tokens = setting.budget;
      config.max_num_seqs = setting.budget == 16 ? 16 : 64;
      config.enable_prefix_caching = setting.prefix;
      config.debug_preempt_every = setting.preempt;
      const std::unique_ptr<Engine> engine = start(config);
      ASSERT_NE(engine, nullptr);
      expect_same(expected_some, run_mixed(*engine, some), isa + ", " + setting.name());
      if (HasFatalFailure()) return;
      if (names_model())
        std::fprintf(stderr, "same: %s, %s\n", isa.c_str(), setting.name().c_str());
      const EngineStats stats = engine->stats();
      num_preemptions += static_cast<int64_t>(stats.num_preemptions);
      num_cached += static_cast<int64_t>(stats.prefix_cache_hits);
    }
  }
  // The matrix did what its axes say.
  EXPECT_GT(num_preemptions, 0);
  EXPECT_GT(num_cached, 0);
}

// Windowed layers in a KV group of their own, and a mixture of experts.
TEST(Determinism, HoldsForWindowsAndExperts) {
  for (const char* name : {"engine-windows", "engine-experts"}) {
    Config base = base_config();
    base.model = std::string(SLUICE_TEST_DATA) + "/models/" + name + ".gguf";
    base.kv_cache_memory = int64_t{16} << 20;
    std::vector<ValidRequest> requests;
    std::vector<Collected> expected;
    for (const std::string& isa : usable_isas()) {
      for (const int32_t budget : {512, 16}) {
        for (const int32_t preempt : {0, 3}) {
          Config config = base;
          config.isa = isa;
          config.threads = budget == 16 ? 1 : 2;
          config.max_num_batched_tokens = budget;
          config.max_num_seqs = 16;
          config.enable_prefix_caching = preempt != 0;
          config.debug_preempt_every = preempt;
          const std::unique_ptr<Engine> engine = start(config);
          ASSERT_NE(engine, nullptr);
          if (expected.empty()) {
            requests =
                make_requests(engine->model().vocab_size, std::max<size_t>(8, num_requests() / 5));
            expected = run_alone(*engine, requests);
          }
          expect_same(expected,
                      run_mixed(*engine, requests),
                      std::string(name) + ", " + isa + ", budget " + std::to_string(budget) +
                          ", preempt " + std::to_string(preempt));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Caches that round more: their codes and scales are a function of the token's row alone.
TEST(Determinism, HoldsForQuantizedCaches) {
  for (const char* dtype : {"int8", "fp8"}) {
    Config base = base_config();
    base.kv_cache_dtype = dtype;
    base.threads = 1;
    std::vector<ValidRequest> requests;
    std::vector<Collected> expected;
    {
      const std::unique_ptr<Engine> engine = start(base);
      ASSERT_NE(engine, nullptr);
      requests = make_requests(engine->model().vocab_size, std::min<size_t>(24, num_requests()));
      expected = run_alone(*engine, requests);
    }
    for (const std::string& isa : usable_isas()) {
      const std::vector<size_t> chosen = chosen_requests(isa, requests);
      for (const Setting& setting : {Setting{2, 512, true, 0}, Setting{1, 16, true, 3}}) {
        Config config = base;
        config.isa = isa;
        config.threads = setting.threads;
        config.max_num_batched_tokens = setting.budget;
        config.max_num_seqs = 16;
        config.block_size = setting.preempt == 0 ? 32 : 8;
        config.debug_preempt_every = setting.preempt;
        const std::unique_ptr<Engine> engine = start(config);
        ASSERT_NE(engine, nullptr);
        expect_same(pick(expected, chosen),
                    run_mixed(*engine, pick(requests, chosen)),
                    std::string(dtype) + ", " + isa + ", " + setting.name());
        if (HasFatalFailure()) return;
      }
    }
  }
}

// INT8 weights and activations with a scale per token: a token's codes are a function of its row.
void expect_int8_holds(const std::string& name) {
  const std::string data = SLUICE_TEST_DATA;
  const std::string folder =
      ::testing::TempDir() + "determinism_w8a8_" + std::to_string(::getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::copy(data + "/w8a8/" + name, folder);
  std::filesystem::copy_file(data + "/tokenizer/json/qwen.json", folder + "/tokenizer.json");
  Config base = base_config();
  base.model = folder;
  base.threads = 1;
  std::vector<ValidRequest> requests;
  std::vector<Collected> expected;
  {
    const std::unique_ptr<Engine> engine = start(base);
    ASSERT_NE(engine, nullptr);
    requests = make_requests(engine->model().vocab_size, std::min<size_t>(40, num_requests()));
    expected = run_alone(*engine, requests);
  }
  for (const std::string& isa : usable_isas()) {
    const std::vector<size_t> chosen = chosen_requests(isa, requests);
    for (const Setting& setting :
         {Setting{2, 512, true, 0}, Setting{1, 16, true, 3}, Setting{2, 128, false, 5}}) {
      Config config = base;
      config.isa = isa;
      config.threads = setting.threads;
      config.max_num_batched_tokens = setting.budget;
      config.max_num_seqs = 16;
      config.enable_prefix_caching = setting.prefix;
      config.debug_preempt_every = setting.preempt;
      const std::unique_ptr<Engine> engine = start(config);
      ASSERT_NE(engine, nullptr);
      expect_same(pick(expected, chosen),
                  run_mixed(*engine, pick(requests, chosen)),
                  name + ", " + isa + ", " + setting.name());
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  std::filesystem::remove_all(folder);
}

TEST(Determinism, HoldsForInt8Checkpoints) { expect_int8_holds("engine-w8a8"); }

TEST(Determinism, HoldsForInt8Experts) { expect_int8_holds("engine-experts-w8a8"); }

TEST(Determinism, ScarceMemoryPreemptsAndChangesNothing) {
  Config config = base_config();
  config.threads = 2;
  const std::unique_ptr<Engine> roomy = start(config);
  ASSERT_NE(roomy, nullptr);
  // Short prompts are admitted together, and their long answers outgrow the cache.
  std::vector<ValidRequest> requests = make_requests(roomy->model().vocab_size, 24);
  for (ValidRequest& request : requests) {
    std::vector<TokenId>& prompt = request.prompt[0].token_ids;
    prompt.resize(std::min<size_t>(prompt.size(), 30));
    request.sampling.max_tokens = 300;
    request.sampling.min_tokens = 0;
    request.sampling.ignore_eos = true;
  }
  const std::vector<Collected> expected = run_mixed(*roomy, requests);
  config.kv_cache_memory = 1;  // the plan names what one request needs
  const Expected<std::unique_ptr<Engine>> refused = create_engine(config);
  ASSERT_FALSE(refused.has_value());
  // Room for two requests of full length.
  const EngineStats stats = roomy->stats();
  const int64_t bytes_per_block = base_config().kv_cache_memory / stats.num_blocks_total;
  config.kv_cache_memory = bytes_per_block * 2 * config.max_model_len / config.block_size;
  const std::unique_ptr<Engine> tight = start(config);
  ASSERT_NE(tight, nullptr);
  expect_same(expected, run_mixed(*tight, requests), "scarce memory");
  EXPECT_GT(tight->stats().num_preemptions, 0U);
}

// Too little memory to keep prefixes, a disk that does, and a restart in between.
TEST(Determinism, HoldsWithTiersBelowTheCache) {
  const std::string folder =
      ::testing::TempDir() + "determinism_disk_" + std::to_string(::getpid());
  for (const char* dtype : {"auto", "int8"}) {
    std::filesystem::remove_all(folder);
    Config config = base_config();
    config.kv_cache_dtype = dtype;
    config.threads = 2;
    config.max_num_batched_tokens = 128;
    std::vector<ValidRequest> requests;
    std::vector<Collected> expected;
    {
      const std::unique_ptr<Engine> engine = start(config);
      ASSERT_NE(engine, nullptr);
      requests = make_requests(engine->model().vocab_size, std::min<size_t>(60, num_requests()));
      expected = run_mixed(*engine, requests);
      const int64_t bytes_per_block = config.kv_cache_memory / engine->stats().num_blocks_total;
      config.kv_cache_memory = bytes_per_block * 2 * config.max_model_len / config.block_size;
    }
    uint64_t num_restored = 0;
    for (const int32_t preempt : {0, 5}) {
      config.kv_disk_path = folder;
      config.kv_offloading_size = preempt == 0 ? 0 : 1;
      config.debug_preempt_every = preempt;
      const std::unique_ptr<Engine> engine = start(config);
      ASSERT_NE(engine, nullptr);
      for (const char* round : {"first", "second"}) {
        expect_same(expected,
                    run_mixed(*engine, requests),
                    std::string("disk tier, ") + dtype + ", preempt " + std::to_string(preempt) +
                        ", " + round + " round");
        if (HasFatalFailure()) return;
      }
      num_restored += engine->stats().kv_tier_hits;
    }
    EXPECT_GT(num_restored, 0U) << dtype;
  }
  std::filesystem::remove_all(folder);
}

TEST(Determinism, PrefixHitGivesTheSameBitsAndIsReported) {
  Config config = base_config();
  const std::unique_ptr<Engine> engine = start(config);
  ASSERT_NE(engine, nullptr);
  std::vector<ValidRequest> requests = make_requests(engine->model().vocab_size, 1);
  requests[0].prompt[0].token_ids.resize(100, 7);
  const std::vector<Collected> cold = run_alone(*engine, requests);
  const std::vector<Collected> warm = run_alone(*engine, requests);
  expect_same(cold, warm, "prefix hit");
  EXPECT_EQ(cold[0].num_cached_tokens, 0);
  EXPECT_EQ(warm[0].num_cached_tokens, 96);  // whole blocks of 16, one token left to compute
  // Another tenant does not see it, and computes the same.
  requests[0].tenant_salt = 1;
  const std::vector<Collected> other = run_alone(*engine, requests);
  expect_same(cold, other, "other tenant");
  EXPECT_EQ(other[0].num_cached_tokens, 0);
}

}  // namespace
}  // namespace sluice
