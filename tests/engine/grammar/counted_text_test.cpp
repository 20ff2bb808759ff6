// SPDX-License-Identifier: Apache-2.0
// Bounds of lengths and large counts: masks over tokens of many characters are exact at every
// place, and cost what those of a string without bounds do.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampling/grammar/grammar.h"
#include "engine/sampling/grammar/schema_gate.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

std::string times(int count, const std::string& text) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// Bytes, and tokens that go up to a bound, beyond it, and out of the string.
GrammarVocabulary long_tokens() {
  GrammarVocabulary vocabulary = testing::byte_vocabulary();
  std::vector<std::string>& tokens = vocabulary.tokens;
  for (const int length : {2, 3, 4, 7, 8, 16, 31, 32, 33, 34, 48, 49, 64, 100}) {
    for (const char* one : {"a", "\xC3\xA9", "b ", " "}) tokens.push_back(times(length, one));
    for (const char* end : {"\"", "\"}", "\",", "\\n", "\n", "A", "\xC3", " \"]"}) {
      tokens.push_back(times(length, "a") + end);
    }
  }
  for (const char* text : {"a\"", "a\"}", "\xA9", "\xA9\xC3\xA9", "\xA9\"", "ab c", "b a"}) {
    tokens.emplace_back(text);
  }
  vocabulary.width = static_cast<int32_t>(tokens.size());
  return vocabulary;
}

Expected<std::shared_ptr<const Grammar>> compile(const GrammarBackend& backend,
                                                 const std::string& schema) {
  GrammarSpec spec;
  spec.kind = GrammarKind::kJsonSchema;
  SLUICE_TRY(spec.text, gate_schema(schema, /*is_best_effort=*/false, {}));
  return backend.compile(spec);
}

constexpr bool kCountsAll = kMostCounted > 10000;  // else large counts are refused

std::string text_schema(const std::string& bounds) {
  return R"({"type":"object","properties":{"t":{"type":"string",)" + bounds +
         R"(}},"required":["t"]})";
}

bool is_in(const std::vector<uint32_t>& row, size_t token) {
  return (row[token / 32] >> (token % 32) & 1) != 0;
}

TEST(CountedText, MasksAreWhatIsAccepted) {
  const GrammarVocabulary vocabulary = long_tokens();
  const auto backend = std::move(*create_grammar_backend(vocabulary, {.max_whitespace = 2}));
  std::mt19937 random(7);
  int num_compiled = 0;
  for (const std::string bounds : {R"("minLength":70)",
                                   R"("maxLength":70)",
                                   R"("minLength":60,"maxLength":130)",
                                   R"("minLength":90,"maxLength":90)",
                                   R"("maxLength":20)",
                                   R"("minLength":3)",
                                   R"("maxLength":49)",
                                   R"("maxLength":81)",
                                   R"("minLength":49,"maxLength":98)",
                                   R"("pattern":"^[a-z ]{60,}$")",
                                   R"("pattern":"^(b ){0,70}a*$")",
                                   R"("pattern":"^([ab]+ ?){1,60}$")",
                                   R"("pattern":"^a{2}[ab ]*$","maxLength":75)"}) {
    const auto grammar = compile(*backend, text_schema(bounds));
    if (!grammar && !kCountsAll && grammar.error().code == ErrorCode::kUnsupported) continue;
    ASSERT_TRUE(grammar) << bounds << ": " << grammar.error().message;
    ++num_compiled;
    std::vector<uint32_t> row(token_mask_words(vocabulary.width));
    for (int answer = 0; answer < 3; ++answer) {
      const auto matcher = (*grammar)->match();
      for (int step = 0; step < 40; ++step) {
        const Allowed allowed = matcher->fill(row);
        ASSERT_NE(allowed, Allowed::kNothing) << bounds;
        std::vector<TokenId> taken;
        for (size_t token = 0; token < vocabulary.tokens.size(); ++token) {
          const bool is_accepted = matcher->accept(static_cast<TokenId>(token));
          ASSERT_EQ(is_in(row, token), is_accepted)
              << bounds << ", step " << step << ": '" << vocabulary.tokens[token] << "'";
          if (!is_accepted) continue;
          matcher->rollback(1);
          if (static_cast<TokenId>(token) != testing::kByteEnd) {
            taken.push_back(static_cast<TokenId>(token));
          }
        }
        if (taken.empty()) break;
        ASSERT_TRUE(matcher->accept(taken[random() % taken.size()]));
      }
    }
  }
  EXPECT_EQ(num_compiled, kCountsAll ? 13 : 2);
}

TEST(CountedText, BoundsAreExact) {
  const auto backend = testing::byte_backend({.max_whitespace = 2});
  std::map<std::string, std::shared_ptr<const Grammar>> grammars;
  const auto fits = [&](const std::string& bounds, const std::string& text) {
    std::shared_ptr<const Grammar>& grammar = grammars[bounds];
    if (grammar == nullptr) grammar = compile(*backend, text_schema(bounds)).value();
    return testing::accepts(*grammar, R"({"t": ")" + text + R"("})");
  };
  for (const char* one : {"a", "\xC3\xA9", "\xF0\x9F\x98\x80"}) {
    for (const auto& [min, max] :
         {std::pair{0, 400}, {400, 400}, {100, 300}, {1, 49}, {48, 97}, {2, 9}}) {
      const std::string bounds =
          "\"minLength\":" + std::to_string(min) + ",\"maxLength\":" + std::to_string(max);
      if (int64_t{max} > kMostCounted) {
        EXPECT_EQ(compile(*backend, text_schema(bounds)).error().code, ErrorCode::kUnsupported);
        continue;
      }
      for (const int length : {0,
                               1,
                               min - 1,
                               min,
                               min + 1,
                               (min + max) / 2,
                               max - 33,
                               max - 1,
                               max,
                               max + 1,
                               max + 40}) {
        if (length < 0) continue;
        EXPECT_EQ(fits(bounds, times(length, one)), length >= min && length <= max)
            << bounds << ": " << length << " of " << one;
      }
    }
    if (!kCountsAll) continue;
    EXPECT_FALSE(fits(R"("minLength":400)", times(399, one)));
    EXPECT_TRUE(fits(R"("minLength":400)", times(400, one)));
    EXPECT_TRUE(fits(R"("minLength":400)", times(1000, one)));
  }
}

