// SPDX-License-Identifier: Apache-2.0
// Valid values have a text in the grammar of their schema, or what forbids them is named.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/sampling/grammar/left_out_keywords.h"
#include "engine/sampling/grammar/schema_gate.h"
#include "engine/sampling/grammar/structural_tag_gate.h"
#include "tests/support/byte_grammar.h"
#include "tests/support/golden_folder.h"
#include "tests/support/thread_time.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr bool kCountsLarge = kMostCounted > 10000;

// The grammar of a schema; null with a failure where there is none.
std::shared_ptr<const Grammar> grammar_of(const std::string& schema, bool is_best_effort = false) {
  static const std::unique_ptr<GrammarBackend> backend =
      testing::byte_backend({.max_whitespace = 2});
  GrammarSpec spec;
  spec.kind = GrammarKind::kJsonSchema;
  const auto gated = gate_schema(schema, is_best_effort, {});
  EXPECT_TRUE(gated) << schema << ": " << gated.error().message;
  if (!gated) return nullptr;
  spec.text = *gated;
  const auto grammar = backend->compile(spec);
  EXPECT_TRUE(grammar) << schema << ": " << grammar.error().message;
  return grammar ? *grammar : nullptr;
}

bool takes(const std::string& schema, const std::string& text, bool is_best_effort = false) {
  const auto grammar = grammar_of(schema, is_best_effort);
  return grammar != nullptr && testing::accepts(*grammar, text);
}

std::string strict_refusal(const std::string& schema) {
  const auto gated = gate_schema(schema, false, {});
  return gated ? "not refused: " + *gated : gated.error().message;
}

// What the grammar of a schema that is not strict leaves out, as clients are told.
std::string left_out(const std::string& schema) {
  GrammarSpec spec;
  spec.kind = GrammarKind::kJsonSchema;
  spec.is_best_effort = true;
  spec.text = schema;
  std::string all;
  for (const std::string& path : left_out_keywords(spec)) all += (all.empty() ? "" : " ") + path;
  return all;
}

// Values of one type under keywords of that type: nothing that the gate may narrow, which are the
// order and the names of properties, and items that no keyword speaks of.
TEST(SchemaGate, NeverNarrower) {
  static const std::map<std::string, Json::value_t> kTypes = {
      {"minLength.json", Json::value_t::string},
      {"maxLength.json", Json::value_t::string},
      {"pattern.json", Json::value_t::string},
      {"format.json", Json::value_t::string},
      {"minimum.json", Json::value_t::number_float},
      {"maximum.json", Json::value_t::number_float},
      {"exclusiveMinimum.json", Json::value_t::number_float},
      {"exclusiveMaximum.json", Json::value_t::number_float},
      {"multipleOf.json", Json::value_t::number_float},
      {"type.json", Json::value_t::discarded},
      {"enum.json", Json::value_t::discarded},
      {"const.json", Json::value_t::discarded},
      {"boolean_schema.json", Json::value_t::discarded}};
  std::ifstream file(golden_folder() + "/schemas/draft2020-12.json");
  int num_values = 0;
  for (const Json& group : Json::parse(file)) {
    const auto found = kTypes.find(group["file"].get<std::string>());
    if (found == kTypes.end()) continue;
    for (const bool is_best_effort : {false, true}) {
      const std::string schema = group["schema"].dump();
      if (!gate_schema(schema, is_best_effort, {})) continue;
      const auto grammar = grammar_of(schema, is_best_effort);
      if (grammar == nullptr) continue;
      for (const Json& test : group["tests"]) {
        const Json& value = test["data"];
        const bool has_type = found->second == Json::value_t::discarded
                                  ? !value.is_structured()
                                  : value.type() == found->second ||
                                        (value.is_number() &&
                                         found->second == Json::value_t::number_float);
        if (test["valid"] == false || !has_type) continue;
        ++num_values;
        // One spelling of a value is enough: 1 for 1.0.
        const bool is_whole = value.is_number_float() && std::fabs(value.get<double>()) < 1e17 &&
                              value == value.get<int64_t>();
        EXPECT_TRUE(testing::accepts(*grammar, value.dump()) ||
                    (is_whole && testing::accepts(*grammar, Json(value.get<int64_t>()).dump())))
            << value.dump() << " under " << schema << ", gated "
            << *gate_schema(schema, is_best_effort, {});
      }
    }
  }
  EXPECT_GT(num_values, 150);
}

