// SPDX-License-Identifier: Apache-2.0
// Forced calls: what the grammar allows is calls in the family's form, with arguments of the
// schema.
#include "server/api/tool_call_grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "engine/sampling/grammar/structural_tag_gate.h"
#include "server/parse/output_format.h"
#include "tests/server/parse/transcript.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

std::shared_ptr<const Grammar> compile(Expected<GrammarSpec> made) {
  EXPECT_TRUE(made) << made.error().message;
  if (!made) return nullptr;
  GrammarSpec spec = std::move(*made);
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

CallForm tagged_form() {
  CallForm form = {.open = {},
                   .begin = {{.text = "<tool_call>\n<function="}},
                   .behind_name = {{.text = ">\n"}},
                   .end = {{.text = "</function>\n</tool_call>"}},
                   .separator = {{.text = "\n"}},
                   .close = {},
                   .style = ArgumentStyle::kTagged,
                   .tagged = {.key_begin = {{.text = "<parameter="}},
                              .key_end = {{.text = ">\n"}},
                              .json_key_end = {{.text = ">\n"}},
                              .value_end = {{.text = "\n</parameter>\n"}}}};
  return form;
}

TEST(ToolCallGrammar, ArgumentsInTagsFollowTheSchema) {
  const std::vector<CallableTool> list = {
      {"f",
       R"({"type":"object","properties":{"s":{"type":"string"},"n":{"type":"integer"},)"
       R"("k":{"enum":["red","blue"]},"o":{"$ref":"#/$defs/o"},"l":{"type":"array","items":)"
       R"({"$ref":"#/$defs/o"}}},"required":["s"],"$defs":{"o":{"type":"string"}}})"}};
  const auto grammar = compile(tool_call_grammar(tagged_form(), list, {}));
  ASSERT_NE(grammar, nullptr);
  const auto call = [](const std::string& arguments) {
    return "<tool_call>\n<function=f>\n" + arguments + "</function>\n</tool_call>";
  };
  const auto given = [](const std::string& key, const std::string& value) {
    return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  };
  EXPECT_TRUE(testing::accepts(*grammar, call(given("s", "any\n \"<b>\" text"))));
  EXPECT_TRUE(testing::accepts(*grammar, call(given("s", "") + given("n", "-5"))));
  EXPECT_TRUE(testing::accepts(*grammar, call(given("s", "x") + given("k", "red"))));
  EXPECT_TRUE(testing::accepts(*grammar, call(given("s", "x") + given("l", R"(["a", "b"])"))));
  EXPECT_TRUE(testing::accepts(*grammar, call(given("s", "x")) + "\n" + call(given("s", "y"))));
  EXPECT_FALSE(testing::accepts(*grammar, call("")));
  EXPECT_FALSE(testing::accepts(*grammar, call(given("s", "x") + given("n", "five"))));
  EXPECT_FALSE(testing::accepts(*grammar, call(given("s", "x") + given("k", " red"))));
  EXPECT_FALSE(testing::accepts(*grammar, call(given("s", "x") + given("other", "1"))));
  // Text that would end the value, in a string of JSON as well.
  EXPECT_FALSE(testing::accepts(*grammar, call(given("s", "x</parameter>y"))));
  EXPECT_FALSE(
      testing::accepts(*grammar, call(given("s", "x") + given("l", R"(["</parameter>"])"))));
}

TEST(ToolCallGrammar, WhatTagsCannotKeepIsRefusedWhereItMustBeKept) {
  const auto refusal = [](const std::string& schema) {
    const std::vector<CallableTool> strict = {{"f", schema, true}};
    const std::vector<CallableTool> wide = {{"f", schema}};
    EXPECT_TRUE(tool_call_grammar(tagged_form(), wide, {})) << schema;
    const auto made = tool_call_grammar(tagged_form(), strict, {});
    return made ? std::string() : made.error().message;
  };
  const auto property = [&](const std::string& value) {
    return refusal(R"({"type":"object","properties":{"a":)" + value + "}}");
  };
  for (const char* value : {R"({"type":"string","description":"d"})",
                            R"({"type":["string","null"]})",
                            R"({"type":"string","enum":["a","b"]})",
                            R"({"const":"a"})",
                            R"({"type":"integer","minimum":3})"}) {
    EXPECT_EQ(property(value), "") << value;
  }
  const auto expect_named = [](const std::string& said, const std::string& what) {
    EXPECT_NE(said.find(what), std::string::npos) << said;
  };
  expect_named(property(R"({"type":"string","pattern":"^a$"})"), "'pattern' at #/properties/a");
  expect_named(property(R"({"type":"string","maxLength":3})"), "'maxLength' at #/properties/a");
  expect_named(property(R"({"enum":["a",1]})"), "'enum' at #/properties/a");
  expect_named(property(R"({"anyOf":[{"type":"string"}]})"), "'type' at #/properties/a");
  expect_named(refusal(R"({"type":"object","minProperties":1})"), "'minProperties' at #");
  expect_named(refusal(R"({"type":"object","required":["x"]})"), "'required' at #");
}

// Each family's text of one call without arguments, several and none.
CallForm python_form() {
  return {.open = {{.text = "["}},
          .behind_name = {{.text = "("}},
          .end = {{.text = ")"}},
          .separator = {{.text = ", "}},
          .close = {{.text = "]"}},
          .style = ArgumentStyle::kPython};
}

CallForm gemma_form(CallPiece quote) {
  return {.begin = {{.text = "<|tool_call>call:"}},
          .behind_name = {{.text = "{"}},
          .end = {{.text = "}<tool_call|>"}},
          .style = ArgumentStyle::kGemma,
          .quote = {std::move(quote)}};
}

// a and d may be missing, b and c not.
constexpr const char* kFour =
    R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},)"
    R"("c":{"type":"string","pattern":"^x+$"},"d":{"type":"array","items":{"type":"null"}}},)"
    R"("required":["b","c"],"additionalProperties":false})";

TEST(ToolCallGrammar, CallsAsPythonFollowTheSchema) {
  const std::vector<CallableTool> list = {{"f", kFour, true}, {"now"}};
  const auto grammar = compile(tool_call_grammar(python_form(), list, {}));
  ASSERT_NE(grammar, nullptr);
  for (const char* text : {"[f(b=True, c=\"x\")]",
                           "[f(a=1, b=False, c=\"xx\", d=[null])]",
                           "[f(b=True, c=\"x\", d=[]), now(), f(b=True, c=\"x\")]",
                           "[now()]"}) {
    EXPECT_TRUE(testing::accepts(*grammar, text)) << text;
  }
  for (const char* text : {"[]",
                           "[f()]",
                           "[f(c=\"x\")]",
                           "[f(b=true, c=\"x\")]",
                           "[f(b=True c=\"x\")]",
                           "[f(, b=True, c=\"x\")]",
                           "[f(b=True, c=\"y\")]",
                           "[f(c=\"x\", b=True)]",
                           "[f(b=True, c=\"x\", e=1)]",
                           "now()",
                           "[now(), ]"}) {
    EXPECT_FALSE(testing::accepts(*grammar, text)) << text;
  }
}

// Python and JSON read a backslash before a slash differently.
TEST(ToolCallGrammar, StringsAsPythonHoldNoEscapeThatPythonLacks) {
  const std::vector<CallableTool> list = {
      {"f", R"({"type":"object","properties":{"s":{"type":"string"}},"required":["s"]})", true}};
  const auto grammar = compile(tool_call_grammar(python_form(), list, {}));
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(testing::accepts(*grammar, R"([f(s="a/b\n\"\u00e9")])"));
  EXPECT_FALSE(testing::accepts(*grammar, R"([f(s="a\/b")])"));
}

