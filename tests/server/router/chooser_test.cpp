// SPDX-License-Identifier: Apache-2.0
#include "server/router/chooser.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "server/router/known_prefixes.h"

namespace sluice {
namespace {

std::map<size_t, int> choices(const std::vector<Candidate>& candidates, int64_t num_tokens) {
  std::mt19937_64 random(7);
  std::map<size_t, int> counts;
  for (int i = 0; i < 3000; ++i) ++counts[choose_worker(candidates, num_tokens, std::ref(random))];
  return counts;
}

TEST(Chooser, OfTwoRandomWorkersTheLessLoadedOneIsTaken) {
  const auto counts = choices({{.num_active = 9}, {.num_active = 0}, {.num_active = 5}}, 100);
  EXPECT_EQ(counts.count(0), 0U) << "the most loaded one loses each comparison";
  EXPECT_NEAR(counts.at(1), 2000, 150);  // in two of three pairs
  EXPECT_NEAR(counts.at(2), 1000, 150);
}

TEST(Chooser, QueuedTokensAreLoadToo) {
  const auto counts = choices({{.queued_tokens = 5000, .num_active = 1}, {.num_active = 4}}, 100);
  EXPECT_EQ(counts.count(0), 0U);
}

TEST(Chooser, EqualWorkersShare) {
  const auto counts = choices({{}, {}, {}}, 100);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(counts.at(i), 1000, 150);
}

TEST(Chooser, AWorkerThatHasThePrefixIsTakenWhileItIsNotMuchMoreLoaded) {
  EXPECT_EQ(choices({{.cached_tokens = 3200, .num_active = 10}, {}, {}}, 4000).size(), 1U);
  const auto counts = choices({{.cached_tokens = 1600, .queued_tokens = 9000}, {}, {}}, 4000);
  EXPECT_EQ(counts.count(0), 0U) << "the way around it costs less";
}

TEST(Chooser, APrefixThatAllHaveIsSpreadByLoad) {
  const std::vector<Candidate> candidates = {{.cached_tokens = 1600, .num_active = 2},
                                             {.cached_tokens = 1600, .num_active = 1},
                                             {.cached_tokens = 1600, .num_active = 2},
                                             {.cached_tokens = 0}};
  const auto counts = choices(candidates, 2000);
  EXPECT_EQ(counts.count(3), 0U);
  EXPECT_EQ(counts.size(), 3U);
  EXPECT_GT(counts.at(1), counts.at(0));
}

TEST(Chooser, OneCandidateIsTheChoice) {
  EXPECT_EQ(choices({{.cached_tokens = 5}}, 10).at(0), 3000);
}

ValidRequest request_of(std::vector<TokenId> prompt, uint64_t salt = 0) {
  ValidRequest request;
  request.prompt = std::move(prompt);
  request.tenant_salt = salt;
  return request;
}

TEST(Chooser, APromptGoesElsewhereWhereThatIsAsEarlyAndWorthIt) {
  const Candidate idle;
  EXPECT_TRUE(is_prompt_better_elsewhere(idle, idle, 256, 256));
  EXPECT_FALSE(is_prompt_better_elsewhere(idle, idle, 255, 256));
  EXPECT_FALSE(is_prompt_better_elsewhere({.cached_tokens = 100}, idle, 300, 256));
  EXPECT_FALSE(is_prompt_better_elsewhere(idle, {.queued_tokens = 1}, 1000, 256));
  EXPECT_TRUE(is_prompt_better_elsewhere({.num_active = 4}, {.queued_tokens = 100}, 1000, 256));
  EXPECT_TRUE(is_prompt_better_elsewhere(
      {.cached_tokens = 200}, {.cached_tokens = 900, .queued_tokens = 500}, 1000, 256));
}

TEST(KnownPrefixes, BlocksAreKnownByAllThatStandsBeforeTheirEnd) {
  const auto chain = block_chain(request_of({1, 2, 3, 4, 5, 6, 7}), 2);
  ASSERT_EQ(chain.size(), 3U);
  const auto other = block_chain(request_of({1, 2, 9, 4, 5, 6}), 2);
  EXPECT_EQ(chain[0], other[0]);
  EXPECT_NE(chain[1], other[1]);
  EXPECT_NE(chain[2], other[2]) << "the same tokens behind others";
  EXPECT_NE(block_chain(request_of({1, 2}, 5), 2)[0], chain[0]) << "another tenant";
}

TEST(KnownPrefixes, TokensOfTheAnswerAreBlocksToo) {
  ValidRequest request = request_of({1, 2, 3});
  request.generated = {4, 5, 6};
  EXPECT_EQ(block_chain(request, 2), block_chain(request_of({1, 2, 3, 4, 5, 6}), 2));
}

TEST(KnownPrefixes, OnlyARunFromTheFrontCounts) {
  KnownPrefixes index;
  index.set_capacity(100);
  const auto chain = block_chain(request_of({1, 2, 3, 4, 5, 6}), 2);
  EXPECT_EQ(index.num_known(chain), 0U);
  index.add(chain);
  EXPECT_EQ(index.num_known(chain), 3U);
  index.remove(chain[1]);
  EXPECT_EQ(index.num_known(chain), 1U);
  index.clear();
  EXPECT_EQ(index.num_known(chain), 0U);
}

TEST(KnownPrefixes, WhatWasUsedLongestAgoIsForgottenAndEndsOfChainsFirst) {
  KnownPrefixes index;
  index.set_capacity(4);
  const auto first = block_chain(request_of({1, 2, 3}), 1);
  const auto second = block_chain(request_of({7, 8, 9}), 1);
  index.add(first);
  index.add(second);
  EXPECT_EQ(index.size(), 4U);
  EXPECT_EQ(index.num_known(second), 3U);
  EXPECT_EQ(index.num_known(first), 1U);
  index.set_capacity(0);
  EXPECT_EQ(index.num_known(second), 0U);
  index.add(second);
  EXPECT_EQ(index.size(), 0U);
}

}  // namespace
}  // namespace sluice
