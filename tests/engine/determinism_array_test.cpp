// SPDX-License-Identifier: Apache-2.0
// Equal requests give equal bits over all ways of running them together: a covering array in which
// any two values of different axes meet. Greedy and seeded, so runs can be repeated. With
// SLUICE_FULL a million tokens are compared. On a GPU with a BF16 model.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#ifdef SLUICE_TESTS_ON_GPU
#include "tests/engine/cuda/tiny_model.h"
#endif
#include "tests/support/covering_array.h"
#include "tests/support/golden_folder.h"
#include "tests/support/node_group.h"
#include "tests/support/same_bits.h"
#include "tests/support/shared_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using testing::ArrayRow;
using testing::Collected;
using testing::covering_array;
using testing::run_together;
using testing::start_engine;

enum Axis : uint8_t {
  kBatch,
  kChunk,
  kPrefix,
  kPreempt,
  kTier,
  kOverlap,
  kThreads,
  kStages,
  kIsa,
  kDtype,
  kGraphs,
  kDrafts,
  kNumAxes
};

using Values = std::array<std::vector<std::string>, kNumAxes>;

Values all_values() {
  Values values;
  values[kBatch] = {"1", "8", "64"};
  values[kChunk] = {"16", "128", "2048"};
  values[kPrefix] = {"off", "cold", "hit", "partial"};
  values[kPreempt] = {"no", "recompute", "swap"};
  values[kTier] = {"none", "host", "disk"};
  values[kOverlap] = {"off", "on"};
  values[kThreads] = {"1", "2"};
  values[kStages] = {"1"};
#ifdef SLUICE_TESTS_ON_GPU
  values[kIsa] = {"auto"};  // the host's, which samples some rows
  values[kGraphs] = {"eager", "all", "3,8"};
#else
  values[kGraphs] = {"eager"};
  values[kIsa] = testing::usable_isas();
#endif
  values[kDtype] = {"bfloat16", "float16", "float32", "int8", "fp8"};
  values[kDrafts] = {"off", "ngram", "suffix", "prediction", "replay"};
#ifndef SLUICE_TESTS_ON_GPU
  values[kDrafts].insert(values[kDrafts].end(), {"draft_model", "eagle3"});
  // In one process; in two, with so many steps in flight; with so many ranks each as processes.
  values[kStages].insert(values[kStages].end(), {"2", "2x1", "2x2", "2x4", "2x2x2"});
#endif
  return values;
}

std::vector<size_t> num_values(const Values& values) {
  std::vector<size_t> sizes;
  for (const auto& of_axis : values) sizes.push_back(of_axis.size());
  return sizes;
}

// Makes prompts with many common beginnings.
std::vector<ValidRequest> make_requests(int32_t vocab_size, size_t count) {
  std::mt19937_64 random(20261122);
  const auto tokens = [&](size_t length) {
    std::vector<TokenId> ids(length);
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<uint64_t>(vocab_size));
    return ids;
  };
  const std::vector<std::vector<TokenId>> beginnings = {tokens(37), tokens(100), tokens(160)};
  std::vector<ValidRequest> requests(count);
  for (ValidRequest& request : requests) {
    std::vector<TokenId> prompt;
    if (random() % 2 == 0) prompt = beginnings[random() % beginnings.size()];
    const std::vector<TokenId> own = tokens(1 + random() % 60);
    prompt.insert(prompt.end(), own.begin(), own.end());
    request.prompt = std::move(prompt);
    request.sampling.temperature = random() % 3 == 0 ? 0.0F : 0.9F;
    request.sampling.top_p = random() % 2 == 0 ? 1.0F : 0.8F;
    request.sampling.seed = random();
    request.sampling.max_tokens = static_cast<int32_t>(8 + random() % 32);
    request.sampling.ignore_eos = true;
    request.sampling.num_logprobs = static_cast<int32_t>(random() % 4);
    request.arrival = std::chrono::steady_clock::now();
  }
  return requests;
}

