// SPDX-License-Identifier: Apache-2.0
// Forced calls: what the grammar allows is calls in the family's form, with arguments of the
// schema.
#include "server/tools/tool_call_grammar.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "server/tools/families.h"
#include "server/tools/output_format.h"
#include "tests/server/tools/tool_call_rig.h"
#include "tests/server/tools/transcript.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

using testing::compile;

const CallForm& json_form() {
  static const CallForm form = {.open = {},
                                .begin = {{.text = "<tool_call>\n{\"name\": \""}},
                                .after_name = {{.text = "\", \"arguments\": "}},
                                .end = {{.text = "}\n</tool_call>"}},
                                .separator = {{.text = "\n"}},
                                .close = {}};
  return form;
}

const std::vector<CallableTool>& tools() {
  static const std::vector<CallableTool> list = {
      {"add", R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})", true},
      {"now"}};
  return list;
}

TEST(ToolCallGrammar, OneCallOrSeveral) {
  const std::string add =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n</tool_call>";
  const std::string now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  const auto several = compile(tool_call_grammar(json_form(), tools(), {}));
  ASSERT_NE(several, nullptr);
  EXPECT_TRUE(testing::accepts(*several, add));
  EXPECT_TRUE(testing::accepts(*several, add + "\n" + now + "\n" + add));
  EXPECT_FALSE(testing::accepts(*several, add + now));
  EXPECT_FALSE(testing::accepts(*several, ""));
  EXPECT_FALSE(testing::accepts(*several, "text " + add));
  const auto one = compile(tool_call_grammar(json_form(), tools(), {.allows_several = false}));
  ASSERT_NE(one, nullptr);
  EXPECT_TRUE(testing::accepts(*one, now));
  EXPECT_FALSE(testing::accepts(*one, add + "\n" + now));
  const auto named = compile(
      tool_call_grammar(json_form(), std::span(tools()).first(1), {.allows_several = false}));
  ASSERT_NE(named, nullptr);
  EXPECT_TRUE(testing::accepts(*named, add));
  EXPECT_FALSE(testing::accepts(*named, now));
}

// What announces a call binds it, wherever it stands; text without it is free.
TEST(ToolCallGrammar, TextMayStandAroundCalls) {
  const std::string add =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n</tool_call>";
  const std::string wrong =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":\"1\"}}\n</tool_call>";
  const std::string now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  for (const bool has_section : {false, true}) {
    CallForm form = json_form();
    std::string open;
    std::string close;
    if (has_section) {
      form.open = {{.text = "<calls>"}};
      form.close = {{.text = "</calls>"}};
      form.other_markers = {"<tool_call>"};
      open = "<calls>";
      close = "</calls>";
    }
    form.marker = {.text = has_section ? "<calls>" : "<tool_call>"};
    CallRules rules = {.beside = BesideCalls::kText};
    const auto several = compile(tool_call_grammar(form, tools(), rules));
    ASSERT_NE(several, nullptr);
    const std::string one = open + add + close;
    const std::string two = has_section ? open + add + "\n" + now + close : add + "\n" + now;
    for (const std::string& text : {std::string(),
                                    std::string("Some text, <b>not</b> a {call}."),
                                    one,
                                    "Well. " + one,
                                    two,
                                    one + " and " + two + " now"}) {
      EXPECT_TRUE(testing::accepts(*several, text)) << text;
    }
    for (const std::string& text : {open + wrong + close,
                                    "Well. " + open + wrong + close,
                                    one + open + wrong,
                                    form.marker.text,
                                    "x " + form.marker.text + " y"}) {
      EXPECT_FALSE(testing::accepts(*several, text)) << text;
    }
    EXPECT_EQ(testing::accepts(*several, "x " + add), !has_section);
    rules.allows_several = false;
    const auto single = compile(tool_call_grammar(form, tools(), rules));
    ASSERT_NE(single, nullptr);
    EXPECT_TRUE(testing::accepts(*single, "Well. " + one));
    EXPECT_TRUE(testing::accepts(*single, "Well."));
    EXPECT_FALSE(testing::accepts(*single, two));
    EXPECT_FALSE(testing::accepts(*single, one + one));
  }
}

