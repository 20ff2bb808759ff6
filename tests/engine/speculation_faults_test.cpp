// SPDX-License-Identifier: Apache-2.0
// Faults that speculation has had in other engines, each with a test of its name. Related tests are
// elsewhere: PreemptedInFlightKeepsAcceptedTokensOnce, PrefixHitTokensEqualNoSpeculation and
// AcceptanceDoesNotDecay in speculation_test.cpp, GrammarBeginsInsideDraft and GrammarRollsBack in
// grammar/grammar_engine_test.cpp, DraftModel.ContextEndsBeforeTarget,
// DraftPlan.VocabularyMismatchIsRefused and MemoryPlan.DraftRowsSumUp in draft_model_test.cpp, and
// the determinism array. Models with recurrent states draft nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/engine/speculation_rig.h"
#include "tests/support/same_bits.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::Alone;
using testing::alone;
using testing::Collected;
using testing::expect_unseen;
using testing::requests_of;

// Each row's history includes the drafts before it, and none behind.
TEST(Speculation, PenaltiesAndMinTokensEqualNoSpeculation) {
  std::vector<ValidRequest> requests = requests_of(12, 40);
  for (size_t i = 0; i < requests.size(); ++i) {
    SamplingParams& sampling = requests[i].sampling;
    sampling.repetition_penalty = 1.5F;
    sampling.presence_penalty = 1;
    sampling.frequency_penalty = 0.8F;
    sampling.temperature = i % 2 == 0 ? 0 : 0.9F;
    sampling.min_tokens = static_cast<int32_t>(5 + i);
    for (TokenId token = 0; token < 200; ++token) sampling.stop_token_ids.push_back(token);
  }
  const Alone expected = alone(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_GT(expected.answers[i].tokens.size(), 5 + i);
  }
  expect_unseen(expected);
}

// Each token's log-probabilities come from the row that chose it.
TEST(Speculation, LogprobsBitwiseEqual) {
  std::vector<ValidRequest> requests = requests_of(10, 30);
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.num_logprobs = static_cast<int32_t>(i % 5);
    if (i % 3 == 0) requests[i].sampling.presence_penalty = 0.5F;
  }
  const Alone expected = alone(requests);
  for (const Collected& answer : expected.answers) EXPECT_EQ(answer.logprobs.size(), 30U);
  expect_unseen(expected);
}

// Accepted tokens behind the end are neither delivered nor counted.
TEST(Speculation, StopInsideAcceptedRun) {
  const std::vector<ValidRequest> requests = requests_of(8, 30);
  const Alone whole = alone(requests);
  Alone cut = whole;
  for (size_t i = 0; i < requests.size(); ++i) {
    const TokenId stop = whole.answers[i].tokens[7];
    cut.requests[i].sampling.stop_token_ids = {stop};
    std::vector<TokenId>& tokens = cut.answers[i].tokens;
    const auto end = std::find(tokens.begin(), tokens.end(), stop) + 1;
    const auto length = static_cast<size_t>(end - tokens.begin());
    const size_t num_top = cut.answers[i].top_logprobs.size() / tokens.size();
    tokens.resize(length);
    if (!cut.answers[i].logprobs.empty()) cut.answers[i].logprobs.resize(length);
    cut.answers[i].top_logprobs.resize(num_top * length);
    cut.answers[i].finish_reason = FinishReason::kStop;
  }
  expect_unseen(cut);
}

TEST(Speculation, MaxTokensInsideAcceptedRun) {
  const std::vector<ValidRequest> requests = requests_of(8, 30);
  const Alone whole = alone(requests);
  Alone cut = whole;
  for (size_t i = 0; i < requests.size(); ++i) {
    const size_t length = 5 + i;
    const size_t num_top = whole.answers[i].top_logprobs.size() / 30;
    cut.requests[i].sampling.max_tokens = static_cast<int32_t>(length);
    cut.answers[i].tokens.resize(length);
    if (!cut.answers[i].logprobs.empty()) cut.answers[i].logprobs.resize(length);
    cut.answers[i].top_logprobs.resize(num_top * length);
    cut.answers[i].finish_reason = FinishReason::kLength;
  }
  expect_unseen(cut);
}

}  // namespace
}  // namespace sluice