// Drafts as many tokens as there is room for, mostly wrong except with "replay" and the model that
// drafts for itself.
std::string speculation_of(const std::string& method, const std::string& drafting) {
  if (method == "off" || method == "prediction") return "";
  std::string text = R"({"adaptive":false,"num_speculative_tokens":5,"method":")" + method + '"';
  if (method == "ngram") text += R"(,"prompt_lookup_max":2,"prompt_lookup_min":1)";
  const std::string data = golden_folder();
  if (method == "draft_model") text += R"(,"model":")" + drafting + '"';
  if (method == "eagle3") text += R"(,"model":")" + data + R"(/eagle/mapped")";
  if (method == "replay") text += R"(,"replay_error_rate":0.2)";
  return text + "}";
}

class Matrix : public ::testing::Test {
 protected:
  Config base_config() const {
#ifdef SLUICE_TESTS_ON_GPU
    static const testing::TinyModel model(testing::TinyWeights::kBF16);
    Config config = model.config("cuda");
#else
    Config config;
    config.model = model_;
    if (is_dummy_) config.load_format = "dummy";
#endif
    config.max_model_len = 512;
    config.kv_cache_memory = int64_t{16} << 20;
    return config;
  }

  // Runs one request after the other, on one thread, without a cache.
  void expect_from_alone(const std::string& dtype, size_t num_requests) {
    Config config = base_config();
    config.kv_cache_dtype = dtype;
    config.threads = 1;
    config.max_num_seqs = 1;
    config.enable_prefix_caching = false;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    if (requests_.empty()) requests_ = make_requests(engine->model().vocab_size, num_requests);
    bytes_per_block_[dtype] = config.kv_cache_memory / engine->stats().num_blocks_total;
    expected_[dtype] = testing::run_alone(*engine, requests_);
  }

  Config config_of(const Values& values, const ArrayRow& row, size_t number) const {
    const auto value = [&](Axis axis) { return values[axis][row[axis]]; };
    Config config = base_config();
    config.max_num_seqs = std::stoi(value(kBatch));
    config.max_num_batched_tokens = std::stoi(value(kChunk));
    config.enable_prefix_caching = value(kPrefix) != "off";
    if (value(kPreempt) != "no") config.debug_preempt_every = 3;
    config.overlap = value(kOverlap) == "on";
    config.threads = std::stoi(value(kThreads));
    config.isa = value(kIsa);
    config.kv_cache_dtype = value(kDtype);
    config.enforce_eager = value(kGraphs) == "eager";
    config.speculative_config = speculation_of(value(kDrafts), model_);
    if (value(kGraphs) == "3,8") config.cuda_graph_sizes = {3, 8};
    // Tiers keep what the prefix cache keeps.
    if (value(kTier) != "none" && config.enable_prefix_caching) {
      // Room for one request of full length: evicted prefixes return from the tier.
      config.kv_cache_memory =
          room_ * bytes_per_block_.at(value(kDtype)) * config.max_model_len / config.block_size;
      // A block also holds the draft model's KV, at most as much as the target's.
      const std::string drafts = value(kDrafts);
      if (drafts == "draft_model" || drafts == "eagle3") config.kv_cache_memory *= 2;
      if (value(kPreempt) != "no") config.preemption_mode = value(kPreempt);
      if (value(kTier) == "host") config.kv_offloading_size = 1;
      if (value(kTier) == "disk") config.kv_disk_path = folder_.at(std::to_string(number));
    }
    // Stages have no tiers, and a head reads the states of all layers.
    const bool has_tier = config.kv_offloading_size > 0 || !config.kv_disk_path.empty();
    if (!has_tier && value(kDrafts) != "eagle3") {
      config.pipeline_parallel_size = std::stoi(value(kStages));
      if (value(kStages).size() > 1) {
        if (value(kStages).size() > 3) config.tensor_parallel_size = 2;
        config.nnodes = config.pipeline_parallel_size * config.tensor_parallel_size;
        config.master_port = testing::free_port();
        config.rank_init_timeout_s = 60;  // others end soon after a refusal of node 0
      }
    }
    return config;
  }

  static std::unique_ptr<Engine> start(const Config& config, const std::string& stages) {
    if (config.nnodes == 1) return start_engine(config);
    return testing::start_node_0(config, std::stoi(stages.substr(stages.find('x') + 1)));
  }

