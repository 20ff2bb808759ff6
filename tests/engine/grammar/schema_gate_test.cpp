// SPDX-License-Identifier: Apache-2.0
// What the gate lets through means what the schema says: the JSON Schema Test Suite, by bytes.
#include "engine/sampling/grammar/schema_gate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/sampling/grammar/left_out_keywords.h"
#include "engine/sampling/grammar/schema_forms.h"
#include "tests/support/byte_grammar.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Expected<std::shared_ptr<const Grammar>> compile(const std::string& schema,
                                                 bool is_best_effort = false) {
  static const std::unique_ptr<GrammarBackend> backend =
      testing::byte_backend({.max_whitespace = 2});
  GrammarSpec spec;
  spec.kind = GrammarKind::kJsonSchema;
  SLUICE_TRY(spec.text, gate_schema(schema, is_best_effort, {}));
  return backend->compile(spec);
}

// Whether the grammar of a schema allows the text; a refusal is "refused".
std::string verdict(const std::string& schema, const std::string& text) {
  const auto grammar = compile(schema);
  if (!grammar) return "refused";
  return testing::accepts(**grammar, text) ? "yes" : "no";
}

std::string refusal(const std::string& schema, const SchemaLimits& limits = {}) {
  const auto gated = gate_schema(schema, false, limits);
  return gated ? "not refused: " + *gated : gated.error().message;
}

TEST(SchemaGate, NeverWider) {
  std::ifstream file(golden_folder() + "/schemas/draft2020-12.json");
  const Json groups = Json::parse(file);
  ASSERT_EQ(groups.size(), 368U);
  int num_tests = 0;
  int num_wider = 0;
  int num_narrower = 0;
  int num_refused = 0;
  int num_exact_groups = 0;
  int num_taken_groups = 0;
  std::map<std::string, int> reasons;
  for (const Json& group : groups) {
    const auto grammar = compile(group["schema"].dump());
    const std::string name =
        group["file"].get<std::string>() + ": " + group["description"].get<std::string>();
    const bool has_valid =
        std::ranges::any_of(group["tests"], [](const Json& test) { return test["valid"] == true; });
    num_tests += static_cast<int>(group["tests"].size());
    if (!grammar) {
      ++reasons[grammar.error().message.substr(0, grammar.error().message.find(" at #"))];
      // That nothing is valid is the right answer where nothing is.
      const bool is_empty = grammar.error().message == "no value is valid in the schema";
      if (is_empty && !has_valid) {
        ++num_exact_groups;
        ++num_taken_groups;
      } else {
        num_refused += static_cast<int>(group["tests"].size());
      }
      continue;
    }
    ++num_taken_groups;
    bool is_exact = true;
    for (const Json& test : group["tests"]) {
      const bool accepted = testing::accepts(**grammar, test["data"].dump());
      if (accepted && test["valid"] == false) {
        ++num_wider;
        ADD_FAILURE() << name << " accepts " << test["data"].dump() << " with "
                      << *gate_schema(group["schema"].dump(), false, {});
      }
      if (!accepted && test["valid"] == true) {
        ++num_narrower;
        is_exact = false;
      }
    }
    num_exact_groups += is_exact ? 1 : 0;
  }
  std::cout << num_tests << " cases in " << groups.size() << " schemas: " << num_wider << " wider; "
            << num_refused << " cases in refused schemas; " << num_narrower
            << " valid and not generated; schemas taken " << num_taken_groups << ", exact "
            << num_exact_groups << "\n";
  for (const auto& [reason, count] : reasons) std::cout << "  " << count << " x " << reason << "\n";
  EXPECT_EQ(num_wider, 0);
  // What is taken and exact today; a change that takes less is a step back.
  EXPECT_GE(num_taken_groups, 200);
  EXPECT_GE(num_exact_groups, 120);
}

