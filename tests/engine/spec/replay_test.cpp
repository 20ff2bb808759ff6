// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/replay.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace sluice {
namespace {

using Tokens = std::vector<TokenId>;

TEST(Replay, ShareOfWrongTokensIsTheErrorRateAndEachSeedHasItsOwn) {
  const Tokens prompt = {1, 2, 3};
  Tokens answer(20'000);
  for (size_t i = 0; i < answer.size(); ++i) answer[i] = static_cast<TokenId>(i % 100);
  std::vector<Tokens> of_seed;
  for (const uint64_t seed : {1, 2, 1}) {
    const auto proposer = make_replay_proposer(0.3, seed, 100);
    proposer->begin(0, {.num_prompt_tokens = 3, .prediction = answer});
    Tokens known = prompt;
    Tokens guesses;
    size_t num_wrong = 0;
    for (const TokenId token : answer) {
      Draft draft;
      proposer->propose(0, known, 4, draft);
      ASSERT_GE(draft.size, 1);
      ASSERT_TRUE(draft.tokens[0] >= 0 && draft.tokens[0] < 100);
      guesses.push_back(draft.tokens[0]);
      num_wrong += draft.tokens[0] != token ? 1 : 0;
      known.push_back(token);
    }
    EXPECT_NEAR(static_cast<double>(num_wrong) / 20'000, 0.3, 0.02);
    of_seed.push_back(guesses);
  }
  EXPECT_EQ(of_seed[0], of_seed[2]);
  EXPECT_NE(of_seed[0], of_seed[1]);
}

TEST(Replay, WithoutErrorsIsTheAnswerAndEndsWithIt) {
  const Tokens prompt = {1};
  const Tokens answer = {5, 6, 7, 8, 9};
  const auto proposer = make_replay_proposer(0, 1, 10);
  proposer->begin(0, {.num_prompt_tokens = 1, .prediction = answer});
  Draft draft;
  proposer->propose(0, Tokens{1, 5, 6}, 8, draft);
  EXPECT_EQ(Tokens(draft.guessed().begin(), draft.guessed().end()), (Tokens{7, 8, 9}));
  proposer->propose(0, Tokens{1, 5, 6, 7, 8, 9, 3}, 8, draft);
  EXPECT_EQ(draft.size, 0);
}

TEST(Replay, OnlyErrorsIsNeverRight) {
  const Tokens prompt = {1};
  const Tokens answer(300, 1);
  const auto proposer = make_replay_proposer(1, 1, 2);
  proposer->begin(0, {.num_prompt_tokens = 1, .prediction = answer});
  Draft draft;
  proposer->propose(0, prompt, kMaxDraftTokens, draft);
  ASSERT_EQ(draft.size, kMaxDraftTokens);
  for (const TokenId token : draft.guessed()) EXPECT_EQ(token, 0);
}

}  // namespace
}  // namespace sluice
