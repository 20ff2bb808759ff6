// SPDX-License-Identifier: Apache-2.0
// Prefixes on disk: the hits of a restarted engine, or of one short of memory, which change no
// answer.
#include "engine/tiers/prefix_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::CollectingSink;

TEST(RestoreCost, ReadsWhereThatIsFasterAndTriesWhatItDoesNotKnow) {
  RestoreCost cost(2);
  const auto is_worth = [&cost](int64_t from_first, int64_t from_second) {
    const int64_t num_blocks[] = {from_first, from_second};
    return cost.choose_read(num_blocks, 16 * (from_first + from_second));
  };
  EXPECT_TRUE(is_worth(1, 0));
  EXPECT_EQ(cost.compute_seconds(1000), 0);
  cost.observe_read(0, 1e-3);
  EXPECT_TRUE(is_worth(1, 0));
  cost.observe_compute(100, 0.01);  // 1.6 ms per block
  EXPECT_NEAR(cost.compute_seconds(1000), 0.1, 1e-9);
  EXPECT_FALSE(is_worth(1, 0));
  EXPECT_TRUE(is_worth(10, 0));
  EXPECT_TRUE(is_worth(0, 1));
  for (int i = 0; i < 100; ++i) cost.observe_read(1, 10e-3);  // a slow disk
  EXPECT_FALSE(is_worth(0, 1000));
  EXPECT_FALSE(is_worth(100, 100));
  EXPECT_TRUE(is_worth(100, 1));
}

TEST(RestoreCost, TriesAgainWhatWasSlowOnce) {
  RestoreCost cost(1);
  cost.observe_compute(100, 0.01);  // 1.6 ms per block
  for (int i = 0; i < 100; ++i) cost.observe_read(0, 16e-3);
  const int64_t num_blocks[] = {1000};
  int refused = 0;
  while (!cost.choose_read(num_blocks, 16'000)) ASSERT_LT(++refused, 1000);
  EXPECT_GT(refused, 100);
  for (int i = 0; i < 20; ++i) cost.observe_read(0, 16e-3);  // still slow
  EXPECT_FALSE(cost.choose_read(num_blocks, 16'000));
}

class PrefixOnDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.model = golden_folder() + "/tiny/tiny-llama.gguf";
    config_.max_model_len = 1024;
    config_.kv_cache_memory = int64_t{16} << 20;
    config_.kv_disk_path = folder_.path();
  }

  void start() {
    engine_.reset();
    engine_ = testing::start_engine(config_);
    ASSERT_NE(engine_, nullptr);
  }

  // Starts with a cache that holds only the longest request.
  void start_with_one_request_of_memory() {
    start();
    const int64_t bytes_per_block = config_.kv_cache_memory / engine_->stats().num_blocks_total;
    config_.kv_cache_memory = bytes_per_block * config_.max_model_len / config_.block_size;
    start();
  }

  static ValidRequest make_request(size_t num_tokens, TokenId first) {
    ValidRequest request;
    std::vector<TokenId> prompt(num_tokens);
    for (size_t i = 0; i < num_tokens; ++i) {
      prompt[i] = static_cast<TokenId>((static_cast<size_t>(first) + i * i * 31 + i * 7) % 250);
    }
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = 40;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = 0.7F;
    request.sampling.seed = 11;
    request.sampling.num_logprobs = 0;
    return request;
  }

  Collected run(const ValidRequest& request) {
    return testing::run_together(*engine_, {request}).at(0);
  }

  static void expect_same(const Collected& a, const Collected& b) {
    testing::expect_same({a}, {b}, "");
  }

  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      if (entry.path().extension() == ".kv") found.push_back(entry.path());
    }
    return found;
  }

  const testing::TemporaryFolder folder_;
  Config config_;
  std::unique_ptr<Engine> engine_;
};

// Another number format is another fingerprint.
TEST_F(PrefixOnDisk, WhatAnotherModelLeftGoesAndWhatOneUsesStays) {
  config_.kv_disk_size = int64_t{2} << 20;
  const auto num_bytes = [this] {
    int64_t total = 0;
    for (const auto& file : files()) total += static_cast<int64_t>(file_size(file));
    return total;
  };
  for (const char* dtype : {"bfloat16", "float32", "int8"}) {
    config_.kv_cache_dtype = dtype;
    start();
    for (TokenId first = 0; first < 6; ++first) run(make_request(900, first));
    // A thread removes them beside the requests.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (num_bytes() > config_.kv_disk_size && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    engine_.reset();
    EXPECT_GT(num_bytes(), config_.kv_disk_size / 4) << dtype;
    EXPECT_LE(num_bytes(), config_.kv_disk_size) << dtype;
  }
  start();
  const std::vector<std::filesystem::path> used = files();
  config_.kv_cache_dtype = "bfloat16";
  const std::unique_ptr<Engine> beside = testing::start_engine(config_);
  ASSERT_NE(beside, nullptr);
  EXPECT_EQ(files(), used);
}

