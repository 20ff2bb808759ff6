// SPDX-License-Identifier: Apache-2.0
// Answers that a grammar binds, from the whole engine: the same under every schedule, and valid.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/engine/speculation_rig.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"
#include "tests/support/varied_requests.h"

namespace sluice {
namespace {

using testing::Collected;

constexpr size_t kNumRequests = 24;

Config tiny_config() {
  Config config;
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.threads = 2;
  config.kv_cache_memory = int64_t{16} << 20;
  return config;
}

std::shared_ptr<const GrammarSpec> schema(std::string text) {
  return std::make_shared<const GrammarSpec>(
      GrammarSpec{.kind = GrammarKind::kJsonSchema,
                  .text = std::move(text),
                  .begins_after = {},
                  .control_tokens = {},
                  .param = "response_format"});
}

std::shared_ptr<const GrammarSpec> expression(std::string text,
                                              std::vector<TokenId> begins_after = {}) {
  return std::make_shared<const GrammarSpec>(
      GrammarSpec{.kind = GrammarKind::kRegex,
                  .text = std::move(text),
                  .begins_after = std::move(begins_after),
                  .control_tokens = {},
                  .param = "structured_outputs"});
}

// Requests of all kinds, two of three bound.
std::vector<ValidRequest> bound_requests(const Engine& engine) {
  std::vector<ValidRequest> requests =
      testing::varied_requests(engine.model().vocab_size, kNumRequests);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 3 == 0) {
      requests[i].grammar = schema(
          R"({"type":"object","properties":{"a":{"type":"integer","maximum":9,"minimum":0},
              "b":{"enum":["x","yy"]}},"required":["a","b"]})");
    } else if (i % 3 == 1) {
      requests[i].grammar = expression("[a-f]{3}(-[0-9]+)?");
    }
  }
  return requests;
}

std::string text_of(const Engine& engine, const Collected& answer) {
  std::string text;
  for (const TokenId token : answer.tokens) {
    if (!engine.tokenizer().is_special(token)) text += engine.tokenizer().token_bytes(token);
  }
  return text;
}

TEST(BoundAnswers, AreTheSameUnderEverySchedule) {
  const auto engine = testing::start_engine(tiny_config());
  ASSERT_NE(engine, nullptr);
  const std::vector<ValidRequest> requests = bound_requests(*engine);
  const std::vector<Collected> alone = testing::run_alone(*engine, requests);
  size_t num_ended = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 3 != 0 || alone[i].finish_reason != FinishReason::kStop) continue;
    const std::string text = text_of(*engine, alone[i]);
    const auto value = nlohmann::json::parse(text, nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << text;
    EXPECT_TRUE(value["b"] == "x" || value["b"] == "yy") << text;
    ++num_ended;
  }
  EXPECT_GT(num_ended, 0U);
  testing::expect_same(alone, testing::run_together(*engine, requests), "together");
  Config config = tiny_config();
  config.overlap = true;
  testing::expect_same(
      alone, testing::run_together(*testing::start_engine(config), requests), "overlap");
  config = tiny_config();
  config.max_num_batched_tokens = 16;
  config.debug_preempt_every = 3;
  testing::expect_same(
      alone, testing::run_together(*testing::start_engine(config), requests), "preempted");
  // Another worker goes on from the tokens.
  std::vector<ValidRequest> later;
  std::vector<Collected> rest;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (alone[i].tokens.size() < 3) continue;
    later.push_back(requests[i]);
    later.back().sampling.num_prompt_logprobs = -1;
    later.back().generated.assign(alone[i].tokens.begin(), alone[i].tokens.begin() + 2);
    Collected& expected = rest.emplace_back();
    expected.finish_reason = alone[i].finish_reason;
    expected.tokens.assign(alone[i].tokens.begin() + 2, alone[i].tokens.end());
    if (!alone[i].logprobs.empty()) {
      expected.logprobs.assign(alone[i].logprobs.begin() + 2, alone[i].logprobs.end());
    }
    const auto num_top =
        static_cast<ptrdiff_t>(alone[i].top_logprobs.size() / alone[i].tokens.size());
    expected.top_logprobs.assign(alone[i].top_logprobs.begin() + 2 * num_top,
                                 alone[i].top_logprobs.end());
  }
  ASSERT_FALSE(later.empty());
  testing::expect_same(rest, testing::run_together(*engine, later), "continued");
}