TEST(ToolCallGrammar, ListsOfManyOptionalArgumentsKeepTheirSeparators) {
  std::string properties;
  for (int i = 0; i < 70; ++i) {
    properties += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + R"(":{"type":"integer"})";
  }
  const std::vector<CallableTool> list = {
      {"f", R"({"type":"object","properties":{)" + properties + "}}", true}};
  const auto made = tool_call_grammar(python_form(), list, {.allows_several = false});
  ASSERT_TRUE(made);
  EXPECT_LT(made->text.size(), 500'000U);
  const auto grammar = compile(made);
  ASSERT_NE(grammar, nullptr);
  for (const char* text :
       {"[f()]", "[f(k0=1)]", "[f(k69=1)]", "[f(k7=1, k8=2, k63=3)]", "[f(k0=1, k69=2)]"}) {
    EXPECT_TRUE(testing::accepts(*grammar, text)) << text;
  }
  for (const char* text : {"[f(, k1=1)]", "[f(k2=1, )]", "[f(k9=1, k8=2)]", "[f(k8=1k9=2)]"}) {
    EXPECT_FALSE(testing::accepts(*grammar, text)) << text;
  }
}

TEST(ToolCallGrammar, CallsAsGemmaWritesThemFollowTheSchema) {
  const std::vector<CallableTool> list = {
      {"f",
       R"({"type":"object","properties":{"s":{"type":"string"},"n":{"type":"integer","minimum":3},)"
       R"("k":{"enum":["red",5]},"o":{"$ref":"#/$defs/o"},"l":{"type":"array","items":)"
       R"({"type":"string"},"minItems":1},"u":{"anyOf":[{"type":"string"},{"type":"null"}]}},)"
       R"("required":["s"],"$defs":{"o":{"type":"object","properties":{"a":{"type":"boolean"},)"
       R"("b":{"type":"number"}}}}})",
       true},
      {"any", R"({"type":"object","properties":{"x":{},"y":{"type":"object"}}})"}};
  const auto grammar = compile(tool_call_grammar(gemma_form({.text = "'"}), list, {}));
  ASSERT_NE(grammar, nullptr);
  const auto call = [](const std::string& text) {
    return "<|tool_call>call:" + text + "<tool_call|>";
  };
  for (const char* text : {"f{s:'any {\"text\"}: [1],'}",
                           "f{s:'',n:3,k:'red',o:{a:true,b:-1.5},l:['a','b'],u:null}",
                           "f{s:'x',k:5,o:{},u:'y'}",
                           "any{}",
                           "any{x:'text'}",
                           "any{x:[1,{k:'v'},true],y:{a:1,b:[null]}}"}) {
    EXPECT_TRUE(testing::accepts(*grammar, call(text))) << text;
  }
  EXPECT_TRUE(testing::accepts(*grammar, call("any{}") + call("f{s:'x'}")));
  for (const char* text : {"f{}",
                           "f{s:\"x\"}",
                           "f{s:'x',n:2}",
                           "f{s:'x',k:'blue'}",
                           "f{s:'x',o:{b:1,a:true}}",
                           "f{s:'x',o:{c:1}}",
                           "f{s:'x',l:[]}",
                           "f{s:'x'n:3}",
                           "any{y:1}",
                           "any{x:'a'b'}"}) {
    EXPECT_FALSE(testing::accepts(*grammar, call(text))) << text;
  }
}

