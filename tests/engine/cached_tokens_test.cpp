// SPDX-License-Identifier: Apache-2.0
// The share of possible prefix cache hits that is found: in conversations that continue, and in
// requests with common beginnings.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"

namespace sluice {
namespace {

using testing::Collected;

constexpr double kLeastShare = 0.95;

std::vector<TokenId> some_tokens(size_t count, size_t seed) {
  std::vector<TokenId> tokens(count);
  for (size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<TokenId>((seed * 97 + i * i * 31 + i * 7) % 250);
  }
  return tokens;
}

ValidRequest make_request(std::vector<TokenId> prompt, int32_t max_tokens, size_t seed) {
  ValidRequest request;
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.temperature = 0.8F;
  request.sampling.seed = seed;
  return request;
}

class CachedTokens : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.model = golden_folder() + "/tiny/tiny-llama.gguf";
    config_.max_model_len = 1024;
    config_.kv_cache_memory = int64_t{16} << 20;
    config_.max_num_seqs = 8;
    config_.max_num_batched_tokens = 128;
  }

  void start() {
    engine_ = testing::start_engine(config_);
    ASSERT_NE(engine_, nullptr);
  }

  Config config_;
  std::unique_ptr<Engine> engine_;
};

// Twelve conversations of six turns, one turn of all at the same time. Each turn could find the
// previous one and its answer except the last token, which was never fed back.
TEST_F(CachedTokens, AConversationFindsWhatItHasSaidAndHeard) {
  constexpr size_t kConversations = 12;
  start();
  std::vector<std::vector<TokenId>> said(kConversations);
  int64_t num_found = 0;
  int64_t num_possible = 0;
  for (size_t turn = 0; turn < 6; ++turn) {
    std::vector<ValidRequest> requests;
    for (size_t i = 0; i < kConversations; ++i) {
      if (turn > 0) num_possible += static_cast<int64_t>(said[i].size()) - 1;
      const std::vector<TokenId> more = some_tokens(13 + 11 * i % 29, 100 * turn + i);
      said[i].insert(said[i].end(), more.begin(), more.end());
      requests.push_back(make_request(said[i], static_cast<int32_t>(20 + 7 * i % 23), i));
    }
    const std::vector<Collected> answers = testing::run_together(*engine_, requests);
    for (size_t i = 0; i < kConversations; ++i) {
      num_found += answers[i].num_cached_tokens;
      said[i].insert(said[i].end(), answers[i].tokens.begin(), answers[i].tokens.end());
    }
  }
  EXPECT_GE(static_cast<double>(num_found), kLeastShare * static_cast<double>(num_possible));
}

// Twenty requests arrive together with a common beginning, three times with different ones; all but
// one could find it.
TEST_F(CachedTokens, RequestsThatBeginAlikeComputeTheBeginningOnce) {
  constexpr size_t kRequests = 20;
  constexpr size_t kShared = 300;
  start();
  for (size_t group = 1; group <= 3; ++group) {
    std::vector<ValidRequest> requests;
    for (size_t i = 0; i < kRequests; ++i) {
      std::vector<TokenId> prompt = some_tokens(kShared, 1000 * group);
      prompt.push_back(static_cast<TokenId>(i));  // they differ from here on
      const std::vector<TokenId> own = some_tokens(10 + 3 * i, 1000 * group + 1 + i);
      prompt.insert(prompt.end(), own.begin(), own.end());
      requests.push_back(make_request(std::move(prompt), 20, i));
    }
    int64_t num_found = 0;
    for (const Collected& answer : testing::run_together(*engine_, requests)) {
      num_found += answer.num_cached_tokens;
    }
    const auto num_possible = static_cast<double>((kRequests - 1) * kShared);
    EXPECT_GE(static_cast<double>(num_found), kLeastShare * num_possible) << group;
  }
}

}  // namespace
}  // namespace sluice
