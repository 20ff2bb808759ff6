// SPDX-License-Identifier: Apache-2.0
// Masks, bias and penalties against the formulas rewritten in double precision.
#include "engine/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "engine/sampling/token_mask.h"
#include "kernels/device.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

// Some tokens are committed and some are not, whatever reads them.
TokenSequence in_two(std::span<const TokenId> tokens) {
  return {tokens.first(tokens.size() / 2), tokens.subspan(tokens.size() / 2)};
}

constexpr int32_t kVocab = 97;  // no multiple of 32
constexpr TokenId kEnd = 5;

class SamplerTest : public ::testing::Test {
 protected:
  static std::vector<float> random_logits(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<float> logits(kVocab);
    for (float& x : logits) x = static_cast<float>(random() % 2001) / 100.0F - 10.0F;
    return logits;
  }

  SamplerResult choose(const SamplingParams& params,
                       const std::vector<TokenId>& tokens,
                       int32_t num_prompt,
                       std::vector<float> logits) {
    const SamplerInput input = {.params = &params,
                                .logits = logits.data(),
                                .tokens = in_two(tokens),
                                .num_prompt_tokens = num_prompt,
                                .num_generated = static_cast<int32_t>(tokens.size()) - num_prompt};
    return sampler_.sample(device_->context(), std::span(&input, 1))[0];
  }

  std::unique_ptr<kernels::Device> device_ =
      std::move(*kernels::Device::create({.type = DeviceType::kCpu, .isa = "auto", .threads = 1}));
  Sampler sampler_{kVocab, 8, 20, 1, {kEnd}};
};

TokenId best_of(const std::vector<double>& x) {
  return static_cast<TokenId>(std::ranges::max_element(x) - x.begin());
}

TEST_F(SamplerTest, BiasAndPenaltiesFollowTheirFormulas) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    const std::vector<float> logits = random_logits(random());
    std::vector<TokenId> tokens(2 + random() % 60);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() % kVocab);
    const auto num_prompt = static_cast<int32_t>(1 + random() % (tokens.size() - 1));
    SamplingParams params;
    params.temperature = 0;
    params.num_logprobs = static_cast<int32_t>(random() % 4) - 1;
    params.presence_penalty = static_cast<float>(random() % 5) - 2.0F;
    params.frequency_penalty = static_cast<float>(random() % 5) - 2.0F;
    params.repetition_penalty = 0.5F + static_cast<float>(random() % 4) * 0.5F;
    params.logit_bias = {{static_cast<TokenId>(random() % 40), 8.0F}, {50, -100.0F}};

    std::vector<double> expected(logits.begin(), logits.end());
    for (const LogitBias& entry : params.logit_bias) {
      expected[static_cast<size_t>(entry.token)] += entry.bias;
    }
    std::map<TokenId, int> output_count;
    for (size_t i = 0; i < tokens.size(); ++i) {
      output_count[tokens[i]] += i >= static_cast<size_t>(num_prompt) ? 1 : 0;
    }
    for (const auto& [token, count] : output_count) {
      double& x = expected[static_cast<size_t>(token)];
      x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
      x -= count * params.frequency_penalty;
      x -= count > 0 ? params.presence_penalty : 0;
    }
    const SamplerResult result = choose(params, tokens, num_prompt, logits);
    ASSERT_NEAR(expected[static_cast<size_t>(result.token)],
                expected[static_cast<size_t>(best_of(expected))],
                1e-4)
        << "round " << round;
  }
}

TEST_F(SamplerTest, LogprobsAreThoseOfTheUnmodifiedLogits) {
  const std::vector<float> logits = random_logits(3);
  const std::vector<TokenId> tokens = {1, 2, 3, 3};
  SamplingParams plain;
  plain.temperature = 0;
  plain.num_logprobs = 4;
  SamplerResult result = choose(plain, tokens, 2, logits);
  const std::vector<kernels::TokenScore> top(result.top_logprobs.begin(),
                                             result.top_logprobs.end());
  SamplingParams changed = plain;
  changed.logit_bias = {{top[3].token, 100.0F}};
  changed.frequency_penalty = 2;
  result = choose(changed, tokens, 2, logits);
  EXPECT_EQ(result.token, top[3].token);
  EXPECT_EQ(result.logprob, top[3].logprob);
  ASSERT_EQ(result.top_logprobs.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(result.top_logprobs[i].token, top[i].token);
    EXPECT_EQ(result.top_logprobs[i].logprob, top[i].logprob);
  }
}