TEST(SchemaGate, NamesKeywordAndPlace) {
  EXPECT_EQ(refusal(R"({"properties":{"tags":{"type":"array","uniqueItems":true}}})"),
            "unsupported keyword 'uniqueItems' at #/properties/tags");
  EXPECT_EQ(refusal(R"({"properties":{"a/b":{"not":{"type":"string"}}}})"),
            "unsupported keyword 'not' at #/properties/a~1b");
  EXPECT_EQ(refusal(R"({"$defs":{"x":{"type":"number","multipleOf":0.3}},"$ref":"#/$defs/x"})"),
            "unsupported keyword 'multipleOf' at #/$defs/x");
}

TEST(SchemaGate, BestEffortLeavesOutWhatHasNoForm) {
  const auto grammar =
      compile(R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})", true);
  ASSERT_TRUE(grammar) << grammar.error().message;
  EXPECT_TRUE(testing::accepts(**grammar, "[1,1]"));
  EXPECT_FALSE(testing::accepts(**grammar, "[\"1\"]"));
}

TEST(SchemaGate, WhatIsLeftOutIsTold) {
  GrammarSpec spec;
  spec.kind = GrammarKind::kJsonSchema;
  spec.is_best_effort = true;
  spec.text = R"({"type":"object","not":{"required":["z"]},"properties":{"a/b":{"not":)"
              R"({"type":"null"}},"c":{"type":"array","uniqueItems":true}}})";
  std::vector<std::string> told = left_out_keywords(spec);
  std::ranges::sort(told);
  EXPECT_EQ(told,
            (std::vector<std::string>{"not", "properties.a~1b.not", "properties.c.uniqueItems"}));
  GrammarSpec tag;
  tag.kind = GrammarKind::kStructuralTag;
  tag.text = R"({"format":{"type":"json_schema","is_best_effort":true,"json_schema":)" + spec.text +
             "}}";
  told = left_out_keywords(tag);
  EXPECT_EQ(told.size(), 3U);
  // Strict schemas leave nothing out, nor do those that are refused.
  spec.is_best_effort = false;
  EXPECT_TRUE(left_out_keywords(spec).empty());
  spec.is_best_effort = true;
  for (const char* text : {"{", "[]", R"({"$ref":"#"})", R"({"type":"string","maxLength":3})"}) {
    spec.text = text;
    EXPECT_TRUE(left_out_keywords(spec).empty()) << text;
  }
}

// The memory of this program, in bytes.
int64_t resident_bytes() {
  int64_t all = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(SchemaGate, ALongNameIsNotRepeatedForEachValueInside) {
  constexpr int kProperties = 4000;
  Json inner = Json::object();
  for (int i = 0; i < kProperties; ++i) inner["p" + std::to_string(i)] = Json::object();
  const std::string name(100'000, 'n');
  const Json schema = {{"properties", {{name, {{"properties", std::move(inner)}}}}}};
  const SchemaJson root = SchemaJson::parse(schema.dump());
  const int64_t before = resident_bytes();
  const SchemaReader reader(root, /*is_best_effort=*/true, {});
  EXPECT_FALSE(reader.error().has_value());
  EXPECT_LT(resident_bytes() - before, 100 << 20);
  EXPECT_EQ(reader.place(&root["properties"][name]["properties"]["p7"]),
            "#/properties/" + name + "/properties/p7");
}

// A structural tag has as many schemas as find room in it, each with keywords of its own.
TEST(SchemaGate, EachKeywordOfManySchemasIsToldOnce) {
  constexpr int kSchemas = 1000;
  Json formats = Json::array();
  for (int i = 0; i < kSchemas; ++i) {
    const std::string name = "p" + std::to_string(i % (kSchemas - 10));
    formats.push_back({{"type", "json_schema"},
                       {"json_schema", {{"properties", {{name, {{"not", {{"type", "null"}}}}}}}}}});
  }
  GrammarSpec spec;
  spec.kind = GrammarKind::kStructuralTag;
  spec.is_best_effort = true;
  spec.text = Json({{"format", {{"type", "or"}, {"elements", std::move(formats)}}}}).dump();
  const std::vector<std::string> told = left_out_keywords(spec);
  ASSERT_EQ(told.size(), static_cast<size_t>(kSchemas - 10));
  EXPECT_EQ(told.front(), "properties.p0.not");
  EXPECT_EQ(told.back(), "properties.p" + std::to_string(kSchemas - 11) + ".not");
}

TEST(SchemaGate, NamesOfPropertiesAreBound) {
  const std::string values = R"("type":"object","additionalProperties":{"type":"integer"},)";
  // Pydantic writes dict[Enum, int] like this.
  const std::string listed = R"({"$defs":{"C":{"enum":["red","green"],"type":"string"}},)" +
                             values + R"("propertyNames":{"$ref":"#/$defs/C"}})";
  const std::string constant = "{" + values + R"("propertyNames":{"const":"red"}})";
  for (const std::string& schema : {listed, constant}) {
    EXPECT_EQ(verdict(schema, R"({"red":1})"), "yes") << schema;
    EXPECT_EQ(verdict(schema, "{}"), "yes");
    EXPECT_EQ(verdict(schema, R"({"blue":1})"), "no");
    EXPECT_EQ(verdict(schema, R"({"red":"1"})"), "no");
  }
  EXPECT_EQ(verdict(listed, R"({"red":1,"green":2})"), "yes");
  const std::string two = "{" + values + R"("minProperties":2,"propertyNames":{"enum":["a","b"]}})";
  EXPECT_EQ(verdict(two, R"({"a":1,"b":2})"), "yes");
  EXPECT_EQ(verdict(two, R"({"a":1})"), "no");
  for (const char* const names : {R"({"pattern":"^[a-z]{2,4}$"})",
                                  R"({"type":"string","pattern":"^[a-z]{2,4}$"})",
                                  R"({"allOf":[{"type":"string"},{"pattern":"^[a-z]{2,4}$"}]})"}) {
    const std::string schema = "{" + values + R"("propertyNames":)" + names + "}";
    EXPECT_EQ(verdict(schema, R"({"ab":1,"abcd":2})"), "yes") << schema;
    EXPECT_EQ(verdict(schema, R"({"a":1})"), "no");
    EXPECT_EQ(verdict(schema, R"({"AB":1})"), "no");
    EXPECT_EQ(verdict(schema, R"({"ab":"1"})"), "no");
  }
  const std::string sized =
      "{" + values + R"("propertyNames":{"type":"string","minLength":2,"maxLength":3}})";
  EXPECT_EQ(verdict(sized, R"({"ab":1,"é!c":2})"), "yes");
  EXPECT_EQ(verdict(sized, R"({"a":1})"), "no");
  EXPECT_EQ(verdict(sized, R"({"abcd":1})"), "no");
  for (const char* const any : {"true", "{}", R"({"type":"string"})", R"({"minLength":0})"}) {
    const std::string schema = "{" + values + R"("propertyNames":)" + any + "}";
    EXPECT_EQ(verdict(schema, R"({"any name":1,"":2})"), "yes") << schema;
    EXPECT_EQ(verdict(schema, R"({"a":"1"})"), "no");
  }
  // No name is a number.
  EXPECT_EQ(verdict("{" + values + R"("propertyNames":{"type":"integer"}})", R"({"1":1})"), "no");
}

TEST(SchemaGate, NamesWithoutAnExactFormAreLeftOutOrRefused) {
  for (const char* const names : {R"({"anyOf":[{"const":"id"},{"pattern":"^x-"}]})",
                                  R"({"pattern":"^(?=a)b"})",
                                  R"({"anyOf":[{"pattern":"^x"},{"pattern":"^y"}]})"}) {
    const std::string schema = std::string(R"({"type":"object","propertyNames":)") + names +
                               R"(,"additionalProperties":{"type":"integer"}})";
    EXPECT_EQ(refusal(schema).substr(0, 19), "unsupported keyword") << schema;
    const auto grammar = compile(schema, true);
    ASSERT_TRUE(grammar) << grammar.error().message;
    EXPECT_TRUE(testing::accepts(**grammar, R"({"x-a":1})")) << schema;
    EXPECT_FALSE(testing::accepts(**grammar, R"({"x-a":"1"})"));
  }
}

TEST(SchemaGate, SiblingsHoldTogether) {
  EXPECT_EQ(verdict(R"({"enum":[1,"a",null,7],"type":"integer","minimum":2})", "7"), "yes");
  EXPECT_EQ(verdict(R"({"enum":[1,"a",null,7],"type":"integer","minimum":2})", "1"), "no");
  const std::string all = R"({"allOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},
      {"properties":{"a":{"minimum":3},"b":{"type":"string"}}}],"type":"object"})";
  EXPECT_EQ(verdict(all, R"({"a":3,"b":"x"})"), "yes");
  EXPECT_EQ(verdict(all, R"({"a":2,"b":"x"})"), "no");
  EXPECT_EQ(verdict(all, R"({"b":"x"})"), "no");
  const std::string beside = R"({"$defs":{"n":{"type":"integer"}},"$ref":"#/$defs/n","maximum":5})";
  EXPECT_EQ(verdict(beside, "5"), "yes");
  EXPECT_EQ(verdict(beside, "6"), "no");
  EXPECT_EQ(
      verdict(R"({"type":["integer","string"],"anyOf":[{"minimum":4},{"type":"null"}]})", "3"),
      "no");
}

