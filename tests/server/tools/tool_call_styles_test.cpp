// SPDX-License-Identifier: Apache-2.0
// Arguments that are no JSON: in tags, as Python, as Gemma writes them.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/tools/tool_call_grammar.h"
#include "tests/server/tools/tool_call_rig.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

using testing::compile;

CallForm tagged_form() {
  CallForm form = {.open = {},
                   .begin = {{.text = "<tool_call>\n<function="}},
                   .after_name = {{.text = ">\n"}},
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
          .after_name = {{.text = "("}},
          .end = {{.text = ")"}},
          .separator = {{.text = ", "}},
          .close = {{.text = "]"}},
          .style = ArgumentStyle::kPython};
}

CallForm gemma_form(CallPiece quote) {
  return {.begin = {{.text = "<|tool_call>call:"}},
          .after_name = {{.text = "{"}},
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

}  // namespace
}  // namespace sluice
