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
#include "tests/engine/token_cases.h"
#include "tests/support/golden_folder.h"
#include "tests/support/thread_time.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kThrees = "\\d{1,3}(?=(?:\\d{3})*\\b)";  // of Cohere2 and Tiny Aya

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

std::vector<TokenId> encoded(const Tokenizer& tokenizer, const std::string& text) {
  return testing::in_time([&] { return testing::encode(tokenizer, text); });
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

TEST(LinearExpressions, TakeThePlaceOfPublishedOnes) {
  const auto tokenizer = with_expression(kThrees);
  ASSERT_NE(tokenizer, nullptr);
  for (const char* behind : {"", "a"}) {
    EXPECT_FALSE(encoded(*tokenizer, std::string(1 << 16, '1') + behind).empty());
  }
}

}  // namespace
}  // namespace sluice