TEST(SchemaGate, PatternIsASearch) {
  const std::string search = R"({"type":"string","pattern":"b+"})";
  EXPECT_EQ(verdict(search, R"("abc")"), "yes");
  EXPECT_EQ(verdict(search, R"("ac")"), "no");
  const std::string anchored = R"({"type":"string","pattern":"^[a-z]{2}-\\d+$"})";
  EXPECT_EQ(verdict(anchored, R"("ab-12")"), "yes");
  EXPECT_EQ(verdict(anchored, R"("xab-12")"), "no");
  EXPECT_EQ(verdict(anchored, R"("ab-12x")"), "no");
  // Each alternative has anchors of its own.
  const std::string choice = R"({"type":"string","pattern":"^a|b$"})";
  EXPECT_EQ(verdict(choice, R"("axx")"), "yes");
  EXPECT_EQ(verdict(choice, R"("xxb")"), "yes");
  EXPECT_EQ(verdict(choice, R"("xax")"), "no");
  for (const char* pattern :
       {"(?=a)b", "a^b", "a$b", "\\\\bword", "(a)\\\\1", "\\\\p{L}", "(?<!a)b"}) {
    const std::string schema = std::string(R"({"type":"string","pattern":")") + pattern + R"("})";
    EXPECT_EQ(refusal(schema), "unsupported keyword 'pattern' at #") << pattern;
  }
}

// What is optional and ends in a loop is all there, or not at all.
TEST(SchemaGate, OptionalLoopsHaveABeginning) {
  const auto matches = [](const std::string& pattern, const std::string& text) {
    return verdict(R"({"type":"string","pattern":")" + pattern + R"("})", '"' + text + '"');
  };
  for (const char* pattern : {"^x(:a+)?$", "^x(:(a|aa)+){0,1}$", "^x(:a*)?$", "^x(?:|:a+)$"}) {
    EXPECT_EQ(matches(pattern, "x"), "yes") << pattern;
    EXPECT_EQ(matches(pattern, "x:aa"), "yes") << pattern;
    EXPECT_EQ(matches(pattern, "xa"), "no") << pattern;
    EXPECT_EQ(matches(pattern, "xaa"), "no") << pattern;
    EXPECT_EQ(matches(pattern, "x:aa:a"), "no") << pattern;
  }
  EXPECT_EQ(matches("^[^:]+:[^:]+(:[^ ]+)?$", "a:b:"), "no");
  EXPECT_EQ(matches("^[^:]+:[^:]+(:[^ ]+)?$", "a:b:c"), "yes");
  EXPECT_EQ(matches("^[a-z]{2}(-x(-[a-z0-9]{1,8})+)?(-[0-9]+)?$", "en-x-ab-1"), "yes");
  EXPECT_EQ(matches("^[a-z]{2}(-x(-[a-z0-9]{1,8})+)?$", "en-ab"), "no");
}

// What a build with XGrammar as released refuses.
TEST(SchemaGate, CountsAboveTheLimitAreRefusedByName) {
  const SchemaLimits limits = {.max_counted = 32};
  const auto refused = [&](const std::string& bounds) {
    return refusal(R"({"type":"string",)" + bounds + "}", limits);
  };
  EXPECT_EQ(refused(R"("maxLength":33)"), "unsupported keyword 'maxLength above 32' at #");
  EXPECT_EQ(refused(R"("minLength":33)"), "unsupported keyword 'minLength above 32' at #");
  EXPECT_EQ(refused(R"("pattern":"^a{33}$")"), "unsupported keyword 'pattern' at #");
  EXPECT_TRUE(refused(R"("pattern":"^a{0,32}$","minLength":32)").starts_with("not refused"));
  EXPECT_TRUE(refused(R"("maxLength":32)").starts_with("not refused"));

  std::vector<LeftOutKeyword> left_out;
  ASSERT_TRUE(gate_schema(R"({"type":"string","minLength":5,"maxLength":400})",
                          /*is_best_effort=*/true,
                          limits,
                          &left_out));
  EXPECT_EQ(left_out, std::vector<LeftOutKeyword>({{"maxLength above 32", "#"}}));

  EXPECT_EQ(gate_regex(R"((:a+)?x??[?{]{2}\?{3}(?:b)?)", limits).value(),
            R"((:a+){0,1}x{0,1}?[?{]{2}\?{3}(?:b){0,1})");
  EXPECT_EQ(gate_regex("a{2,33}", limits).error().message,
            "the regular expression counts more than 32");
  EXPECT_TRUE(gate_regex("a{2,32}b{20}", limits));
}

TEST(SchemaGate, TextOfAStringStaysInside) {
  for (const char* schema : {R"({"type":"string","pattern":"^.*$"})",
                             R"({"type":"string","pattern":"^[^a]*$"})",
                             R"({"type":"string","pattern":"^\\D*$"})",
                             R"({"type":"string","maxLength":9})"}) {
    EXPECT_EQ(verdict(schema, R"("x\q")"), "no") << schema;
    EXPECT_EQ(verdict(schema, "\"x\"y\""), "no") << schema;
    EXPECT_EQ(verdict(schema, "\"x\ny\""), "no") << schema;
    EXPECT_EQ(verdict(schema, "\"x\xC3\xA9\""), "yes") << schema;
    EXPECT_EQ(verdict(schema, "\"x\xFFy\""), "no") << schema;
  }
}

TEST(SchemaGate, EqualStringsAreOneDefinition) {
  const std::string text = *gate_schema(
      R"({"type":"object","properties":{"a":{"type":"string","maxLength":20},
          "b":{"type":"string","maxLength":20},"c":{"items":{"type":"string","maxLength":21}},
          "d":{"type":"string","maxLength":20,"title":"another"}}})",
      false,
      {});
  const auto count = [&](std::string_view part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
      ++found;
    return found;
  };
  EXPECT_EQ(count("{0,20}"), 1) << text;
  EXPECT_EQ(count("{0,21}"), 1) << text;
}