  // Fills the cache before the run.
  static void warm_up(Engine& engine,
                      const std::string& prefix,
                      std::vector<ValidRequest> requests) {
    if (prefix != "hit" && prefix != "partial") return;
    for (ValidRequest& request : requests) {
      std::vector<TokenId>& prompt = request.prompt;
      if (prefix == "partial") prompt.resize(prompt.size() / 2 + 1);
      request.sampling.max_tokens = 2;
    }
    run_together(engine, requests);
  }

  // Compares `num_requests` requests in every row of the array, `num_scalar` of them with scalar
  // kernels. Returns the number of tokens compared.
  uint64_t expect_same_bits(const Values& values, size_t num_requests, size_t num_scalar);

  int64_t room_ = 1;  // more where groups have blocks of different sizes
  std::string model_ = golden_folder() + "/tiny/tiny-llama.gguf";
  bool is_dummy_ = false;  // `model_` has no weights
  const testing::TemporaryFolder folder_;
  std::vector<ValidRequest> requests_;
  std::map<std::string, int64_t> bytes_per_block_;  // by KV dtype
  std::map<std::string, std::vector<Collected>> expected_;
};

TEST(CoveringArray, HoldsEveryPairOnceAtLeastAndIsFarSmallerThanAll) {
  const Values values = all_values();
  const std::vector<ArrayRow> rows = covering_array(num_values(values));
  EXPECT_EQ(testing::num_missing_pairs(num_values(values), rows), 0U);
  EXPECT_LE(rows.size(), 55U);
}

uint64_t Matrix::expect_same_bits(const Values& values, size_t num_requests, size_t num_scalar) {
  const std::vector<ArrayRow> rows = covering_array(num_values(values));
  uint64_t num_tokens = 0;
  for (const std::string& dtype : values[kDtype]) {
    expect_from_alone(dtype, num_requests);
    if (HasFatalFailure()) return num_tokens;
  }
  uint64_t num_preemptions = 0;
  uint64_t num_hits = 0;
  uint64_t num_restored = 0;
  uint64_t num_accepted = 0;
  for (size_t number = 0; number < rows.size(); ++number) {
    const ArrayRow& row = rows[number];
    std::string what;
    for (size_t a = 0; a < kNumAxes; ++a) what += values[a][row[a]] + " ";
    const Config config = config_of(values, row, number);
    testing::NodeGroup others(config);
    std::unique_ptr<Engine> engine = start(config, values[kStages][row[kStages]]);
    EXPECT_NE(engine, nullptr) << what;
    if (engine == nullptr) return num_tokens;
    std::vector<ValidRequest> some = requests_;
    const std::string drafts = values[kDrafts][row[kDrafts]];
    for (size_t i = 0; i < some.size() && (drafts == "prediction" || drafts == "replay"); ++i) {
      some[i].prediction = expected_[values[kDtype][row[kDtype]]][i].tokens;
    }
    if (values[kIsa][row[kIsa]] == "scalar") some.resize(num_scalar);
    // Submits parts that the queue can hold.
    constexpr size_t kPart = 200;
    for (size_t from = 0; from < some.size(); from += kPart) {
      const std::vector<ValidRequest> part(
          some.begin() + static_cast<ptrdiff_t>(from),
          some.begin() + static_cast<ptrdiff_t>(std::min(from + kPart, some.size())));
      warm_up(*engine, values[kPrefix][row[kPrefix]], part);
      const std::vector<Collected> results = run_together(*engine, part);
      const auto begin =
          expected_[values[kDtype][row[kDtype]]].begin() + static_cast<ptrdiff_t>(from);
      testing::expect_same({begin, begin + static_cast<ptrdiff_t>(part.size())}, results, what);
      if (HasFatalFailure()) return num_tokens;
      for (const Collected& result : results) num_tokens += result.tokens.size();
    }
    const EngineStats stats = engine->stats();
    num_preemptions += stats.num_preemptions;
    num_hits += stats.prefix_cache_hits;
    num_restored += stats.kv_tier_hits;
    const auto& accepted = stats.drafts.num_accepted_tokens;
    num_accepted += std::accumulate(accepted.begin(), accepted.end(), uint64_t{0});
    engine.reset();
    others.expect_in_order();
  }
  RecordProperty("tokens", std::to_string(num_tokens));
  RecordProperty("settings", std::to_string(rows.size()));
  std::printf("%zu settings, %llu tokens compared\n",
              rows.size(),
              static_cast<unsigned long long>(num_tokens));
  // The axes had their effects.
  EXPECT_GT(num_preemptions, 0U);
  EXPECT_GT(num_hits, 0U);
  EXPECT_GT(num_restored, 0U);
  EXPECT_GT(num_accepted, 0U);
  return num_tokens;
}