TEST(SchemaValues, IntegersBeyond32Bits) {
  const std::string safe =
      R"({"type":"integer","minimum":-9007199254740991,"maximum":9007199254740991})";
  for (const char* number : {"1732924800123",
                             "2147483648",
                             "-2147483648",
                             "-2147483649",
                             "9007199254740991",
                             "-9007199254740991",
                             "0",
                             "7"}) {
    EXPECT_TRUE(takes(safe, number)) << number;
  }
  EXPECT_FALSE(takes(safe, "9007199254740992"));
  EXPECT_FALSE(takes(safe, "-9007199254740992"));
  EXPECT_FALSE(takes(safe, "90071992547409910"));
  const std::string uint32 = R"({"type":"integer","minimum":0,"maximum":4294967295})";
  EXPECT_TRUE(takes(uint32, "4294967295"));
  EXPECT_TRUE(takes(uint32, "3000000000"));
  EXPECT_FALSE(takes(uint32, "4294967296"));
  EXPECT_FALSE(takes(uint32, "-1"));
  const std::string int32 = R"({"type":"integer","minimum":-2147483648,"maximum":2147483647})";
  EXPECT_TRUE(takes(int32, "-2147483648"));
  EXPECT_FALSE(takes(int32, "-2147483649"));
  EXPECT_FALSE(takes(int32, "2147483648"));
  const std::string past = R"({"type":"integer","minimum":1000000000000})";
  EXPECT_TRUE(takes(past, "1732924800123"));
  EXPECT_FALSE(takes(past, "999999999999"));
  const std::string int64 =
      R"({"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807})";
  for (const char* number : {"9223372036854775807", "-9223372036854775808", "12"}) {
    EXPECT_TRUE(takes(int64, number)) << number;
  }
  EXPECT_FALSE(takes(int64, "9223372036854775808"));
  EXPECT_FALSE(takes(int64, "-9223372036854775809"));
  const std::string above = R"({"type":"integer","exclusiveMinimum":9007199254740993})";
  EXPECT_FALSE(takes(above, "9007199254740993"));
  EXPECT_TRUE(takes(above, "9007199254740994"));
}

TEST(SchemaValues, IntegerBoundsWithoutAFormAreNamed) {
  const std::string uint64 = R"({"type":"integer","minimum":0,"maximum":18446744073709551615})";
  EXPECT_EQ(strict_refusal(uint64), "unsupported keyword 'maximum' at #");
  EXPECT_EQ(left_out(uint64), "maximum");
  EXPECT_TRUE(takes(uint64, "18446744073709551615", true));
  EXPECT_FALSE(takes(uint64, "-1", true));
  const std::string low = R"({"type":"integer","exclusiveMinimum":-1e30})";
  EXPECT_EQ(strict_refusal(low), "unsupported keyword 'exclusiveMinimum' at #");
  EXPECT_TRUE(takes(low, "-99999999999999999999999", true));
  const std::string far = R"({"type":"integer","minimum":1e30})";
  EXPECT_EQ(strict_refusal(far), "unsupported keyword 'minimum' at #");
}

TEST(SchemaValues, StepsThatAreTooManyAreNamed) {
  const std::string wide = R"({"type":"integer","minimum":0,"maximum":100000,"multipleOf":100})";
  EXPECT_EQ(strict_refusal(wide), "unsupported keyword 'multipleOf' at #");
  EXPECT_EQ(left_out(wide), "multipleOf");
  EXPECT_TRUE(takes(wide, "99900", true));
  EXPECT_FALSE(takes(wide, "100001", true));
  const std::string narrow = R"({"type":"integer","minimum":0,"maximum":9999,"multipleOf":100})";
  EXPECT_TRUE(takes(narrow, "9900"));
  EXPECT_FALSE(takes(narrow, "9901"));
  EXPECT_EQ(strict_refusal(R"({"type":"integer","minimum":-5000,"maximum":5000,"multipleOf":5})"),
            "unsupported keyword 'multipleOf' at #");
}