TEST(SchemaGate, CyclesAndGiantBounds) {
  EXPECT_NE(refusal(R"({"$ref":"#"})").find("circle"), std::string::npos);
  EXPECT_NE(refusal(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})").find("circle"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},
                       "$ref":"#/$defs/a"})")
                .find("circle"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"allOf":[{"$ref":"#"},{"type":"object"}]})").find("circle"),
            std::string::npos);
  // With progress in between they are fine.
  const std::string tree =
      R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},
          "required":["next"]})";
  EXPECT_EQ(verdict(tree, R"({"next":{"next":null}})"), "yes");
  EXPECT_EQ(verdict(tree, R"({"next":{}})"), "no");
  EXPECT_NE(refusal(R"({"type":"array","minItems":18446744073709551616})").find("minItems"),
            std::string::npos);
  EXPECT_EQ(verdict(R"({"type":"array","items":{"type":"null"},"maxItems":18446744073709551616})",
                    "[null]"),
            "yes");
  EXPECT_NE(refusal(R"({"type":"integer","maximum":1e30})").find("maximum"), std::string::npos);
  EXPECT_NE(refusal(R"({"type":"integer","minimum":1e30})").find("minimum"), std::string::npos);
}

// A schema that comes back to itself through a reference that is merged with something else.
TEST(SchemaGate, RecursionThroughMergedSchemas) {
  const std::string merged = R"({"definitions":{
      "node":{"type":"object","properties":{"next":{"allOf":[{"$ref":"#/definitions/node"},
                                                             {"$ref":"#/definitions/any"}]}}},
      "any":{"type":"object"}},"$ref":"#/definitions/node"})";
  EXPECT_EQ(verdict(merged, R"({"next":{"next":{"next":{}}}})"), "yes");
  EXPECT_EQ(verdict(merged, R"({"next":{"next":{"next":1}}})"), "no");
  const std::string sibling =
      R"({"properties":{"a":{"$ref":"#","type":"object"}},"type":"object"})";
  EXPECT_EQ(verdict(sibling, R"({"a":{"a":{}}})"), "yes");
  EXPECT_EQ(verdict(sibling, R"({"a":{"a":[]}})"), "no");
  const std::string items = R"({"type":"array","items":{"anyOf":[{"type":"null"},
      {"allOf":[{"$ref":"#"},{"minItems":1}]}]}})";
  EXPECT_EQ(verdict(items, "[[[null]]]"), "yes");
  EXPECT_EQ(verdict(items, "[[[]]]"), "no");
  const std::string map = R"({"$defs":{"m":{"type":"object","additionalProperties":
      {"oneOf":[{"type":"integer"},{"allOf":[{"$ref":"#/$defs/m"}],"maxProperties":2}]}}},
      "$ref":"#/$defs/m"})";
  EXPECT_EQ(verdict(map, R"({"a":{"b":{"c":1}}})"), "yes");
  EXPECT_EQ(verdict(map, R"({"a":{"b":{"c":"x"}}})"), "no");
}