TEST_F(Matrix, AnyTwoWaysOfRunningARequestGiveItTheSameBits) {
  const bool full = testing::is_full();
  // The scalar kernels are some hundred times slower and run only a few requests.
  const uint64_t num_tokens = expect_same_bits(all_values(), full ? 3200 : 40, full ? 60 : 3);
  EXPECT_GT(num_tokens, full ? 1'000'000U : 10'000U);
}

#ifndef SLUICE_TESTS_ON_GPU
// Gemma 4, whose last layers read the K and V of others and which here also drafts for itself.
TEST_F(Matrix, SoDoLayersThatShareTheirCache) {
  const bool full = testing::is_full();
  model_ = golden_folder() + "/models/engine-shared.gguf";
  room_ = 2;
  Values values = all_values();
  std::erase(values[kDrafts], "eagle3");
  values[kStages] = {"1"};
  const uint64_t num_tokens = expect_same_bits(values, full ? 3200 : 20, full ? 60 : 1);
  EXPECT_GT(num_tokens, full ? 1'000'000U : 5'000U);
}

// A mixture of experts in groups beside shared experts; and halves of a layer side by side, over
// windows. Both here also draft for themselves. A commit has them in determinism_test.
TEST_F(Matrix, SoDoExpertsInGroupsAndHalvesSideBySide) {
  if (!testing::is_full()) GTEST_SKIP() << "a part of the long tier";
  Values values = all_values();
  std::erase(values[kDrafts], "eagle3");
  std::erase(values[kStages], "2x2x2");  // two ranks share no 32 columns
  for (const char* name : {"engine-router", "engine-parallel"}) {
    model_ = golden_folder() + "/models/" + name + ".gguf";
    room_ = std::string(name) == "engine-parallel" ? 2 : 1;
    requests_.clear();
    bytes_per_block_.clear();
    expected_.clear();
    EXPECT_GT(expect_same_bits(values, 3200, 60), 1'000'000U) << name;
    if (HasFatalFailure()) return;
  }
}

// A model of latent attention, which here also drafts for itself.
TEST_F(Matrix, SoDoLatents) {
  const bool full = testing::is_full();
  model_ = golden_folder() + "/models/engine-latents.gguf";
  Values values = all_values();
  values[kDtype] = {"bfloat16", "float16", "float32"};
  std::erase(values[kDrafts], "eagle3");
  std::erase(values[kStages], "2x2x2");  // two ranks share no 32 columns
  const uint64_t num_tokens = expect_same_bits(values, full ? 3200 : 20, full ? 60 : 1);
  EXPECT_GT(num_tokens, full ? 1'000'000U : 5'000U);
}

// Sparse ones, whose requests are mostly longer than what a query reads, in layers with an indexer
// and in others.
TEST_F(Matrix, SoDoChosenLatents) {
  const bool full = testing::is_full();
  const testing::TemporaryFolder folder;
  testing::write_model(folder, "models/glm-moe-dsa", {{"index_topk", 40}});
  model_ = folder.path();
  is_dummy_ = true;
  room_ = 2;
  Values values = all_values();
  values[kDtype] = {"bfloat16", "float32"};
  values[kStages] = {"1"};  // layers read what one of the first stage has chosen
  std::erase(values[kDrafts], "eagle3");
  std::erase(values[kDrafts], "draft_model");
  const uint64_t num_tokens = expect_same_bits(values, full ? 3200 : 20, full ? 60 : 1);
  EXPECT_GT(num_tokens, full ? 1'000'000U : 5'000U);
}
#endif

}  // namespace
}  // namespace sluice