TEST(SchemaValues, NumbersWithoutASignHaveExponents) {
  const std::string positive = R"({"type":"number","minimum":0})";
  for (const char* number : {"1.5e-3", "1e-7", "0", "0.0", "0e5", "12", "1.5", "1E+3", "0.0000001",
                             "123456789012345678901234567890"}) {
    EXPECT_TRUE(takes(positive, number)) << number;
    EXPECT_TRUE(takes(positive, number, true)) << number;
  }
  for (const char* number : {"-1", "-0.1", "-1e-7", "01", ".5", "1.", "+1", "1e", ""}) {
    EXPECT_FALSE(takes(positive, number)) << number;
  }
  const std::string above = R"({"type":"number","exclusiveMinimum":0})";
  for (const char* number : {"1.5e-3", "1e-7", "0.1", "0.0000001", "12", "1E+3", "100", "0.50e4"}) {
    EXPECT_TRUE(takes(above, number)) << number;
  }
  for (const char* number : {"0", "0.0", "0e5", "0.000e3", "-1", "-0", "01"}) {
    EXPECT_FALSE(takes(above, number)) << number;
  }
  EXPECT_TRUE(takes(R"({"type":"number","maximum":0})", "-1.5e-3"));
  EXPECT_TRUE(takes(R"({"type":"number","maximum":0})", "0"));
  EXPECT_FALSE(takes(R"({"type":"number","maximum":0})", "1e-7"));
  EXPECT_TRUE(takes(R"({"type":"number","exclusiveMaximum":0})", "-1e-7"));
  EXPECT_FALSE(takes(R"({"type":"number","exclusiveMaximum":0})", "-0.0"));
  const std::string inside = R"({"type":"object","properties":{"a":{"type":"number","minimum":0},
      "b":{"type":"array","items":{"type":"number","minimum":0},"minItems":1},
      "c":{"anyOf":[{"type":"number","minimum":0},{"type":"string","minLength":1}]}},
      "required":["a","b","c"]})";
  EXPECT_TRUE(takes(inside, R"({"a":1e-7,"b":[0.5,2e1],"c":3})"));
  EXPECT_TRUE(takes(inside, R"({"a":0,"b":[1],"c":"x\n"})"));
  EXPECT_FALSE(takes(inside, R"({"a":"1","b":[1],"c":3})"));
  EXPECT_FALSE(takes(inside, R"({"a":-1,"b":[1],"c":3})"));
  EXPECT_FALSE(takes(inside, R"({"a":1,"b":["1"],"c":3})"));
}

TEST(SchemaValues, OtherBoundsOfNumbersAreNamed) {
  const std::string latitude = R"({"type":"number","minimum":-90,"maximum":90})";
  EXPECT_TRUE(takes(latitude, "52.5"));
  EXPECT_FALSE(takes(latitude, "90.5"));
  EXPECT_EQ(strict_refusal(latitude).substr(0, 12), "not refused:");
  // Six places and no exponent: the grammar holds the bounds, and clients are told.
  EXPECT_EQ(left_out(latitude), "minimum maximum");
  const std::string share = R"({"type":"number","minimum":0,"maximum":1})";
  EXPECT_EQ(left_out(share), "");
  for (const char* number : {"0", "1", "0.5", "1.0", "0.123456789", "1e-7", "9.5E-01", "0.5e-3"}) {
    EXPECT_TRUE(takes(share, number)) << number;
  }
  for (const char* number : {"1.5", "2", "1e0", "9.5e-0", "10", "-0.1", "0.5e3", "1.01"}) {
    EXPECT_FALSE(takes(share, number)) << number;
  }
}