// Drafts of what a grammar leaves no choice about change nothing but the number of steps, and no
// configuration asks for them.
TEST(BoundAnswers, ForcedTokensAreDraftedAndChangeNothing) {
  const auto plain = testing::start_engine(tiny_config());
  ASSERT_NE(plain, nullptr);
  std::vector<ValidRequest> requests = bound_requests(*plain);
  for (size_t i = 2; i < requests.size(); i += 3) {
    requests[i].grammar = schema(
        R"({"type":"object","properties":{"a_key_of_many_letters":{"const":"and its only value"},
            "another_one":{"type":"boolean"}},"required":["a_key_of_many_letters","another_one"]})");
    requests[i].sampling.max_tokens = 80;
  }
  std::vector<ValidRequest> undrafted = requests;
  for (ValidRequest& request : undrafted) request.speculative = false;
  const std::vector<Collected> expected = testing::run_alone(*plain, undrafted);
  EXPECT_EQ(plain->stats().drafts.num_drafts[static_cast<size_t>(DraftSource::kForced)], 0U);
  testing::expect_same(expected, testing::run_together(*plain, requests), "adaptive");
  for (const bool overlap : {false, true}) {
    for (const char* method : {"ngram", "replay"}) {
      Config config = tiny_config();
      config.speculative_config = std::string(R"({"method":")") + method +
                                  R"(","num_speculative_tokens":8,"adaptive":false})";
      config.overlap = overlap;
      config.debug_preempt_every = overlap ? 3 : 0;
      const auto engine = testing::start_engine(config);
      ASSERT_NE(engine, nullptr);
      testing::expect_same(expected, testing::run_together(*engine, requests), method);
      testing::settle(*engine);
      const DraftStats drafts = engine->stats().drafts;
      const auto source = static_cast<size_t>(DraftSource::kForced);
      EXPECT_EQ(drafts.num_accepted_tokens[source] > 100, std::string(method) == "ngram")
          << drafts.num_accepted_tokens[source] << " of " << drafts.num_draft_tokens[source];
    }
  }
}

// Faults that speculation has had in other engines; more of them in speculation_faults_test.cpp.

std::shared_ptr<const GrammarSpec> letters(std::vector<TokenId> begins_after) {
  return expression("[a-z ]*", std::move(begins_after));
}

// The token that ends the free part is itself a draft, and the mask of the row behind it is bound.
TEST(Speculation, GrammarBeginsInsideDraft) {
  const std::vector<ValidRequest> requests = testing::requests_of(8, 40);
  const testing::Alone free = testing::alone(requests);
  testing::Alone bound;
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<TokenId>& tokens = free.answers[i].tokens;
    const auto marker = std::find_if(tokens.begin() + 4, tokens.end(), [&](const TokenId& token) {
      return std::find(tokens.begin(), tokens.begin() + (&token - tokens.data()), token) ==
             tokens.begin() + (&token - tokens.data());
    });
    if (marker == tokens.end()) continue;
    bound.requests.push_back(requests[i]);
    bound.requests.back().grammar = letters({*marker});
  }
  ASSERT_GT(bound.requests.size(), 4U);
  bound = testing::alone(bound.requests);
  bool differs = false;
  for (size_t i = 0; i < bound.answers.size(); ++i) {
    differs = differs || bound.answers[i].tokens != free.answers[i].tokens;
  }
  EXPECT_TRUE(differs);
  testing::expect_unseen(bound);
}