TEST(CountedText, BoundsBesidePatterns) {
  const auto backend = testing::byte_backend({.max_whitespace = 2});
  const auto fits = [&](const std::string& bounds, const std::string& text) -> std::string {
    const auto grammar = compile(*backend, text_schema(bounds));
    if (!grammar) return grammar.error().message;
    return testing::accepts(**grammar, R"({"t": ")" + text + R"("})") ? "yes" : "no";
  };
  const std::string code = R"("pattern":"^[A-Z]{2}-[0-9]+$","minLength":5,"maxLength":6)";
  EXPECT_EQ(fits(code, "AB-1"), "no");
  EXPECT_EQ(fits(code, "AB-12"), "yes");
  EXPECT_EQ(fits(code, "AB-123"), "yes");
  EXPECT_EQ(fits(code, "AB-1234"), "no");
  EXPECT_EQ(fits(R"("pattern":"^[a-z]*$","minLength":2)", "a"), "no");
  EXPECT_EQ(fits(R"("pattern":"^[a-z]*$","minLength":2)", "ab"), "yes");
  EXPECT_EQ(fits(R"("pattern":"^ab","maxLength":4)", "abcd"), "yes");
  EXPECT_EQ(fits(R"("pattern":"^ab","maxLength":4)", "abcde"), "no");
  EXPECT_EQ(fits(R"("pattern":"^[a-z]{3,5}$","minLength":4,"maxLength":9)", "abc"), "no");
  EXPECT_EQ(fits(R"("pattern":"^[a-z]{3,5}$","minLength":4,"maxLength":9)", "abcde"), "yes");
  // The pattern keeps the bounds by itself, whatever it is made of.
  EXPECT_EQ(fits(R"("pattern":"^(a|bc){2,3}$","minLength":1,"maxLength":6)", "abca"), "yes");
  EXPECT_EQ(fits(R"("pattern":"^(foo|barbar)$","minLength":3,"maxLength":6)", "foo"), "yes");
  // Where two places could give way, or none, it is refused.
  const std::string refused =
      "unsupported keyword 'minLength or maxLength beside pattern' at #/properties/t";
  EXPECT_EQ(fits(R"("pattern":"^a*b*$","maxLength":4)", "ab"), refused);
  EXPECT_EQ(fits(R"("pattern":"b","maxLength":4)", "ab"), refused);
  EXPECT_EQ(fits(R"("pattern":"^(ab)*$","maxLength":4)", "ab"), refused);
  EXPECT_EQ(fits(R"("pattern":"^a|b*$","maxLength":4)", "ab"), refused);
  EXPECT_EQ(fits(R"("pattern":"^[a-z]{3}$","maxLength":2)", "ab"), refused);
}

// The median of masks inside of a string.
double mask_us(const GrammarBackend& backend, int32_t width, const std::string& bounds) {
  const auto grammar = compile(backend, text_schema(bounds));
  EXPECT_TRUE(grammar) << bounds << ": " << grammar.error().message;
  const auto matcher = (*grammar)->match();
  EXPECT_TRUE(testing::accepts_prefix(*matcher, R"({"t": ")"));
  std::vector<uint32_t> row(token_mask_words(width));
  std::vector<double> taken;
  for (int step = 0; step < 60; ++step) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(matcher->fill(row), Allowed::kSome);
    taken.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
    EXPECT_TRUE(matcher->accept('a'));
  }
  std::ranges::nth_element(taken, taken.begin() + 30);
  return taken[30];
}

TEST(CountedText, BoundsCostNoTime) {
  if (!kCountsAll) GTEST_SKIP() << "large counts are refused";
  GrammarVocabulary vocabulary = testing::byte_vocabulary();
  std::mt19937 random(3);
  while (vocabulary.tokens.size() < 10000) {
    std::string token;
    for (size_t i = 0; i < 2 + random() % 7; ++i) token += static_cast<char>('a' + random() % 26);
    vocabulary.tokens.push_back(std::move(token));
  }
  vocabulary.width = static_cast<int32_t>(vocabulary.tokens.size());
  const auto backend = std::move(*create_grammar_backend(vocabulary, {.max_whitespace = 2}));
  // A mask that tries its tokens one by one takes a thousand times as long.
  const double most = 20 * mask_us(*backend, vocabulary.width, R"("minLength":0)") + 200;
  for (const std::string bounds : {R"("minLength":400)",
                                   R"("maxLength":400)",
                                   R"("minLength":100,"maxLength":400)",
                                   R"("minLength":400,"maxLength":400)",
                                   R"("maxLength":10000)",
                                   R"("pattern":"^[a-z ]{400,}$")",
                                   R"("pattern":"^[a-z ]*$","minLength":400)"}) {
    EXPECT_LT(mask_us(*backend, vocabulary.width, bounds), most) << bounds;
  }
}

}  // namespace
}  // namespace sluice