TEST(SchemaValues, TextKeepsItsEscapes) {
  const std::string text = R"("a\nb\"c\\d\t\/\u00e9\u001F")";  // 11 characters
  for (const char* bounds : {R"("minLength":1)",
                             R"("minLength":0,"maxLength":200)",
                             R"("maxLength":11)",
                             R"("minLength":11)",
                             R"("minLength":2,"maxLength":31)",
                             R"("minLength":1,"maxLength":10000)"}) {
    if (!kCountsLarge && std::string_view(bounds).find("00") != std::string_view::npos) continue;
    const std::string schema = std::string(R"({"type":"string",)") + bounds + "}";
    EXPECT_TRUE(takes(schema, text)) << schema;
    EXPECT_FALSE(takes(schema, R"("a\xb")")) << schema;
    EXPECT_FALSE(takes(schema, R"("a\u12")")) << schema;
    EXPECT_FALSE(takes(schema, "\"a\nb\"")) << schema;
    EXPECT_FALSE(takes(schema, R"("a"b")")) << schema;
    // Half of a pair is no character; a pair is one without escapes alone.
    EXPECT_FALSE(takes(schema, R"("a\ud83d")")) << schema;
    EXPECT_FALSE(takes(schema, R"("a\ud83d\ude00")")) << schema;
  }
  EXPECT_FALSE(takes(R"({"type":"string","maxLength":10})", text));
  EXPECT_FALSE(takes(R"({"type":"string","minLength":12})", text));
  // In objects, where a string goes on to what follows, and as names.
  const std::string file = R"({"type":"object","properties":{"content":{"type":"string",
      "minLength":1},"path":{"type":"string","maxLength":20}},"required":["content","path"]})";
  EXPECT_TRUE(takes(file, R"({"content": "#include <a>\n\"b\"\n", "path": "a\"b"})"));
  EXPECT_TRUE(takes(R"({"type":"object","additionalProperties":{"type":"null"},
      "propertyNames":{"minLength":1}})",
                    R"({"a\nb": null})"));
}

// Arguments of calls come this way.
TEST(SchemaValues, SchemasInsideOfTagsAreTheSame) {
  GrammarSpec spec;
  spec.kind = GrammarKind::kStructuralTag;
  const auto gated = gate_structural_tag(
      R"({"format":{"type":"tag","begin":"<call>","end":"</call>","content":{"type":"json_schema",
      "json_schema":{"type":"object","properties":{"text":{"type":"string","minLength":1},
      "price":{"type":"number","minimum":0}},"required":["text","price"]}}}})",
      false,
      {});
  ASSERT_TRUE(gated) << gated.error().message;
  spec.text = *gated;
  const auto grammar = testing::byte_backend({.max_whitespace = 2})->compile(spec);
  ASSERT_TRUE(grammar) << grammar.error().message;
  EXPECT_TRUE(testing::accepts(**grammar, R"(<call>{"text":"a\n\"b\"","price":1e-7}</call>)"));
  EXPECT_FALSE(testing::accepts(**grammar, R"(<call>{"text":"","price":1}</call>)"));
  EXPECT_FALSE(testing::accepts(**grammar, R"(<call>{"text":"a","price":-1}</call>)"));
}

TEST(SchemaValues, CountsWithEscapesAreExact) {
  if (!kCountsLarge) GTEST_SKIP() << "large counts are refused";
  const auto grammar = grammar_of(R"({"type":"string","minLength":190,"maxLength":200})");
  ASSERT_NE(grammar, nullptr);
  for (const char* one : {"a", "\\n", "\\\"", "\\u00e9", "\\\\", "\xC3\xA9"}) {
    for (const int length : {1, 189, 190, 195, 199, 200, 201, 300}) {
      std::string text = "\"";
      for (int i = 0; i < length; ++i) text += i % 3 == 0 ? one : "b";
      EXPECT_EQ(testing::accepts(*grammar, text + "\""), length >= 190 && length <= 200)
          << length << " of " << one;
    }
  }
}