TEST(ToolCallGrammar, AnswersMayBeOfAFormatInPlaceOfCalls) {
  CallRules rules = {.beside = BesideCalls::kFormat};
  rules.format.kind = GrammarKind::kJsonSchema;
  rules.format.text = R"({"type":"object","properties":{"x":{"type":"boolean"}},"required":["x"]})";
  const auto grammar = compile(tool_call_grammar(json_form(), tools(), rules));
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(testing::accepts(*grammar, R"({"x": true})"));
  EXPECT_TRUE(testing::accepts(
      *grammar, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(testing::accepts(*grammar, R"({"x": 1})"));
  EXPECT_FALSE(testing::accepts(*grammar, "text"));
}

TEST(ToolCallGrammar, ArgumentsFollowTheSchema) {
  const auto grammar = compile(tool_call_grammar(json_form(), tools(), {.allows_several = false}));
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
  const auto made = tool_call_grammar(form, tools(), {});
  ASSERT_TRUE(made);
  const GrammarSpec& spec = *made;
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

// A grammar allows such a token where it may end, and nowhere else.
TEST(ToolCallGrammar, NoTokenThatEndsAnAnswerIsPartOfAForm) {
  for (const std::string_view name : {"<|calls|>", "<|call|>", "<|return|>"}) {
    const auto tokenizer = make_byte_tokenizer({&name, 1});
    ASSERT_EQ(tokenizer->end_tokens(), std::vector<TokenId>({testing::kByteEnd}));
    for (const CallFamily& family : call_families()) {
      const CallForm form = call_form(family, *tokenizer);
      for (const CallPieces& pieces : {form.open, form.begin, form.end, form.close}) {
        for (const CallPiece& piece : pieces) {
          EXPECT_NE(piece.token, testing::kByteEnd) << family.name << " " << name;
        }
      }
    }
  }
  // The token of the backend that ends answers has the id of <|calls|> here.
  constexpr std::string_view kCalls = "<|calls|>";
  const auto tokenizer = make_byte_tokenizer({&kCalls, 1});
  const auto grammar = compile(
      tool_call_grammar(call_form(*find_call_family("solar_open"), *tokenizer), tools(), {}));
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(testing::accepts(*grammar,
                               "<|tool_calls|><|tool_call:begin|>call1<|tool_call:name|>now"
                               "<|tool_call:args|>{}<|tool_call:end|>"));
}

// A schema is kept exactly where the tool asks for it; otherwise what has no form is left out.
TEST(ToolCallGrammar, ASchemaThatHasNoFormIsRefusedByNameOrWidened) {
  const std::string schema = R"({"type":"object","properties":{"a":{"not":{"type":"null"}}}})";
  const std::vector<CallableTool> odd = {{"strict", schema, true}, {"free", schema}};
  const auto gated_with = [&](size_t first, size_t count) {
    const auto tools = std::span(odd).subspan(first, count);
    return gate_structural_tag(tool_call_grammar(json_form(), tools, {})->text, false, {});
  };
  for (const size_t count : {1, 2}) {
    const auto gated = gated_with(0, count);
    ASSERT_FALSE(gated);
    EXPECT_EQ(gated.error().message,
              "unsupported keyword 'not' at #/properties/a of tool 'strict'");
  }
  EXPECT_TRUE(gated_with(1, 1));
}

TEST(ToolCallGrammar, ReasoningMayStandBeforeCalls) {
  const std::string call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  const ReasoningForm text = {
      .begin = {{.text = "<think>"}}, .end = {{.text = "</think>"}}, .newlines = "\n\n"};
  const auto grammar =
      compile(tool_call_grammar(json_form(), tools(), {.before = {.reasoning = text}}));
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(testing::accepts(*grammar, call));
  EXPECT_TRUE(testing::accepts(*grammar, "<think>\nSo < be it.\n</think>\n\n" + call));
  EXPECT_TRUE(testing::accepts(*grammar, "<think></think>" + call));
  EXPECT_FALSE(testing::accepts(*grammar, "<think>\nSo be it."));
  EXPECT_FALSE(testing::accepts(*grammar, "<think>a</think>b" + call));
  // The prompt has begun it.
  const BeforeAnswer inside = {.reasoning = text, .in_reasoning = true};
  const auto begun = compile(tool_call_grammar(json_form(), tools(), {.before = inside}));
  ASSERT_NE(begun, nullptr);
  EXPECT_TRUE(testing::accepts(*begun, "So.\n</think>\n\n" + call));
  EXPECT_FALSE(testing::accepts(*begun, call));
  GrammarSpec object;
  object.kind = GrammarKind::kAnyObject;
  const auto format = compile(format_grammar(object, inside));
  ASSERT_NE(format, nullptr);
  EXPECT_TRUE(testing::accepts(*format, "So {\n</think>\n\n{\"a\": 1}"));
  EXPECT_FALSE(testing::accepts(*format, "{\"a\": 1}"));
  // Markers that are tokens.
  const ReasoningForm token = {.begin = {{.token = testing::kByteControl}},
                               .end = {{.token = testing::kByteMarker}}};
  const auto with_tokens =
      compile(tool_call_grammar(json_form(), tools(), {.before = {.reasoning = token}}));
  ASSERT_NE(with_tokens, nullptr);
  const auto matcher = with_tokens->match();
  ASSERT_TRUE(matcher->accept(testing::kByteControl));
  ASSERT_TRUE(testing::accepts_prefix(*matcher, "So <tool_call>"));
  ASSERT_TRUE(matcher->accept(testing::kByteMarker));
  EXPECT_FALSE(matcher->accept('S'));
  EXPECT_TRUE(testing::accepts_prefix(*matcher, call));
  EXPECT_TRUE(matcher->accept(testing::kByteEnd));
}

TEST(ToolCallGrammar, NumbersAndTypesAreTheModels) {
  CallForm form = {
      .begin = {{.text = "functions."}},
      .after_name = {{.text = ":"}, {.kind = CallPiece::Kind::kNumber}, {.text = " "}},
      .style = ArgumentStyle::kTagged,
      .tagged = {
          .key_begin = {{.text = "<"}},
          .key_end = {{.text = " string>"}},
          .json_key_end = {{.text = " "}, {.kind = CallPiece::Kind::kJsonType}, {.text = ">"}},
          .value_end = {{.text = "</>"}}}};
  const std::vector<CallableTool> list = {
      {"f",
       R"({"type":"object","properties":{"s":{"type":"string"},"n":{"type":["integer","null"]}}})",
       true}};
  const auto grammar = compile(tool_call_grammar(form, list, {}));
  ASSERT_NE(grammar, nullptr);
  for (const char* text : {"functions.f:0 ",
                           "functions.f:12 <s string>a b</>",
                           "functions.f:0 <n integer>3</>functions.f:1 <n null>null</>"}) {
    EXPECT_TRUE(testing::accepts(*grammar, text)) << text;
  }
  for (const char* text : {"functions.f: ",
                           "functions.f:01 ",
                           "functions.f:0 <n string>3</>",
                           "functions.f:0 <n number>3</>"}) {
    EXPECT_FALSE(testing::accepts(*grammar, text)) << text;
  }
  form.is_single = true;
  const auto single = compile(tool_call_grammar(form, list, {}));
  ASSERT_NE(single, nullptr);
  EXPECT_TRUE(testing::accepts(*single, "functions.f:0 "));
  EXPECT_FALSE(testing::accepts(*single, "functions.f:0 functions.f:1 "));
}

// Answers that models mark as such are marked where they stand for calls as well.
TEST(ToolCallGrammar, AnswersOfAFormatHaveTheirMarks) {
  const BeforeAnswer before = {.reasoning = ReasoningForm{.begin = {{.text = "<analysis>"}},
                                                          .end = {{.text = "<end>"}},
                                                          .answer_begin = {{.text = "<final>"}},
                                                          .answer_end = {{.text = "</final>"}}}};
  GrammarSpec object;
  object.kind = GrammarKind::kAnyObject;
  CallRules rules = {.beside = BesideCalls::kFormat, .format = object, .before = before};
  for (const auto& grammar : {compile(format_grammar(object, before)),
                              compile(tool_call_grammar(json_form(), tools(), rules))}) {
    ASSERT_NE(grammar, nullptr);
    EXPECT_TRUE(testing::accepts(*grammar, "<final>{\"a\": 1}</final>"));
    EXPECT_TRUE(testing::accepts(*grammar, "<analysis>Hm.<end><final>{}</final>"));
    EXPECT_FALSE(testing::accepts(*grammar, "{}"));
  }
}

}  // namespace
}  // namespace sluice
