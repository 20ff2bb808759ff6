// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/prediction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace sluice {
namespace {

using Tokens = std::vector<TokenId>;

const Tokens kPrompt = {900, 901};

Tokens counted(size_t length) {
  Tokens tokens(length);
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

// The result of computing the answer with one drafted request and `max` drafts per step.
struct Followed {
  int steps = 0;
  int64_t drafted = 0;
  int64_t accepted = 0;
};

Followed follow(const Tokens& prediction, const Tokens& answer, int32_t max) {
  const auto proposer = make_prediction_proposer();
  proposer->begin(0, {.num_prompt_tokens = 2, .prediction = prediction});
  Tokens known = kPrompt;
  Followed run;
  for (size_t at = 0; at < answer.size(); ++run.steps) {
    Draft draft;
    proposer->propose(0, known, max, draft);
    EXPECT_LE(draft.size, max);
    size_t accepted = 0;
    while (accepted < static_cast<size_t>(draft.size) && at + accepted < answer.size() &&
           draft.tokens[accepted] == answer[at + accepted]) {
      ++accepted;
    }
    run.drafted += draft.size;
    run.accepted += static_cast<int64_t>(accepted);
    for (size_t i = 0; i <= accepted && at < answer.size(); ++i) known.push_back(answer[at++]);
  }
  return run;
}

TEST(Prediction, TrueAnswerIsDraftedWholeFromTheFirstTokenOn) {
  const Followed run = follow(counted(170), counted(170), 16);
  EXPECT_EQ(run.steps, 10);  // 17 tokens each
  EXPECT_EQ(run.accepted, 160);
  EXPECT_EQ(run.drafted, run.accepted);
}

TEST(Prediction, TokensThatWereReplacedCostAStepEach) {
  Tokens answer = counted(200);
  for (const size_t at : {30, 90, 91, 150}) answer[at] = 500;
  const Followed run = follow(counted(200), answer, 8);
  EXPECT_LE(run.steps, 200 / 9 + 1 + 2 * 4);
}

TEST(Prediction, IsFoundAgainBehindWhatWasPutInAndWhatWasLeftOut) {
  Tokens answer = counted(300);
  answer.insert(answer.begin() + 50, {601, 602, 603, 604, 605, 606, 607});
  answer.erase(answer.begin() + 100, answer.begin() + 140);
  answer.insert(answer.begin() + 200, 608);
  const Followed run = follow(counted(300), answer, 8);
  // About 30 steps without changes; 7 tokens occur nowhere, and resuming takes two or three tokens.
  EXPECT_LE(run.steps, 30 + 7 + 3 * 4);
}

TEST(Prediction, BlockThatWasMovedBackIsFound) {
  const Tokens prediction = counted(200);
  Tokens answer(prediction.begin() + 100, prediction.end());
  answer.insert(answer.end(), prediction.begin(), prediction.begin() + 100);
  EXPECT_LE(follow(prediction, answer, 8).steps, 200 / 9 + 2 * 4);
}

TEST(Prediction, PlaceNearestToWhereItWasLostIsTaken) {
  // The pair 7, 8 occurs in many places; the answer omits one token before the third.
  Tokens prediction;
  for (TokenId i = 0; i < 10; ++i) {
    prediction.insert(prediction.end(), {100 + i, 7, 8, 200 + i, 300 + i});
  }
  Tokens answer = prediction;
  answer.erase(answer.begin() + 10);  // 102
  EXPECT_LE(follow(prediction, answer, 4).steps, 50 / 5 + 3);
}

TEST(Prediction, OneThatIsAltogetherWrongIsMarkedAsLost) {
  const auto proposer = make_prediction_proposer();
  const Tokens prediction = counted(50);
  proposer->begin(0, {.num_prompt_tokens = 2, .prediction = prediction});
  Tokens known = kPrompt;
  Draft draft;
  proposer->propose(0, known, 4, draft);
  const uint8_t at_first = draft.bins[0];
  for (TokenId token = 700; token < 710; ++token) {
    known.push_back(token);
    proposer->propose(0, known, 4, draft);
    ASSERT_EQ(draft.size, 4);
    EXPECT_NE(draft.bins[0], at_first);
  }
  for (TokenId token = 710; token < 800; ++token) known.push_back(token);
  proposer->propose(0, known, 4, draft);
  EXPECT_EQ(draft.size, 0);  // the prediction has ended
}

TEST(Prediction, NoneAndEmptyGiveNoDraftNorOneOfTheRequestBefore) {
  const auto proposer = make_prediction_proposer();
  Draft draft;
  const Tokens prediction = counted(20);
  proposer->begin(0, {.num_prompt_tokens = 2, .prediction = prediction});
  proposer->propose(0, kPrompt, 4, draft);
  EXPECT_EQ(draft.size, 4);
  proposer->end(0, kPrompt);
  proposer->begin(0, {.num_prompt_tokens = 2});
  proposer->propose(0, kPrompt, 4, draft);
  EXPECT_EQ(draft.size, 0);
}

TEST(Prediction, AnswerThatAnotherWorkerBeganIsFollowed) {
  const Tokens prediction = counted(40);
  Tokens known = kPrompt;
  known.insert(known.end(), prediction.begin(), prediction.begin() + 20);
  const auto proposer = make_prediction_proposer();
  proposer->begin(0, {.num_prompt_tokens = 2, .prediction = prediction});
  Draft draft;
  proposer->propose(0, known, 3, draft);
  EXPECT_EQ(Tokens(draft.guessed().begin(), draft.guessed().end()), (Tokens{21, 22, 23}));
}

TEST(Prediction, RandomTextsNeverLeaveTheirBounds) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 500; ++round) {
    const auto vocab_size = 1 + random() % 5;
    Tokens prediction(random() % 30);
    Tokens answer(1 + random() % 60);
    for (TokenId& token : prediction) token = static_cast<TokenId>(random() % vocab_size);
    for (TokenId& token : answer) token = static_cast<TokenId>(random() % vocab_size);
    const Followed run = follow(prediction, answer, static_cast<int32_t>(1 + random() % 10));
    EXPECT_LE(run.steps, static_cast<int>(answer.size()));
  }
}

}  // namespace
}  // namespace sluice