TEST(SchemaValues, PatternsTakeEscapesThatTheyMean) {
  const auto matches = [](const std::string& pattern, const std::string& text) {
    return takes(Json({{"type", "string"}, {"pattern", pattern}}).dump(), text);
  };
  EXPECT_TRUE(matches("^[^a]*$", R"("x\ny\"\\\u0001")"));
  EXPECT_FALSE(matches("^[^a]*$", R"("x\nay")"));
  EXPECT_TRUE(matches("^.*$", R"("x\"y\\z\ta")"));
  EXPECT_FALSE(matches("^.*$", R"("x\ny")"));
  EXPECT_TRUE(matches("b", R"("a\n\"b\"\n")"));
  EXPECT_FALSE(matches("b", R"("a\bc")"));
  EXPECT_TRUE(matches(R"(^\s$)", R"("\n")"));
  EXPECT_TRUE(matches(R"(^\s$)", "\" \""));
  EXPECT_FALSE(matches(R"(^\s$)", R"("\"")"));
  EXPECT_TRUE(matches(R"(^\S+$)", R"("\"\\")"));
  EXPECT_FALSE(matches(R"(^\S+$)", R"("\n")"));
  EXPECT_TRUE(matches(R"(^\W+$)", R"("\"\n-\\")"));
  EXPECT_FALSE(matches(R"(^\w+$)", R"("\n")"));
  EXPECT_TRUE(matches(R"(^[\s\S]*$)", R"("a\n\"é")"));
  EXPECT_TRUE(matches("^a\"b$", R"("a\"b")"));
  EXPECT_TRUE(matches(R"(^a\\b$)", R"("a\\b")"));
  EXPECT_FALSE(matches(R"(^a\\b$)", R"("a\b")"));
  EXPECT_TRUE(matches(R"(^[\\"]+$)", R"("\\\"")"));
  EXPECT_TRUE(matches(R"(^(- [^\n]+\n)+$)", R"("- a\n- \"b\"\n")"));
  EXPECT_FALSE(matches(R"(^(- [^\n]+\n)+$)", R"("- a\n\n")"));
  EXPECT_TRUE(matches(R"(^[A-z]$)", R"("\\")"));
  // Bounds beside count escapes as one.
  const std::string bounded = R"({"type":"string","pattern":"^[^a]*$","maxLength":3})";
  EXPECT_TRUE(takes(bounded, R"("\n\"x")"));
  EXPECT_FALSE(takes(bounded, R"("\n\"xy")"));
  EXPECT_TRUE(takes(R"({"type":"object","patternProperties":{"^[^a]+$":{"type":"null"}},
      "additionalProperties":false})",
                    R"({"b\n": null})"));
}

TEST(SchemaValues, PatternsHaveCharactersOfAllLanguages) {
  const auto matches = [](const std::string& pattern, const std::string& text) {
    return takes(Json({{"type", "string"}, {"pattern", pattern}}).dump(), Json(text).dump());
  };
  EXPECT_TRUE(matches("^ä+$", "ää"));
  EXPECT_FALSE(matches("^ä+$", "äa"));
  EXPECT_TRUE(matches("^[é-ü]{2}$", "éü"));
  EXPECT_FALSE(matches("^[é-ü]{2}$", "éÉ"));
  EXPECT_TRUE(matches("^[^é]$", "日"));
  EXPECT_FALSE(matches("^[^é]$", "é"));
  EXPECT_TRUE(matches("日本", "in 日本."));
  EXPECT_FALSE(matches("日本", "日."));
  EXPECT_TRUE(matches(R"(^[\u4e00-\u9fff\u{3040}-\u{30ff}]+$)", "日本ひ"));
  EXPECT_FALSE(matches(R"(^[\u4e00-\u9fff]+$)", "ひ"));
  EXPECT_TRUE(matches(R"(^\xe9\u00e91\x41b$)", "éé1Ab"));
  EXPECT_TRUE(matches(R"(^\ud83d\ude00$)", "😀"));
  EXPECT_TRUE(matches("^[😀-😎]$", "😃"));
  EXPECT_TRUE(matches(R"(^\u0022\u000a\x5c$)", "\"\n\\"));
  const std::string bounded = R"({"type":"string","pattern":"^ä*$","maxLength":3})";
  EXPECT_TRUE(takes(bounded, "\"äää\""));
  EXPECT_FALSE(takes(bounded, "\"ääää\""));
  for (const char* pattern : {R"(^\ud83d$)", R"(^\ude00\ud83d$)", R"([\ud83d])", R"(^\u12$)", R"(\x4)"}) {
    EXPECT_EQ(strict_refusal(Json({{"type", "string"}, {"pattern", pattern}}).dump()),
              "unsupported keyword 'pattern' at #")
        << pattern;
  }
}

TEST(SchemaValues, GroupsOfPatternsMayHaveNames) {
  for (const char* pattern : {"^(?<y>[0-9]{2})-(?<m_1>a|b)?$", "^(?P<y>[0-9]{2})-(?P<m_1>a|b)?$"}) {
    const std::string schema = Json({{"type", "string"}, {"pattern", pattern}}).dump();
    EXPECT_TRUE(takes(schema, "\"12-a\"")) << pattern;
    EXPECT_TRUE(takes(schema, "\"12-\"")) << pattern;
    EXPECT_FALSE(takes(schema, "\"12-c\"")) << pattern;
  }
  for (const char* pattern : {"^(?<=a)b", "^(?<!a)b", "(?<y", "(?P=y)", "(?<>a)", R"((?<y>a)\k<y>)"}) {
    EXPECT_EQ(strict_refusal(Json({{"type", "string"}, {"pattern", pattern}}).dump()),
              "unsupported keyword 'pattern' at #")
        << pattern;
  }
}

TEST(SchemaValues, HalvesOfPairsAreNoCharacters) {
  for (const char* keywords : {R"("pattern":"^.*$")",
                               R"("pattern":"^[^a]*$")",
                               R"("pattern":"^\\D*$")",
                               R"("pattern":"b")",
                               R"("minLength":1)",
                               R"("maxLength":9)"}) {
    const std::string schema = std::string(R"({"type":"string",)") + keywords + "}";
    EXPECT_FALSE(takes(schema, "\"b\xED\xA0\xA0\"")) << schema;
    EXPECT_FALSE(takes(schema, "\"b\xED\xBF\xBF\"")) << schema;
    EXPECT_TRUE(takes(schema, "\"b\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\"")) << schema;
  }
}

TEST(SchemaValues, LargeBoundsAreLeftOpenAndNamed) {
  const auto strings = [](const std::string& n) {
    return R"({"type":"object","properties":{"t":{"type":"string","maxLength":)" + n + "}}}";
  };
  const auto items = [](const std::string& n) {
    return R"({"type":"array","items":{"type":"null"},"maxItems":)" + n + "}";
  };
  const auto members = [](const std::string& n) {
    return R"({"type":"object","additionalProperties":{"type":"null"},"maxProperties":)" + n + "}";
  };
  for (const std::string n : {"10001", "65535"}) {
    EXPECT_EQ(strict_refusal(strings(n)),
              "unsupported keyword 'maxLength above 10000' at #/properties/t");
    EXPECT_EQ(left_out(strings(n)), "properties.t.maxLength");
    EXPECT_TRUE(takes(strings(n), "{\"t\":\"" + std::string(11000, 'a') + "\"}", true)) << n;
    EXPECT_EQ(strict_refusal(items(n)), "unsupported keyword 'maxItems above 10000' at #");
    EXPECT_EQ(left_out(items(n)), "maxItems");
    EXPECT_EQ(strict_refusal(members(n)),
              "unsupported keyword 'maxProperties above 10000' at #");
    EXPECT_EQ(left_out(members(n)), "maxProperties");
  }
  // No answer is so long.
  for (const std::string n : {"2147483647", "1000000000000000000000"}) {
    for (const std::string& schema : {strings(n), items(n), members(n)}) {
      EXPECT_EQ(strict_refusal(schema).substr(0, 12), "not refused:");
      EXPECT_EQ(left_out(schema), "");
    }
    EXPECT_TRUE(takes(strings(n), "{\"t\":\"" + std::string(11000, 'a') + "\"}")) << n;
  }
  std::string many = "[null";
  for (int i = 0; i < 10500; ++i) many += ",null";
  EXPECT_TRUE(takes(items("20000"), many + "]", true));
  EXPECT_EQ(left_out(items("10000")), "");
}

TEST(SchemaValues, WhatIsLeftOutLeavesTheRestOpen) {
  const std::string patterned = R"({"type":"object","patternProperties":{"^x_":{"type":"integer"}},
      "additionalProperties":false,"required":["x_a"]})";
  EXPECT_EQ(strict_refusal(patterned), "unsupported keyword 'patternProperties' at #");
  EXPECT_EQ(left_out(patterned), "patternProperties");
  EXPECT_TRUE(takes(patterned, R"({"x_a":1})", true));
  // Two patterns, neither of them for the names that the rest is closed to.
  const std::string two = R"({"type":"object","patternProperties":{"^x_":{"type":"integer"},
      "^y_":{"type":"null"}},"additionalProperties":false})";
  EXPECT_EQ(left_out(two), "patternProperties");
  EXPECT_TRUE(takes(two, R"({"x_a":1,"y_b":null})", true));
  const std::string merged = R"({"allOf":[{"type":"object","properties":{"a":{"type":"null"}}},
      {"patternProperties":{"^x_":{"type":"integer"}},"additionalProperties":false}],
      "properties":{"x_a":{"type":"integer"}},"required":["x_a"]})";
  EXPECT_TRUE(takes(merged, R"({"x_a":1})", true));
}

TEST(SchemaValues, UnevaluatedBesideWhatIsLeftOutIsOpen) {
  const std::string dynamic = R"({"type":"object","$dynamicRef":"#node","required":["a"],
      "unevaluatedProperties":false,"$defs":{"n":{"$dynamicAnchor":"node","type":"object",
      "properties":{"a":{"type":"null"}}}}})";
  EXPECT_EQ(strict_refusal(dynamic).substr(0, 19), "unsupported keyword");
  EXPECT_EQ(left_out(dynamic), "$dynamicRef unevaluatedProperties");
  EXPECT_TRUE(takes(dynamic, R"({"a":null})", true));
  const std::string conditional = R"({"type":"object","if":{"properties":{"k":{"const":1}}},
      "then":{"properties":{"a":{"type":"null"}}},"required":["a"],
      "unevaluatedProperties":false})";
  EXPECT_EQ(left_out(conditional), "if unevaluatedProperties");
  EXPECT_TRUE(takes(conditional, R"({"a":null})", true));
}