TEST(SchemaGate, CountsBeforeItExpands) {
  const auto started = std::chrono::steady_clock::now();
  std::string deep = R"({"type":"string"})";
  for (int i = 0; i < 100; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_NE(refusal(deep).find("deeper than 64"), std::string::npos);
  std::string branches;
  for (int i = 0; i < 65; ++i) {
    branches +=
        (i > 0 ? "," : "") + (R"({"type":"string","maxLength":)" + std::to_string(i + 1) + "}");
  }
  EXPECT_NE(refusal(R"({"anyOf":[)" + branches + "]}").find("branches"), std::string::npos);
  // Two of each of twenty choices: a million.
  std::string choices;
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i);
    choices += (i > 0 ? "," : "") +
               (R"({"anyOf":[{"required":["a)" + n + R"("]},{"required":["b)" + n + R"("]}]})");
  }
  EXPECT_NE(refusal(R"({"allOf":[)" + choices + "]}").find("branches"), std::string::npos);
  std::string values = "0";
  for (int i = 1; i < 10001; ++i) values += "," + std::to_string(i);
  EXPECT_NE(refusal(R"({"enum":[)" + values + "]}").find("enum"), std::string::npos);
  // Definitions that double: 2^40 copies if they were written out.
  std::string doubling = R"("d0":{"type":"null"})";
  for (int i = 1; i <= 40; ++i) {
    const std::string before = R"({"$ref":"#/$defs/d)" + std::to_string(i - 1) + R"("})";
    doubling += R"(,"d)" + std::to_string(i) + R"(":{"type":"object","properties":{"l":)" + before +
                R"(,"r":)" + before + "}}";
  }
  EXPECT_EQ(refusal(R"({"$defs":{)" + doubling + R"(},"$ref":"#/$defs/d40"})").substr(0, 12),
            "not refused:");
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(20));
}

TEST(SchemaGate, OneOfNeedsToBeTold) {
  const std::string kinds = R"({"oneOf":[
      {"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},
      {"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]})";
  EXPECT_EQ(verdict(kinds, R"({"k":"a","x":1})"), "yes");
  EXPECT_EQ(verdict(kinds, R"({"k":"b"})"), "yes");
  EXPECT_EQ(verdict(kinds, R"({"k":"a"})"), "no");
  EXPECT_EQ(refusal(R"({"oneOf":[{"type":"integer"},{"type":"number","minimum":2}]})"),
            "unsupported keyword 'oneOf' at #");
}

}  // namespace
}  // namespace sluice
