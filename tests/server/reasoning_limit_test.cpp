// SPDX-License-Identifier: Apache-2.0
#include "server/api/reasoning_limit.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/config.h"
#include "server/tools/output_families.h"
#include "tests/server/tools/transcript.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// The limit of a budget of 9 tokens, or the error's text.
class Asked {
 public:
  Asked(std::string_view family, std::vector<std::string_view> specials)
      : tokenizer_(make_byte_tokenizer(specials)) {
    families_.reasoning = family.empty() ? nullptr : find_reasoning_family(family);
    if (families_.reasoning != nullptr) {
      families_.format = resolve_format(nullptr, families_.reasoning, *tokenizer_);
    }
  }

  [[nodiscard]] TokenId token(std::string_view name) const { return tokenizer_->find_token(name); }

  Expected<ReasoningLimit> limit(std::string_view prompt_tail, const Json& budget = 9) {
    const ValidationContext context{
        config_, model_, *tokenizer_, template_, names_, 0, 0, {}, &families_};
    return read_reasoning_limit(context, {{"thinking_token_budget", budget}}, prompt_tail);
  }

 private:
  Config config_;
  ModelInfo model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Expected<ChatTemplate> template_ = ChatTemplate::compile("");
  std::vector<std::string> names_ = {"m"};
  OutputFamilies families_;
};

std::vector<TokenId> bytes(std::string_view text) { return {text.begin(), text.end()}; }

TEST(ReasoningLimit, CountsFromWhereReasoningBegins) {
  Asked asked("qwen3", {"<think>", "</think>"});
  const auto after_begin = asked.limit("assistant\n");
  ASSERT_TRUE(after_begin) << after_begin.error().message;
  EXPECT_EQ(after_begin->max_tokens, 9);
  EXPECT_EQ(after_begin->begin, std::vector<TokenId>({asked.token("<think>")}));
  EXPECT_EQ(after_begin->end, std::vector<TokenId>({asked.token("</think>")}));
  const auto begun = asked.limit("assistant\n<think>\n");
  ASSERT_TRUE(begun);
  EXPECT_TRUE(begun->begin.empty());
  EXPECT_TRUE(begun->is_set());
  EXPECT_FALSE(asked.limit("assistant\n<think>\n\n</think>\n\n")->is_set());
  EXPECT_FALSE(asked.limit("assistant\n", nullptr)->is_set());
}

TEST(ReasoningLimit, MarksOfSeveralTokensAreWrittenWhole) {
  Asked asked("openai_gptoss", {"<|channel|>", "<|message|>", "<|start|>", "<|end|>"});
  const auto limit = asked.limit("<|end|><|start|>assistant");
  ASSERT_TRUE(limit) << limit.error().message;
  std::vector<TokenId> begin = {asked.token("<|channel|>")};
  for (const TokenId token : bytes("analysis")) begin.push_back(token);
  begin.push_back(asked.token("<|message|>"));
  EXPECT_EQ(limit->begin, begin);
  std::vector<TokenId> end = {asked.token("<|end|>"), asked.token("<|start|>")};
  for (const TokenId token : bytes("assistant")) end.push_back(token);
  EXPECT_EQ(limit->end, end);
}

TEST(ReasoningLimit, WhatCannotBeKeptIsRefused) {
  const auto refusal = [](Asked asked, const Json& budget) {
    const auto limit = asked.limit("assistant\n", budget);
    if (limit) return std::string();
    EXPECT_EQ(limit.error().param, "thinking_token_budget");
    return limit.error().message;
  };
  EXPECT_NE(refusal({"", {}}, 9).find("--reasoning-parser"), std::string::npos);
  // Text that other tokens may spell as well.
  EXPECT_NE(refusal({"qwen3", {}}, 9).find("qwen3"), std::string::npos);
  EXPECT_NE(refusal({"granite", {}}, 9).find("granite"), std::string::npos);
  EXPECT_EQ(refusal({"qwen3", {"<think>", "</think>"}}, -1), "");  // no limit
  EXPECT_NE(refusal({"qwen3", {"<think>", "</think>"}}, -2), "");
  EXPECT_NE(refusal({"qwen3", {"<think>", "</think>"}}, "many"), "");
}

}  // namespace
}  // namespace sluice
