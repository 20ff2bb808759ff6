// SPDX-License-Identifier: Apache-2.0
// The time that the expressions of tokenizer.json files take with texts made to cost much.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/pretokenizer_names.h"
#include "engine/tokenizer/text/regex.h"
#include "tests/support/golden_folder.h"
#include "tests/support/thread_time.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kThrees = "\\d{1,3}(?=(?:\\d{3})*\\b)";  // of Cohere2 and Tiny Aya
constexpr std::string_view kSpaces = "\\s+$";                       // of DeepSeek's first models

// Returns a byte-level tokenizer that isolates the expression's matches.
std::unique_ptr<Tokenizer> with_expression(std::string_view expression) {
  std::ostringstream content;
  content << std::ifstream(golden_folder() + "/tokenizer/json/qwen.json").rdbuf();
  Json json = Json::parse(content.str());
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", expression}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  HfTokenizerFiles files;
  files.tokenizer_json = json.dump();
  auto tokenizer = create_hf_tokenizer(files);
  EXPECT_TRUE(tokenizer.has_value()) << (tokenizer ? "" : tokenizer.error().message);
  return tokenizer ? std::move(*tokenizer) : nullptr;
}

Expected<void> encoded(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<TokenId> ids;
  return testing::in_time([&] { return tokenizer.encode(text, SpecialText::kText, ids); });
}

std::vector<std::pair<size_t, size_t>> matches(std::string_view expression,
                                               std::string_view text) {
  const Regex regex = Regex::compile(expression).value();
  Regex::Scanner scanner;
  Regex::Range found;
  std::vector<std::pair<size_t, size_t>> all;
  for (size_t at = 0; at < text.size() && regex.find(text, at, scanner, found); at = found.end) {
    all.emplace_back(found.begin, found.end);
  }
  return all;
}

TEST(LinearExpressions, FindWhatThePublishedOnesFind) {
  // PCRE2's \b takes marks for no part of a word, which Oniguruma does.
  constexpr std::string_view kOniguruma = "\\d{1,3}(?=(?:\\d{3})*(?!\\w))";
  const std::string_view linear = linear_expression(kThrees);
  ASSERT_NE(linear, kThrees);
  constexpr std::string_view kUnits[] = {
      "1", "2", "34", "567", "9000", "a", "_", " ", ",", "\n", "\xD9\xA3", "\xC2\xB2", "\xC3\xA9",
      "\xE4\xB8\xAD", "\xCC\x81"};
  std::mt19937 random(1);
  size_t num_matches = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (uint32_t left = random() % 12; left > 0; --left) {
      text += kUnits[random() % std::size(kUnits)];
    }
    const auto expected = matches(kOniguruma, text);
    EXPECT_EQ(matches(linear, text), expected) << text;
    num_matches += expected.size();
  }
  EXPECT_GT(num_matches, 5000U);
}

TEST(LinearExpressions, FindTheSpacesAtTheEndsOfLines) {
  const std::string_view linear = linear_expression(kSpaces);
  ASSERT_NE(linear, kSpaces);
  constexpr std::string_view kUnits[] = {" ", "  ", "\t", "\n", "\r\n", "a", "1", "\xE3\x80\x80"};
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (uint32_t left = random() % 12; left > 0; --left) {
      text += kUnits[random() % std::size(kUnits)];
    }
    EXPECT_EQ(matches(linear, text), matches(kSpaces, text)) << text;
  }
}

TEST(LinearExpressions, TakeThePlaceOfPublishedOnes) {
  for (const auto& [expression, unit] : {std::pair(kThrees, '1'), std::pair(kSpaces, ' ')}) {
    const auto tokenizer = with_expression(expression);
    ASSERT_NE(tokenizer, nullptr);
    for (const char* behind : {"", "a"}) {
      EXPECT_TRUE(encoded(*tokenizer, std::string(1 << 16, unit) + behind).has_value());
    }
  }
}

TEST(TextCost, TextsThatTakeTooLongAreRefusedByTheExpression) {
  struct Case {
    std::string_view expression;
    std::string text;
  };
  const std::string digits(1 << 16, '1');
  const Case cases[] = {
      // Each match looks at all that is left.
      {"\\d{1,3}(?=(?:\\d{3})*x?\\b)", digits},
      // Each beginning does, and there is no match.
      {"\\d{1,3}(?=(?:\\d{3})*x?\\b)", digits + "a"},
      // One beginning takes exponential time.
      {"(?:a|a?)+b|c", std::string(64, 'a') + "c"},
  };
  for (const Case& slow : cases) {
    const auto tokenizer = with_expression(slow.expression);
    ASSERT_NE(tokenizer, nullptr);
    const Expected<void> result = encoded(*tokenizer, slow.text);
    ASSERT_FALSE(result.has_value()) << slow.expression;
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(result.error().message.find(slow.expression), std::string::npos)
        << result.error().message;
    EXPECT_TRUE(encoded(*tokenizer, "1234 a").has_value());
  }
}

// A search ends and begins anew in between: its matches are those of a search of the whole text.
TEST(TextCost, SearchesInPartsFindTheSameMatches) {
  for (const std::string_view expression :
       {"b+", "(?<=a)b", "\xC3\xA9", "^c", "\\Gb|d", "(?<!\xC3\xA9)\\d"}) {
    const Regex regex = Regex::compile(expression).value();
    for (size_t length = 0; length < 300; ++length) {
      std::string text;
      while (text.size() < length) text += "\xC3\xA9";
      text += "abb\nc5\xC3\xA9" "5d";
      Regex::Scanner plain;
      Regex::Scanner limited;
      limited.limit_time(text.size());
      Regex::Range expected;
      Regex::Range found;
      for (size_t at = 0; at < text.size(); at = expected.end) {
        const bool is_there = regex.find(text, at, plain, expected);
        ASSERT_EQ(regex.find(text, at, limited, found), is_there) << expression << length;
        if (!is_there) break;
        ASSERT_EQ(found.begin, expected.begin) << expression << " behind " << length;
        ASSERT_EQ(found.end, expected.end) << expression << " behind " << length;
      }
      EXPECT_TRUE(limited.ended_by().empty());
    }
  }
}

}  // namespace
}  // namespace sluice