TEST_F(PrefixOnDisk, ARestartedEngineFindsAConversationWithItsAnswer) {
  start();
  const ValidRequest first = make_request(300, 3);
  const Collected cold = run(first);
  EXPECT_EQ(cold.num_cached_tokens, 0);
  ASSERT_EQ(cold.tokens.size(), 40U);
  start();
  const Collected warm = run(first);
  expect_same(cold, warm);
  EXPECT_EQ(warm.num_cached_tokens, 288);  // whole blocks of 16; one token left to compute
  EXPECT_EQ(engine_->stats().kv_tier_hits, 288U);
  // The next turn has the prompt, the answer, and more.
  ValidRequest second = first;
  std::vector<TokenId>& tokens = second.prompt;
  tokens.insert(tokens.end(), cold.tokens.begin(), cold.tokens.end());
  for (TokenId i = 0; i < 20; ++i) tokens.push_back(i);
  start();
  const Collected continued = run(second);
  EXPECT_EQ(continued.num_cached_tokens, 336);  // 339 tokens have KV: the last was never fed back
  config_.kv_disk_path = "";
  start();
  expect_same(run(second), continued);
}

void truncate(const std::filesystem::path& file) { std::filesystem::resize_file(file, 100); }

void corrupt(const std::filesystem::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-5, std::ios::end);
  const int byte = stream.get();
  stream.seekp(-5, std::ios::end);
  stream.put(static_cast<char>(byte ^ 0x40));
}

TEST_F(PrefixOnDisk, BrokenFilesAreComputedAgain) {
  const ValidRequest request = make_request(200, 5);
  start();
  const Collected cold = run(request);
  for (const auto harm : {truncate, corrupt}) {
    engine_.reset();
    ASSERT_EQ(files().size(), 14U);
    size_t i = 0;
    for (const std::filesystem::path& file : files()) {
      if (i++ % 2 == 0) harm(file);
    }
    start();
    const Collected again = run(request);
    expect_same(cold, again);
    EXPECT_LT(again.num_cached_tokens, 192);
    // The block is written again meanwhile.
    start();
    const Collected whole = run(request);
    expect_same(cold, whole);
    EXPECT_EQ(whole.num_cached_tokens, 192);
  }
}

TEST_F(PrefixOnDisk, OtherTenantsDtypesAndBlockSizesAreApart) {
  start();
  ValidRequest request = make_request(100, 9);
  const Collected mine = run(request);
  start();
  request.tenant_salt = 4;
  const Collected others = run(request);
  EXPECT_EQ(others.num_cached_tokens, 0);
  expect_same(mine, others);
  request.tenant_salt = 0;
  config_.block_size = 32;
  start();
  const Collected other_size = run(request);
  EXPECT_EQ(other_size.num_cached_tokens, 0);
  expect_same(mine, other_size);
  config_.block_size = 16;
  config_.kv_cache_dtype = "int8";
  start();
  EXPECT_EQ(run(request).num_cached_tokens, 0);
}

TEST_F(PrefixOnDisk, WhatMemoryHasLostComesBack) {
  start_with_one_request_of_memory();
  const ValidRequest request = make_request(400, 1);
  const Collected cold = run(request);
  for (TokenId other = 100; other < 103; ++other) run(make_request(800, other));
  const Collected warm = run(request);
  expect_same(cold, warm);
  EXPECT_EQ(warm.num_cached_tokens, 384);
  EXPECT_EQ(engine_->stats().kv_tier_hits, 384U);
}