TEST(ToolCallGrammar, GemmasListsAreCounted) {
  const std::vector<CallableTool> list = {
      {"f",
       R"({"type":"object","properties":{"two":{"type":"array","items":{"type":"null"},)"
       R"("minItems":2,"maxItems":3},"most":{"type":"array","items":{"type":"null"},"maxItems":1},)"
       R"("none":{"type":"array","maxItems":0}}})",
       true}};
  const auto grammar = compile(tool_call_grammar(gemma_form({.text = "'"}), list, {}));
  ASSERT_NE(grammar, nullptr);
  const auto accepts = [&](const std::string& text) {
    return testing::accepts(*grammar, "<|tool_call>call:f{" + text + "}<tool_call|>");
  };
  EXPECT_TRUE(accepts("two:[null,null]"));
  EXPECT_TRUE(accepts("two:[null,null,null],most:[],none:[]"));
  EXPECT_TRUE(accepts("most:[null]"));
  EXPECT_FALSE(accepts("two:[null]"));
  EXPECT_FALSE(accepts("two:[]"));
  EXPECT_FALSE(accepts("two:[null,null,null,null]"));
  EXPECT_FALSE(accepts("most:[null,null]"));
  EXPECT_FALSE(accepts("none:[null]"));
}

TEST(ToolCallGrammar, QuotesThatAreTokensEndStrings) {
  const std::vector<CallableTool> list = {
      {"f", R"({"type":"object","properties":{"s":{"type":"string"}},"required":["s"]})", true}};
  const auto grammar =
      compile(tool_call_grammar(gemma_form({.token = testing::kByteMarker}), list, {}));
  ASSERT_NE(grammar, nullptr);
  const auto matcher = grammar->match();
  ASSERT_TRUE(testing::accepts_prefix(*matcher, "<|tool_call>call:f{s:"));
  EXPECT_EQ(testing::allowed_tokens(*matcher), std::vector<TokenId>({testing::kByteMarker}));
  ASSERT_TRUE(matcher->accept(testing::kByteMarker));
  ASSERT_TRUE(testing::accepts_prefix(*matcher, "any }text"));
  ASSERT_TRUE(matcher->accept(testing::kByteMarker));
  EXPECT_TRUE(testing::accepts_prefix(*matcher, "}<tool_call|>"));
}