TEST_F(SamplerTest, RowsOfABatchDoNotSeeEachOther) {
  std::mt19937_64 random(4);
  constexpr size_t kRows = 8;
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<SamplingParams> params(kRows);
  std::vector<SamplerResult> alone;
  std::vector<std::vector<kernels::TokenScore>> alone_top;
  for (size_t i = 0; i < kRows; ++i) {
    logits.push_back(random_logits(random()));
    tokens.emplace_back(kVocab * 3);  // more tokens than the vocabulary has
    for (TokenId& token : tokens[i]) token = static_cast<TokenId>(random() % kVocab);
    params[i].seed = random();
    params[i].num_logprobs = i % 3 == 0 ? -1 : 2;
    if (i % 2 == 0) params[i].repetition_penalty = 1.5F;
    if (i % 4 == 0) params[i].logit_bias = {{7, 3.0F}, {8, -3.0F}};
    alone.push_back(choose(params[i], tokens[i], 10, logits[i]));
    alone_top.emplace_back(alone[i].top_logprobs.begin(), alone[i].top_logprobs.end());
  }
  std::vector<SamplerInput> inputs;
  for (size_t i = 0; i < kRows; ++i) {
    const auto num_generated = static_cast<int32_t>(tokens[i].size()) - 10;
    inputs.push_back({&params[i], logits[i].data(), in_two(tokens[i]), 10, num_generated});
  }
  const auto together = sampler_.sample(device_->context(), inputs);
  for (size_t i = 0; i < kRows; ++i) {
    EXPECT_EQ(together[i].token, alone[i].token) << i;
    if (params[i].num_logprobs < 0) continue;
    EXPECT_EQ(together[i].logprob, alone[i].logprob) << i;
    ASSERT_EQ(together[i].top_logprobs.size(), alone_top[i].size());
    for (size_t k = 0; k < alone_top[i].size(); ++k) {
      EXPECT_EQ(together[i].top_logprobs[k].token, alone_top[i][k].token);
    }
  }
}

TEST_F(SamplerTest, EndTokenThatHadToBeChosenBeforeMinTokensEndsNothing) {
  SamplingParams params;
  params.temperature = 0;
  params.min_tokens = 2;
  params.max_tokens = 9;
  params.allowed_token_ids = {kEnd};
  for (const std::vector<TokenId>& stops : {std::vector<TokenId>{}, std::vector<TokenId>{kEnd}}) {
    params.stop_token_ids = stops;
    params.ignore_eos = !stops.empty();
    std::vector<TokenId> tokens = {1};
    for (const FinishReason expected :
         {FinishReason::kNone, FinishReason::kNone, FinishReason::kStop}) {
      const SamplerResult result = choose(params, tokens, 1, random_logits(3));
      EXPECT_EQ(result.token, kEnd);
      EXPECT_EQ(result.finish_reason, expected);
      EXPECT_EQ(result.stopped_by_token, expected == FinishReason::kStop);
      tokens.push_back(result.token);
    }
  }
}