// A matcher that was moved along wrong drafts goes back.
TEST(Speculation, GrammarRollsBack) {
  std::vector<ValidRequest> requests = testing::requests_of(8, 40);
  for (ValidRequest& request : requests) request.grammar = letters({});
  testing::expect_unseen(testing::alone(requests));
}

ValidRequest regex_request(const std::string& regex) {
  ValidRequest request;
  request.prompt = {5, 6, 7};
  request.grammar = expression(regex);
  request.sampling.max_tokens = 64;
  return request;
}

TEST(BoundAnswers, ErrorsOfGrammarsBeginWithTheField) {
  const auto engine = testing::start_engine(tiny_config());
  ASSERT_NE(engine, nullptr);
  testing::CollectingSink sink;
  const Collected answer = sink.wait(*engine->submit(regex_request("("), sink));
  EXPECT_EQ(answer.finish_reason, FinishReason::kError);
  EXPECT_TRUE(answer.error.starts_with("structured_outputs: Regex")) << answer.error;
}

TEST(BoundAnswers, EndWithTheirText) {
  const auto engine = testing::start_engine(tiny_config());
  ASSERT_NE(engine, nullptr);
  ValidRequest request = regex_request("[ab]{5}");
  request.sampling.ignore_eos = true;
  request.sampling.min_tokens = 40;
  request.sampling.allowed_token_ids = {9};
  testing::CollectingSink sink;
  const Collected answer = sink.wait(*engine->submit(request, sink));
  EXPECT_EQ(answer.finish_reason, FinishReason::kStop);
  const std::string text = text_of(*engine, answer);
  EXPECT_EQ(text.size(), 5U) << text;
  EXPECT_EQ(text.find_first_not_of("ab"), std::string::npos) << text;
}

TEST(BoundAnswers, ARefusedGrammarEndsItsRequestAlone) {
  const auto engine = testing::start_engine(tiny_config());
  ASSERT_NE(engine, nullptr);
  testing::CollectingSink sink;
  const RequestId refused = *engine->submit(regex_request("("), sink);
  const RequestId taken = *engine->submit(regex_request("ab"), sink);
  const Collected error = sink.wait(refused);
  EXPECT_EQ(error.finish_reason, FinishReason::kError);
  EXPECT_EQ(sink.wait(taken).finish_reason, FinishReason::kStop);
}

TEST(BoundAnswers, OneThatIsAbortedWhileItCompilesLeavesNothing) {
  const auto engine = testing::start_engine(tiny_config());
  ASSERT_NE(engine, nullptr);
  testing::CollectingSink sink;
  const RequestId id =
      *engine->submit(regex_request("((((a{1,1000}){1,1000}){1,1000}){1,1000})"), sink);
  engine->abort(id);
  EXPECT_EQ(sink.wait(id).finish_reason, FinishReason::kAbort);
  EXPECT_EQ(engine->stats().num_requests_waiting, 0);
  ValidRequest next = regex_request("b");
  EXPECT_EQ(sink.wait(*engine->submit(next, sink)).finish_reason, FinishReason::kStop);
}

// Tokens that do not lead into the grammar end the request, not the engine.
TEST(BoundAnswers, AContinuationOutsideOfTheGrammarIsAnError) {
  const auto engine = testing::start_engine(tiny_config());
  ASSERT_NE(engine, nullptr);
  testing::CollectingSink sink;
  ValidRequest request = regex_request("[ab]{5}");
  request.generated = {engine->tokenizer().end_tokens().front()};
  EXPECT_EQ(sink.wait(*engine->submit(request, sink)).finish_reason, FinishReason::kError);
  EXPECT_EQ(sink.wait(*engine->submit(regex_request("ab"), sink)).finish_reason,
            FinishReason::kStop);
}

}  // namespace
}  // namespace sluice