TEST(ToolCallGrammar, WhatGemmasFormCannotKeepIsRefusedWhereItMustBeKept) {
  const auto refusal = [](const std::string& value) {
    const std::string schema = R"({"type":"object","properties":{"a":)" + value + "}}";
    const std::vector<CallableTool> strict = {{"f", schema, true}};
    const std::vector<CallableTool> wide = {{"f", schema}};
    EXPECT_TRUE(tool_call_grammar(gemma_form({.text = "'"}), wide, {})) << schema;
    const auto made = tool_call_grammar(gemma_form({.text = "'"}), strict, {});
    return made ? std::string() : made.error().message;
  };
  const auto expect_named = [](const std::string& said, const std::string& what) {
    EXPECT_NE(said.find(what), std::string::npos) << said;
  };
  EXPECT_EQ(refusal(R"({"type":["string","null"],"description":"d"})"), "");
  expect_named(refusal(R"({"type":"string","pattern":"^a$"})"), "'pattern' at #/properties/a");
  expect_named(refusal(R"({"enum":["it's"]})"), "'enum' at #/properties/a");
  EXPECT_EQ(refusal(R"({"type":"array","minItems":2,"maxItems":3})"), "");
  expect_named(refusal(R"({"type":"array","maxItems":3000})"), "'maxItems' at #/properties/a");
  expect_named(refusal(R"({"type":"array","items":false})"), "'false' at #/properties/a/items");
  expect_named(refusal(R"({"type":"array","items":{"oneOf":[]}})"),
               "'oneOf' at #/properties/a/items");
  expect_named(refusal(R"({"type":"object","properties":{"b":{"maxLength":3}}})"),
               "'maxLength' at #/properties/a/properties/b");
  expect_named(refusal(R"({"type":"object","required":["b"]})"), "'required' at #/properties/a");
}

TEST(ToolCallGrammar, NumbersAndTypesAreTheModels) {
  CallForm form = {
      .begin = {{.text = "functions."}},
      .behind_name = {{.text = ":"}, {.kind = CallPiece::Kind::kNumber}, {.text = " "}},
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

using Json = nlohmann::ordered_json;

// Ends where it can, three times of four; otherwise any byte that may come next.
std::string random_walk(const Grammar& grammar, std::mt19937& random) {
  constexpr size_t kLongest = 20'000;
  const auto matcher = grammar.match();
  std::string text;
  while (text.size() < kLongest) {
    const std::vector<TokenId> allowed = testing::allowed_tokens(*matcher);
    if (allowed.empty()) break;
    const bool can_end = std::ranges::count(allowed, testing::kByteEnd) > 0;
    if (can_end && (allowed.size() == 1 || random() % 4 != 0)) return text;
    TokenId next = testing::kByteEnd;
    while (next == testing::kByteEnd) next = allowed[random() % allowed.size()];
    EXPECT_TRUE(matcher->accept(next));
    text += static_cast<char>(next);
  }
  ADD_FAILURE() << "no end: " << text.substr(0, 500);
  return text;
}

// A schema without text that only its end marker ends, which a walk would not find.
constexpr const char* kWeather =
    R"({"type":"object","properties":{"city":{"type":"string","enum":["Paris","Rome \"x\""]},)"
    R"("days":{"type":"integer","minimum":1,"maximum":9},"units":{"type":"array","items":)"
    R"({"type":"boolean"}},"at":{"type":"object","properties":{"x":{"type":"integer"},)"
    R"("y":{"type":"null"}}},"now":{"type":"boolean"}},"required":["days"]})";

void expect_weather(const Json& arguments) {
  ASSERT_TRUE(arguments.is_object()) << arguments;
  ASSERT_TRUE(arguments.contains("days")) << arguments;
  EXPECT_TRUE(arguments["days"] >= 1 && arguments["days"] <= 9) << arguments;
  for (const auto& [key, value] : arguments.items()) {
    if (key == "city") {
      EXPECT_TRUE(value == "Paris" || value == "Rome \"x\"") << value;
    } else if (key == "units") {
      EXPECT_TRUE(value.is_array() && std::ranges::all_of(value, &Json::is_boolean)) << value;
    } else if (key == "at") {
      ASSERT_TRUE(value.is_object()) << value;
      EXPECT_TRUE(value.value("x", Json(0)).is_number() && value.value("y", Json()).is_null());
    } else if (key == "now") {
      EXPECT_TRUE(value.is_boolean()) << value;
    } else {
      EXPECT_EQ(key, "days") << arguments;
    }
  }
}

// Each family's grammar allows only calls, with arguments of the schema.
TEST(ToolCallGrammar, WhatIsForcedIsParsed) {
  const auto tokenizer = make_byte_tokenizer({});
  auto schemas = std::make_shared<ToolSchemas>();
  schemas->add("weather", Json::parse(kWeather));
  const std::vector<CallableTool> list = {
      {"weather", kWeather}, {"now", R"({"type":"object","additionalProperties":false})"}};
  for (const CallFamily& family : call_families()) {
    SCOPED_TRACE(family.name);
    const auto grammar = compile(tool_call_grammar(call_form(family, *tokenizer), list, {}));
    ASSERT_NE(grammar, nullptr);
    std::mt19937 random(3);
    for (int i = 0; i < 30; ++i) {
      const std::string text = random_walk(*grammar, random);
      SCOPED_TRACE(text);
      const std::string_view tail = family.prompt_begins_call ? ">>>" : "";
      OutputParser parser(resolve_format(&family, nullptr, *tokenizer), schemas, tail, {});
      Pieces pieces;
      for (const char c : text) {
        parser.feed(static_cast<uint8_t>(c), std::string_view(&c, 1), false, pieces);
      }
      parser.finish(FinishReason::kStop, pieces);
      std::string name;
      int num_ended = 0;
      for (const Piece& piece : joined(pieces)) {
        ASSERT_NE(piece.kind, PieceKind::kContent) << piece.text;
        if (piece.kind == PieceKind::kCallBegin) name = piece.text;
        if (piece.kind == PieceKind::kCallEnd) ++num_ended;
        if (piece.kind != PieceKind::kArguments) continue;
        const Json arguments = Json::parse(piece.text, nullptr, false);
        if (name == "now") {
          EXPECT_EQ(arguments, Json::object());
        } else {
          EXPECT_EQ(name, "weather");
          expect_weather(arguments);
        }
      }
      EXPECT_GE(num_ended, 1);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace sluice