class TokenMask : public ::testing::Test {
 protected:
  // Returns the tokens that may follow `generated`; empty: no mask.
  std::set<TokenId> allowed(const std::vector<TokenId>& generated) {
    std::vector<uint32_t> words(token_mask_words(kVocab), 0xDEADBEEF);
    std::set<TokenId> tokens;
    const std::vector<TokenId> ends = {kEnd};
    const auto num_generated = static_cast<int32_t>(generated.size());
    const bool is_masked =
        write_token_mask(params_, num_generated, in_two(generated), ends, kVocab, grammar_, words);
    if (!is_masked) return tokens;
    for (TokenId token = 0; token < static_cast<TokenId>(words.size() * 32); ++token) {
      if ((words[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0) tokens.insert(token);
    }
    return tokens;
  }

  static std::set<TokenId> all_but(const std::set<TokenId>& absent) {
    std::set<TokenId> tokens;
    for (TokenId token = 0; token < kVocab; ++token) {
      if (!absent.contains(token)) tokens.insert(token);
    }
    return tokens;
  }

  // Restricts the grammar to these tokens.
  void bind(const std::set<TokenId>& tokens) {
    grammar_.assign(token_mask_words(kVocab), 0);
    for (const TokenId token : tokens) {
      grammar_[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
    }
  }

  SamplingParams params_;
  std::vector<uint32_t> grammar_;  // empty: all
};

TEST_F(TokenMask, UserRulesYieldAndTheGrammarDoesNot) {
  using Set = std::set<TokenId>;
  bind({7, 8, kEnd});
  EXPECT_EQ(allowed({}), Set({7, 8, kEnd}));
  params_.allowed_token_ids = {8, 9};
  EXPECT_EQ(allowed({}), Set({8}));
  params_.allowed_token_ids = {9};  // disjoint
  EXPECT_EQ(allowed({}), Set({7, 8, kEnd}));
  params_.allowed_token_ids.clear();
  params_.min_tokens = 2;
  EXPECT_EQ(allowed({}), Set({7, 8}));
  params_.bad_words = {{7}, {8}};
  EXPECT_EQ(allowed({}), Set({7, 8}));
  bind({kEnd});  // the text is complete
  EXPECT_EQ(allowed({}), Set({kEnd}));
}

TEST_F(TokenMask, NoRuleNeedsNoMask) { EXPECT_TRUE(allowed({}).empty()); }

TEST_F(TokenMask, EndAndStopTokensWaitForMinTokens) {
  params_.min_tokens = 2;
  params_.stop_token_ids = {9};
  EXPECT_EQ(allowed({1}), all_but({kEnd, 9}));
  EXPECT_TRUE(allowed({1, 1}).empty());
}

TEST_F(TokenMask, OnlyAllowedTokensAreLeft) {
  params_.allowed_token_ids = {2, 40, 96};
  EXPECT_EQ(allowed({}), (std::set<TokenId>{2, 40, 96}));
}

TEST_F(TokenMask, LastTokenOfABadWordIsRefusedBehindItsBeginning) {
  params_.bad_words = {{7}, {1, 2, 3}};
  EXPECT_EQ(allowed({}), all_but({7}));
  EXPECT_EQ(allowed({1}), all_but({7}));
  EXPECT_EQ(allowed({9, 1, 2}), all_but({7, 3}));
  EXPECT_EQ(allowed({2, 1, 2, 4}), all_but({7}));
}

TEST_F(TokenMask, BadWordNotYetDueNeedsNoMask) {
  params_.bad_words = {{1, 2}};
  EXPECT_TRUE(allowed({}).empty());
  EXPECT_EQ(allowed({1}), all_but({2}));
}

// The prompt or the answer begins reasoning; at the limit its end is forced.
TEST_F(TokenMask, ReasoningAtItsLimitEnds) {
  params_.reasoning_limit = {.max_tokens = 2, .begin = {}, .end = {40, 41}};
  EXPECT_TRUE(allowed({5}).empty());
  EXPECT_EQ(allowed({5, 6}), (std::set<TokenId>{40}));
  EXPECT_EQ(allowed({5, 6, 40}), (std::set<TokenId>{41}));
  EXPECT_EQ(allowed({5, 40}), (std::set<TokenId>{41}));  // the model had begun to end it
  EXPECT_TRUE(allowed({5, 6, 40, 41}).empty());
  EXPECT_TRUE(allowed({40, 41, 5, 6, 7}).empty());  // it ended before its limit
  params_.reasoning_limit.begin = {30, 31};
  EXPECT_TRUE(allowed({5, 6, 7}).empty());
  EXPECT_TRUE(allowed({30, 5, 6, 7}).empty());
  EXPECT_TRUE(allowed({30, 31, 5}).empty());
  EXPECT_EQ(allowed({5, 30, 31, 5, 6}), (std::set<TokenId>{40}));
  params_.reasoning_limit.max_tokens = 0;
  EXPECT_EQ(allowed({30, 31}), (std::set<TokenId>{40}));
  EXPECT_EQ(allowed({30, 31, 40}), (std::set<TokenId>{41}));
}

TEST_F(TokenMask, TheEndOfReasoningComesBeforeOtherRules) {
  params_.reasoning_limit = {.max_tokens = 1, .begin = {}, .end = {40}};
  params_.bad_words = {{40}};
  params_.allowed_token_ids = {7, 8};
  EXPECT_EQ(allowed({5}), (std::set<TokenId>{40}));
  bind({7, 40});
  EXPECT_EQ(allowed({5}), (std::set<TokenId>{40}));
  bind({7});
  EXPECT_EQ(allowed({5}), (std::set<TokenId>{7}));
}

TEST_F(TokenMask, RuleThatWouldLeaveNothingIsNotApplied) {
  params_.allowed_token_ids = {kEnd};
  params_.min_tokens = 3;
  EXPECT_EQ(allowed({}), (std::set<TokenId>{kEnd}));
  params_.allowed_token_ids = {kEnd, 8};
  EXPECT_EQ(allowed({}), (std::set<TokenId>{8}));
  params_.bad_words = {{8}};
  EXPECT_EQ(allowed({}), (std::set<TokenId>{8}));
  EXPECT_EQ(allowed({1, 1, 1}), (std::set<TokenId>{kEnd}));
}

// Five requests whose grammars allow one letter each, "aaaaaaaaa" to "eeeeeeeee", with three rows a
// step: the next token and two drafts. A sixth has no grammar.
class BoundRows {
 public:
  explicit BoundRows(int32_t num_threads)
      : device_(std::move(*kernels::Device::create(
            {.type = DeviceType::kCpu, .isa = "auto", .threads = num_threads}))),
        sampler_(testing::kByteWidth, kNumRows, 0, num_threads, {testing::kByteEnd}) {
    const auto backend = testing::byte_backend();
    for (TokenId letter = 'a'; letter < 'f'; ++letter) {
      GrammarSpec spec;
      spec.kind = GrammarKind::kRegex;
      spec.text = std::string(1, static_cast<char>(letter)) + "{9}";
      states_.emplace_back(std::make_shared<const BoundGrammar>(
          BoundGrammar{.grammar = backend->compile(spec).value()}));
      answers_.emplace_back(9, letter);
    }
    params_.temperature = 0;
  }

  // Makes one token of an answer a draft that its grammar refuses.
  void refuse(size_t request, size_t position) { answers_[request][position] = 'z'; }

  // The tokens of a step's rows; kInvalidToken where the grammar allows none. Without a grammar 'z'
  // is the best one.
  std::vector<TokenId> step(size_t num_generated) {
    std::vector<std::vector<float>> logits(kNumRows, std::vector<float>(testing::kByteWidth));
    std::vector<SamplerInput> inputs(kNumRows);
    for (size_t i = 0; i < kNumRows; ++i) {
      const size_t position = num_generated + i % 3;
      logits[i]['z'] = 1;
      inputs[i].params = &params_;
      inputs[i].logits = logits[i].data();
      inputs[i].num_generated = static_cast<int32_t>(position);
      if (i / 3 == states_.size()) continue;
      inputs[i].tokens = {.committed = {}, .tail = std::span(answers_[i / 3]).first(position)};
      inputs[i].grammar = &states_[i / 3];
    }
    sampler_.bind(device_->context(), inputs);
    std::vector<TokenId> tokens;
    for (const SamplerResult& result : sampler_.sample(device_->context(), inputs)) {
      tokens.push_back(result.grammar_failed ? kInvalidToken : result.token);
    }
    return tokens;
  }

 private:
  static constexpr int32_t kNumRows = 18;

  const std::unique_ptr<kernels::Device> device_;
  Sampler sampler_;
  SamplingParams params_;
  std::vector<GrammarState> states_;
  std::vector<std::vector<TokenId>> answers_;
};

TEST(SamplerWithGrammars, EachRowObeysItsOwnOnEveryNumberOfThreads) {
  for (const int32_t num_threads : {1, 4}) {
    BoundRows rows(num_threads);
    rows.refuse(3, 4);
    for (size_t step = 0; step < 7; ++step) {
      const std::vector<TokenId> tokens = rows.step(step);
      for (size_t i = 0; i < tokens.size(); ++i) {
        TokenId expected = i / 3 < 5 ? static_cast<TokenId>('a' + i / 3) : 'z';
        if (i / 3 == 3 && step + i % 3 > 4) expected = kInvalidToken;
        EXPECT_EQ(tokens[i], expected) << num_threads << " threads, step " << step << ", row " << i;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
