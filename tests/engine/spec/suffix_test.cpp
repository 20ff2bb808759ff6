// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/suffix.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace sluice {
namespace {

using Tokens = std::vector<TokenId>;

Tokens guessed(Proposer& proposer, int32_t slot, const Tokens& known, int32_t max) {
  Draft draft;
  proposer.propose(slot, known, max, draft);
  return {draft.guessed().begin(), draft.guessed().end()};
}

RequestRecord record_of(int32_t num_prompt_tokens, uint64_t salt = 0) {
  return {.num_prompt_tokens = num_prompt_tokens, .tenant_salt = salt};
}

Tokens range(TokenId begin, TokenId end) {
  Tokens tokens(static_cast<size_t>(end - begin));
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}

// Runs a request whose answer is `answer` from begin() to end().
void answer_once(Proposer& proposer, const Tokens& answer, uint64_t salt) {
  Tokens known = {5000, 5001};
  proposer.begin(7, record_of(2, salt));
  for (const TokenId token : answer) {
    guessed(proposer, 7, known, 8);
    known.push_back(token);
  }
  proposer.end(7, known);
}

TEST(Suffix, PromptThatIsQuotedIsGuessedAndTheGuessGrowsWithTheMatch) {
  const auto proposer = make_suffix_proposer({});
  Tokens known = range(0, 60);
  proposer->begin(0, record_of(60));
  size_t longest = 0;
  for (TokenId token = 10; token < 40; ++token) {
    known.push_back(token);
    const Tokens guess = guessed(*proposer, 0, known, 16);
    ASSERT_FALSE(guess.empty());
    EXPECT_GE(guess.size() + 1, longest);
    longest = std::max(longest, guess.size());
    for (size_t j = 0; j < guess.size(); ++j)
      EXPECT_EQ(guess[j], token + 1 + static_cast<TokenId>(j));
  }
  EXPECT_EQ(longest, 12U);  // half of the tree's depth
}

TEST(Suffix, AnswersServeLaterRequestsOfTheirSaltAlone) {
  const auto proposer = make_suffix_proposer({});
  answer_once(*proposer, range(100, 140), /*salt=*/3);
  const Tokens known = {1, 2, 110, 111, 112, 113};
  proposer->begin(0, record_of(2, /*salt=*/3));
  EXPECT_EQ(guessed(*proposer, 0, known, 8), range(114, 118));
  for (const uint64_t other : {0, 2, 4}) {
    proposer->begin(1, record_of(2, other));
    EXPECT_TRUE(guessed(*proposer, 1, known, 8).empty());
    proposer->end(1, known);
  }
}

TEST(Suffix, PromptsOfOthersAreNotLearned) {
  const auto proposer = make_suffix_proposer({});
  Tokens known = range(200, 240);
  proposer->begin(0, record_of(40));
  known.push_back(1);
  proposer->end(0, known);
  const Tokens other = range(200, 220);
  proposer->begin(0, record_of(20));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(guessed(*proposer, 0, other, 8).empty());
}

TEST(Suffix, WithoutCachedRequestsNothingIsLearnedOfAnswers) {
  const auto proposer = make_suffix_proposer({.max_cached_requests = 0});
  answer_once(*proposer, range(100, 140), 0);
  const Tokens known = {1, 2, 110, 111, 112, 113};
  proposer->begin(0, record_of(2));
  EXPECT_TRUE(guessed(*proposer, 0, known, 8).empty());
}

TEST(Suffix, OldestAnswersAreForgotten) {
  const auto proposer = make_suffix_proposer({.max_cached_requests = 2});
  for (TokenId i = 0; i < 4; ++i) answer_once(*proposer, range(100 * i, 100 * i + 20), 0);
  // Evicted answers are removed with the tokens of later answers.
  for (int i = 0; i < 4; ++i) answer_once(*proposer, range(900, 920), 0);
  const auto knows = [&](TokenId begin) {
    const Tokens known = {begin, begin + 1, begin + 2};
    proposer->begin(0, record_of(1));
    const bool is_known = !guessed(*proposer, 0, known, 4).empty();
    proposer->end(0, Tokens(known.begin(), known.begin() + 1));
    return is_known;
  };
  EXPECT_FALSE(knows(0));
  EXPECT_FALSE(knows(100));
  EXPECT_TRUE(knows(900));
}

TEST(Suffix, LongPromptIsTakenInOverSeveralSteps) {
  const auto proposer = make_suffix_proposer({});
  Tokens known = range(0, 3000);
  known.insert(known.end(), {50, 51, 52});
  proposer->begin(0, record_of(3003));
  int calls = 1;
  while (guessed(*proposer, 0, known, 3).empty() && calls < 20) ++calls;
  EXPECT_EQ(calls, 12);  // 256 tokens per call
}

TEST(Suffix, MemoryIsBoundedWhateverComes) {
  std::mt19937_64 random(1);
  const auto proposer = make_suffix_proposer({});
  const int64_t empty = proposer->memory_bytes();
  for (int request = 0; request < 60; ++request) {
    Tokens known = {1};
    proposer->begin(0, record_of(1, static_cast<uint64_t>(request % 5)));
    for (int i = 0; i < 3000; ++i) {
      known.push_back(static_cast<TokenId>(random() % 200));
      if (i % 8 == 0) guessed(*proposer, 0, known, 8);
    }
    proposer->end(0, known);
  }
  EXPECT_LE(proposer->memory_bytes() - empty, int64_t{16} << 20);
  EXPECT_LE(empty, int64_t{64} << 20);
}

}  // namespace
}  // namespace sluice
