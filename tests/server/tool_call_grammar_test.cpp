// SPDX-License-Identifier: Apache-2.0
// Forced calls: what the grammar allows is calls in the family's form, with arguments of the
// schema.
#include "server/api/tool_call_grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/sampling/grammar/structural_tag_gate.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

std::shared_ptr<const Grammar> compile(GrammarSpec spec) {
  const auto gated = gate_structural_tag(spec.text, spec.is_best_effort, {});
  EXPECT_TRUE(gated) << gated.error().message;
  if (!gated) return nullptr;
  spec.text = *gated;
  const auto grammar = testing::byte_backend({.max_whitespace = 1})->compile(spec);
  EXPECT_TRUE(grammar) << grammar.error().message;
  return grammar ? *grammar : nullptr;
}

const CallForm& json_form() {
  static const CallForm form = {.open = {},
                                .begin = {{.text = "<tool_call>\n{\"name\": \""}},
                                .behind_name = {{.text = "\", \"arguments\": "}},
                                .end = {{.text = "}\n</tool_call>"}},
                                .separator = {{.text = "\n"}},
                                .close = {}};
  return form;
}

const std::vector<CallableTool>& tools() {
  static const std::vector<CallableTool> list = {
      {"add", R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})"},
      {"now", ""}};
  return list;
}

TEST(ToolCallGrammar, OneCallOrSeveral) {
  const std::string add =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n</tool_call>";
  const std::string now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  const auto several = compile(tool_call_grammar(json_form(), tools(), true, false));
  ASSERT_NE(several, nullptr);
  EXPECT_TRUE(testing::accepts(*several, add));
  EXPECT_TRUE(testing::accepts(*several, add + "\n" + now + "\n" + add));
  EXPECT_FALSE(testing::accepts(*several, add + now));
  EXPECT_FALSE(testing::accepts(*several, ""));
  EXPECT_FALSE(testing::accepts(*several, "text " + add));
  const auto one = compile(tool_call_grammar(json_form(), tools(), false, false));
  ASSERT_NE(one, nullptr);
  EXPECT_TRUE(testing::accepts(*one, now));
  EXPECT_FALSE(testing::accepts(*one, add + "\n" + now));
  const auto named =
      compile(tool_call_grammar(json_form(), std::span(tools()).first(1), false, false));
  ASSERT_NE(named, nullptr);
  EXPECT_TRUE(testing::accepts(*named, add));
  EXPECT_FALSE(testing::accepts(*named, now));
}

TEST(ToolCallGrammar, ArgumentsFollowTheSchema) {
  const auto grammar = compile(tool_call_grammar(json_form(), tools(), false, false));
  ASSERT_NE(grammar, nullptr);
  const auto with = [](const std::string& arguments) {
    return "<tool_call>\n{\"name\": \"add\", \"arguments\": " + arguments + "}\n</tool_call>";
  };
  EXPECT_TRUE(testing::accepts(*grammar, with("{\"a\": -12}")));
  EXPECT_FALSE(testing::accepts(*grammar, with("{}")));
  EXPECT_FALSE(testing::accepts(*grammar, with("{\"a\":\"1\"}")));
}

TEST(ToolCallGrammar, ControlTokensAreReachedByTheirIds) {
  CallForm form = json_form();
  form.begin = {{.token = testing::kByteMarker}, {.text = "{\"name\": \""}};
  form.end = {{.text = "}"}, {.token = testing::kByteControl}};
  form.separator = {};
  const GrammarSpec spec = tool_call_grammar(form, tools(), true, false);
  EXPECT_EQ(spec.control_tokens,
            std::vector<TokenId>({testing::kByteControl, testing::kByteMarker}));
  const auto grammar = compile(spec);
  ASSERT_NE(grammar, nullptr);
  const auto matcher = grammar->match();
  EXPECT_EQ(testing::allowed_tokens(*matcher), std::vector<TokenId>({testing::kByteMarker}));
  ASSERT_TRUE(matcher->accept(testing::kByteMarker));
  ASSERT_TRUE(testing::accepts_prefix(*matcher, "{\"name\": \"now\", \"arguments\": {\"x"));
  for (const TokenId token : {testing::kByteMarker, testing::kByteControl}) {
    EXPECT_FALSE(matcher->accept(token));  // inside of a string
  }
  ASSERT_TRUE(testing::accepts_prefix(*matcher, "\":1}}"));
  EXPECT_EQ(testing::allowed_tokens(*matcher), std::vector<TokenId>({testing::kByteControl}));
}

TEST(ToolCallGrammar, ASchemaThatHasNoFormIsRefusedByName) {
  const std::vector<CallableTool> odd = {
      {"odd", R"({"type":"object","properties":{"a":{"not":{"type":"null"}}}})"}};
  const auto gated =
      gate_structural_tag(tool_call_grammar(json_form(), odd, false, false).text, false, {});
  ASSERT_FALSE(gated);
  EXPECT_EQ(gated.error().message, "unsupported keyword 'not' at #/properties/a");
}

}  // namespace
}  // namespace sluice
