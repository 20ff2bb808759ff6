// SPDX-License-Identifier: Apache-2.0
// Clients' expressions and grammars mean what they mean to GBNF and to Python's re with ASCII and
// DOTALL, but that \s also has U+00A0.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/sampling/grammar/exact_regex.h"
#include "engine/sampling/grammar/schema_gate.h"
#include "tests/support/byte_grammar.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Expected<std::shared_ptr<const Grammar>> compile_text(GrammarKind kind, std::string text) {
  static const std::unique_ptr<GrammarBackend> backend = testing::byte_backend();
  GrammarSpec spec;
  spec.kind = kind;
  spec.text = std::move(text);
  return backend->compile(spec);
}

Expected<std::shared_ptr<const Grammar>> compile_expression(const std::string& expression) {
  SLUICE_TRY(std::string gated, gate_regex(expression, {}));
  return compile_text(GrammarKind::kRegex, std::move(gated));
}

TEST(Expressions, MatchWhatPythonMatches) {
  std::ifstream file(golden_folder() + "/expressions/expressions.json");
  const Json cases = Json::parse(file);
  ASSERT_GT(cases.size(), 80U);
  for (const Json& one : cases) {
    const auto expression = one["expression"].get<std::string>();
    const auto grammar = compile_expression(expression);
    if (!grammar) {
      ADD_FAILURE() << expression << ": " << grammar.error().message;
      continue;
    }
    for (const auto& [name, is_match] : {std::pair{"matching", true}, {"other", false}}) {
      for (const Json& text : one[name]) {
        EXPECT_EQ(testing::accepts(**grammar, text.get<std::string>()), is_match)
            << expression << " of " << text.dump() << ", gated " << *gate_regex(expression, {});
      }
    }
  }
}

TEST(Expressions, HalvesOfPairsAreNoCharacters) {
  for (const char* expression : {".", "[^a]", R"(\D)", R"(\W)", R"(\S)", R"([\D])", R"([\S\n])"}) {
    const auto grammar = compile_expression(expression);
    ASSERT_TRUE(grammar) << expression << grammar.error().message;
    EXPECT_FALSE(testing::accepts(**grammar, "\xED\xA0\xA0")) << expression;
    EXPECT_FALSE(testing::accepts(**grammar, "\xED\xBF\xBF")) << expression;
    EXPECT_TRUE(testing::accepts(**grammar, "\xED\x9F\xBF")) << expression;
    EXPECT_TRUE(testing::accepts(**grammar, "\xEE\x80\x80")) << expression;
    EXPECT_TRUE(testing::accepts(**grammar, "\xF4\x8F\xBF\xBF")) << expression;
  }
  for (const char* expression : {R"(\ud83d)", R"(\ude00\ud83d)", R"([\ud83d])", R"(\ud83dx)"}) {
    const auto gated = gate_regex(expression, {});
    ASSERT_FALSE(gated) << expression;
    EXPECT_EQ(gated.error().message, "the regular expression has half of a surrogate pair");
  }
}

TEST(Expressions, WhatTheLibraryRefusesStaysRefused) {
  for (const char* expression :
       {"(?=a)b", "[z-a]", R"(\p{L})", R"([\p{L}])", R"((a)\1)", "(", "[a", "a**", "[a-\\d]",
        R"([^\s\S])", R"(x[^\d\D]y)"}) {
    EXPECT_FALSE(compile_expression(expression)) << expression;
  }
}

// Two digits, however many follow.
TEST(Expressions, EscapesOfGrammarsHaveTwoDigits) {
  const auto takes = [](const std::string& grammar, const std::string& text) {
    const auto compiled = compile_text(GrammarKind::kEbnf, exact_ebnf(grammar));
    EXPECT_TRUE(compiled) << grammar << compiled.error().message;
    return compiled && testing::accepts(**compiled, text);
  };
  EXPECT_TRUE(takes(R"(root ::= "\x411")", "A1"));
  EXPECT_TRUE(takes(R"(root ::= "\x0Abecause")", "\nbecause"));
  EXPECT_TRUE(takes(R"(root ::= [\x41b]+)", "Ab"));
  EXPECT_FALSE(takes(R"(root ::= [\x41b]+)", "\xD0\x9B"));
  EXPECT_TRUE(takes(R"(root ::= "\\x411")", "\\x411")) << "a backslash that is escaped";
  EXPECT_TRUE(takes(R"(root ::= "\u00e91")", "\xC3\xA9" "1"));
  EXPECT_EQ(exact_ebnf(R"(root ::= "\x4g" "\\\x4142" "\x)"), R"(root ::= "\x4g" "\\\u004142" "\x)");
}

}  // namespace
}  // namespace sluice