// The whole prompt runs in one step, which has more blocks than there are buffers: later writes
// lack the blocks that windows have dropped, without ending the prefix.
TEST_F(PrefixOnDisk, AWindowThatHasGoneOnEndsNothing) {
  config_.model = golden_folder() + "/models/engine-windows.gguf";
  config_.max_model_len = 2048;
  start();
  ValidRequest first = make_request(1500, 3);
  first.sampling.max_tokens = 250;
  const Collected answer = run(first);
  ValidRequest second = first;
  second.sampling.max_tokens = 20;
  second.prompt.insert(second.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  start();
  const Collected warm = run(second);
  EXPECT_EQ(warm.num_cached_tokens, 1744);  // 1749 have KV
  EXPECT_EQ(engine_->stats().kv_tier_hits, 1744U);
  config_.kv_disk_path = "";
  start();
  expect_same(run(second), warm);
}

TEST_F(PrefixOnDisk, MemoryOfTheHostServesWithoutADisk) {
  config_.kv_disk_path = "";
  config_.kv_offloading_size = 1;
  start_with_one_request_of_memory();
  const ValidRequest request = make_request(400, 1);
  const Collected cold = run(request);
  for (TokenId other = 100; other < 103; ++other) run(make_request(800, other));
  const Collected warm = run(request);
  expect_same(cold, warm);
  EXPECT_EQ(warm.num_cached_tokens, 384);
}

TEST_F(PrefixOnDisk, AbortedRequestsEndOnceWhereverTheyAre) {
  start();
  const ValidRequest request = make_request(900, 2);
  run(request);
  for (int i = 0; i < 5; ++i) {
    start();
    CollectingSink sink;
    std::vector<RequestId> ids;
    for (int k = 0; k < 4; ++k) ids.push_back(*engine_->submit(request, sink));
    for (const RequestId id : ids) engine_->abort(id);
    if (i % 2 == 0) engine_->stop();
    for (const RequestId id : ids) EXPECT_EQ(sink.wait(id).num_ends, 1);
  }
}

TEST_F(PrefixOnDisk, SettingsThatCannotWorkAreRefusedByName) {
  config_.enable_prefix_caching = false;
  const auto uncached = create_engine(config_);
  ASSERT_FALSE(uncached);
  EXPECT_EQ(uncached.error().param, "kv-disk-path");
  config_.kv_disk_path = "";
  config_.kv_offloading_size = 1;
  const auto no_prefixes = create_engine(config_);
  ASSERT_FALSE(no_prefixes);
  EXPECT_EQ(no_prefixes.error().param, "kv-offloading-size");
  config_.enable_prefix_caching = true;
  config_.kv_offloading_size = 0;
  config_.kv_disk_path = "/dev/null/nowhere";
  const auto nowhere = create_engine(config_);
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().param, "kv-disk-path");
  config_.kv_disk_path = "";
  config_.preemption_mode = "swap";
  const auto no_tier = create_engine(config_);
  ASSERT_FALSE(no_tier);
  EXPECT_EQ(no_tier.error().param, "preemption-mode");
}

// Answers outgrow a cache of two requests; each request that loses its blocks resumes with the KV
// that it had.
TEST_F(PrefixOnDisk, PreemptedRequestsAreSwappedInOrComputedAsTheModeSays) {
  std::vector<ValidRequest> requests;
  for (TokenId first = 0; first < 12; ++first) {
    requests.push_back(make_request(40, first * 17));
    requests.back().sampling.max_tokens = 600;
  }
  config_.kv_disk_path = "";
  start();
  const std::vector<Collected> expected = testing::run_together(*engine_, requests);
  const int64_t bytes_per_block = config_.kv_cache_memory / engine_->stats().num_blocks_total;
  config_.kv_cache_memory = bytes_per_block * 2 * config_.max_model_len / config_.block_size;
  config_.kv_offloading_size = 1;
  double computed_with_swaps = 0;
  for (const char* mode : {"swap", "recompute", "auto"}) {
    config_.preemption_mode = mode;
    start();
    testing::expect_same(expected, testing::run_together(*engine_, requests), mode);
    if (HasFatalFailure()) return;
    const EngineStats stats = engine_->stats();
    EXPECT_GT(stats.num_preemptions, 0U) << mode;
    if (std::string(mode) == "swap") {
      computed_with_swaps = stats.iteration_tokens.sum;
    } else if (std::string(mode) == "recompute") {
      EXPECT_GT(stats.iteration_tokens.sum, computed_with_swaps);
    }
    // What a preemption takes and gives back is no use of the cache.
    EXPECT_EQ(stats.kv_tier_hits, 0U) << mode;
    EXPECT_LE(stats.kv_tier_queries, requests.size() * 40) << mode;
  }
}

TEST_F(PrefixOnDisk, AbortsEndRequestsOnceAmongPreemptionsAndSwaps) {
  config_.kv_offloading_size = 1;
  config_.preemption_mode = "swap";
  start_with_one_request_of_memory();
  for (int round = 0; round < 10; ++round) {
    CollectingSink sink;
    std::vector<RequestId> ids;
    for (TokenId first = 0; first < 8; ++first) {
      ValidRequest request = make_request(40, first * 17);
      request.sampling.max_tokens = 900;
      ids.push_back(*engine_->submit(request, sink));
    }
    sink.wait_tokens(ids[0], static_cast<size_t>(100 + 60 * round));
    for (const RequestId id : ids) engine_->abort(id);
    for (const RequestId id : ids) EXPECT_EQ(sink.wait(id).num_ends, 1);
  }
  EXPECT_GT(engine_->stats().num_preemptions, 0U);
  EXPECT_GT(engine_->stats().kv_tier_stored, 0U);
}

}  // namespace
}  // namespace sluice