TEST(SchemaValues, WhatHasNoFiniteValueIsRefused) {
  for (const char* schema :
       {R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object",
            "properties":{"next":{"$ref":"#/$defs/n"}},"required":["next"]}}})",
        R"({"type":"object","properties":{"next":{"$ref":"#"}},"required":["next"]})",
        R"({"type":"array","items":{"$ref":"#"},"minItems":1})",
        R"({"type":"array","prefixItems":[{"$ref":"#"}],"minItems":1})",
        R"({"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"required":["a"],
            "$defs":{"x":{"type":"array","items":{"$ref":"#"},"minItems":2}}})",
        R"({"type":"object","additionalProperties":{"$ref":"#"},"minProperties":1})",
        R"({"type":"object","properties":{"a":{"type":"null"},"b":{"$ref":"#"}},"minProperties":2,
            "additionalProperties":false})",
        R"({"type":"object","properties":{"a":{"type":"null"},"b":{"$ref":"#"}},"minProperties":2,
            "required":["a"],"additionalProperties":false})"}) {
    for (const bool is_best_effort : {false, true}) {
      const auto gated = gate_schema(schema, is_best_effort, {});
      ASSERT_FALSE(gated) << schema;
      EXPECT_NE(gated.error().message.find("'$ref'"), std::string::npos) << gated.error().message;
    }
  }
  // Each requires the one before and may have the one after; all in time in proportion to them.
  std::string chain = R"({"$ref":"#/$defs/n0","$defs":{"n0":{"type":"object","properties":{)"
                      R"("next":{"$ref":"#/$defs/n1"}}})";
  for (int i = 1; i < 900; ++i) {
    const auto name = [](int of) { return R"({"$ref":"#/$defs/n)" + std::to_string(of) + "\"}"; };
    chain += ",\"n" + std::to_string(i) + R"(":{"type":"object","required":["last"],"properties":{)" +
             "\"last\":" + name(i - 1) + ",\"next\":" + name((i + 1) % 900) + "}}";
  }
  EXPECT_TRUE(testing::in_time([&] { return gate_schema(chain + "}}", false, {}).has_value(); }));
  // A way out is enough, wherever it is.
  for (const char* schema :
       {R"({"type":"object","properties":{"next":{"$ref":"#"}}})",
        R"({"type":"array","items":{"$ref":"#"}})",
        R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},
            "required":["next"]})",
        R"({"anyOf":[{"type":"object","properties":{"l":{"$ref":"#"}},"required":["l"]},
            {"type":"integer"}]})",
        R"({"type":"object","properties":{"const":{"$ref":"#/$defs/x"}},"required":["const"],
            "$defs":{"x":{"type":"object","properties":{"n":{"$ref":"#/$defs/x"}}}}})",
        R"({"type":"object","properties":{"next":{"$ref":"#"},"a":{"const":{"$ref":"x"}}}})"}) {
    EXPECT_TRUE(gate_schema(schema, false, {})) << schema;
  }
}

}  // namespace
}  // namespace sluice
