// SPDX-License-Identifier: Apache-2.0
// Masks and states of compiled grammars, over bytes.
#include "engine/sampling/grammar/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "engine/sampling/grammar/grammar_state.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

using testing::accepts;
using testing::allowed_tokens;
using testing::kByteControl;
using testing::kByteEnd;
using testing::kByteMarker;

std::shared_ptr<const Grammar> compile(GrammarKind kind,
                                       const std::string& text,
                                       const GrammarLimits& limits = {}) {
  GrammarSpec spec;
  spec.kind = kind;
  spec.text = text;
  const auto grammar = testing::byte_backend(limits)->compile(spec);
  EXPECT_TRUE(grammar) << grammar.error().message;
  return grammar ? *grammar : nullptr;
}

std::vector<TokenId> bytes_of(std::string_view text) {
  std::vector<TokenId> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

TEST(Grammar, WhitespaceIsBounded) {
  const auto grammar = compile(GrammarKind::kAnyObject, "", {.max_whitespace = 3});
  EXPECT_TRUE(accepts(*grammar, "{ \n\t\"a\":   1}"));
  EXPECT_FALSE(accepts(*grammar, "{    \"a\":1}"));
  EXPECT_FALSE(accepts(*grammar, "{\"a\":    1}"));
  EXPECT_FALSE(accepts(*grammar, "{\"a\":[1,    2]}"));
  EXPECT_FALSE(accepts(*grammar, "{\"a\":1    }"));
  EXPECT_FALSE(accepts(*grammar, "    {}"));
}

TEST(Grammar, NoControlTokenInsideAString) {
  for (const auto& [kind, text] : std::vector<std::pair<GrammarKind, std::string>>{
           {GrammarKind::kAnyObject, ""},
           {GrammarKind::kJsonSchema, R"({"type":"string"})"},
           {GrammarKind::kRegex, ".*"},
           {GrammarKind::kEbnf, "root ::= [^a]*"}}) {
    const auto matcher = compile(kind, text)->match();
    for (const char c : std::string(kind == GrammarKind::kAnyObject ? "{\"a\":\"" : "\"")) {
      ASSERT_TRUE(matcher->accept(c));
      const std::vector<TokenId> allowed = allowed_tokens(*matcher);
      for (const TokenId token : {kByteControl, kByteMarker, 0xFF, 259, 262}) {
        EXPECT_EQ(std::ranges::find(allowed, token), allowed.end()) << text << " " << token;
      }
    }
    EXPECT_FALSE(matcher->accept(kByteControl));
  }
}

TEST(Grammar, EndsWhereTheTextIsComplete) {
  const auto matcher = compile(GrammarKind::kRegex, "ab?")->match();
  EXPECT_EQ(allowed_tokens(*matcher), std::vector<TokenId>({'a'}));
  EXPECT_FALSE(matcher->is_completed());
  ASSERT_TRUE(matcher->accept('a'));
  EXPECT_TRUE(matcher->is_completed());
  EXPECT_EQ(allowed_tokens(*matcher), std::vector<TokenId>({'b', kByteEnd}));
  ASSERT_TRUE(matcher->accept('b'));
  std::vector<uint32_t> row(token_mask_words(testing::kByteWidth));
  EXPECT_EQ(matcher->fill(row), Allowed::kOnlyEnd);
  EXPECT_FALSE(matcher->accept('b'));
  ASSERT_TRUE(matcher->accept(kByteEnd));
  EXPECT_EQ(matcher->fill(row), Allowed::kNothing);
  EXPECT_FALSE(matcher->accept('b'));
  matcher->rollback(2);  // the end as well
  EXPECT_EQ(allowed_tokens(*matcher), std::vector<TokenId>({'b', kByteEnd}));
}

TEST(Grammar, RefusesWhatIsNoGrammar) {
  const auto backend = testing::byte_backend();
  GrammarSpec spec;
  for (const auto& [kind, text] : std::vector<std::pair<GrammarKind, std::string>>{
           {GrammarKind::kRegex, "("},
           {GrammarKind::kRegex, "(?=a)b"},
           {GrammarKind::kEbnf, "root ::= missing"},
           {GrammarKind::kEbnf, "other ::= \"a\""},
           {GrammarKind::kLark, "start: /["},
           {GrammarKind::kStructuralTag, "{\"type\":\"nothing\"}"},
           {GrammarKind::kJsonSchema, R"({"type":"number","multipleOf":0.3})"}}) {
    spec.kind = kind;
    spec.text = text;
    EXPECT_FALSE(backend->compile(spec)) << text;
  }
}

TEST(Grammar, SavedAndLoadedItIsTheSame) {
  const auto backend = testing::byte_backend();
  GrammarSpec spec;
  spec.kind = GrammarKind::kJsonSchema;
  spec.text = R"({"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}}})";
  const auto grammar = backend->compile(spec);
  ASSERT_TRUE(grammar);
  const auto loaded = backend->load(backend->save(**grammar), spec);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const auto first = (*grammar)->match();
  const auto second = (*loaded)->match();
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const std::vector<TokenId> allowed = allowed_tokens(*first);
    ASSERT_EQ(allowed, allowed_tokens(*second));
    const TokenId token = allowed[random() % allowed.size()];
    if (token == kByteEnd) break;
    ASSERT_TRUE(first->accept(token));
    ASSERT_TRUE(second->accept(token));
  }
  EXPECT_FALSE(backend->load("{\"broken\":", spec));
}

std::shared_ptr<const BoundGrammar> bound(std::shared_ptr<const Grammar> grammar,
                                          std::vector<TokenId> begins_after = {}) {
  return std::make_shared<const BoundGrammar>(
      BoundGrammar{.grammar = std::move(grammar), .begins_after = std::move(begins_after)});
}

TEST(GrammarState, GoesBackWhereTheAnswerDoes) {
  const auto grammar = compile(GrammarKind::kAnyObject, "");
  GrammarState state(bound(grammar));
  const std::vector<TokenId> text = bytes_of(R"({"key": [1, {"b": true}], "c": "d"})");
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const size_t length = random() % (text.size() + 1);
    std::vector<TokenId> drafted(text.begin(), text.begin() + static_cast<ptrdiff_t>(length));
    // A draft that the grammar refuses, or takes where the answer goes on in another way.
    const bool is_refused = random() % 3 == 0;
    if (is_refused) drafted.push_back(kByteControl);
    EXPECT_EQ(state.follow({{}, drafted}), !is_refused);
    const size_t kept = random() % (length + 1);
    ASSERT_TRUE(state.follow({{}, std::span(text).first(kept)}));
    GrammarState fresh(bound(grammar));
    ASSERT_TRUE(fresh.follow({{}, std::span(text).first(kept)}));
    std::vector<uint32_t> row(token_mask_words(testing::kByteWidth));
    std::vector<uint32_t> expected = row;
    EXPECT_EQ(state.fill(row), fresh.fill(expected));
    EXPECT_EQ(row, expected);
  }
}

// What is committed cannot change and is not kept; what is not can, also before the marker.
TEST(GrammarState, KeepsOnlyTokensThatMayStillChange) {
  const auto grammar = compile(GrammarKind::kRegex, "[ab]*");
  const std::vector<TokenId> marker = {kByteMarker, 'x', 'y'};
  GrammarState state(bound(grammar, marker));
  std::vector<TokenId> tokens(3000, 'f');
  tokens.insert(tokens.end(), marker.begin(), marker.end());
  const size_t begin = tokens.size();
  const std::vector<TokenId> answer = bytes_of(std::string(3000, 'a'));
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  std::mt19937 random(3);
  for (size_t num_committed = 0; num_committed < tokens.size();) {
    std::vector<TokenId> tail;
    const size_t most = std::min<size_t>(40, tokens.size() - num_committed);
    for (size_t i = 0; i < 1 + random() % most; ++i) tail.push_back(tokens[num_committed + i]);
    const std::span<const TokenId> committed = std::span(tokens).first(num_committed);
    ASSERT_TRUE(state.follow({committed, tail}));
    ASSERT_EQ(state.is_bound(), num_committed + tail.size() >= begin);
    // A wrong draft, the marker's tokens included.
    tail.back() = num_committed + tail.size() > begin ? 'b' : 'g';
    ASSERT_TRUE(state.follow({committed, tail}));
    ASSERT_EQ(state.is_bound(), num_committed + tail.size() > begin);
    num_committed += random() % (tail.size() + 1);
  }
  EXPECT_LT(state.memory_bytes(), 1024);
  GrammarState later(bound(grammar, marker));
  ASSERT_TRUE(later.follow({tokens, {}}));
  EXPECT_TRUE(later.is_bound());
  EXPECT_LT(later.memory_bytes(), 1024);
}

TEST(GrammarState, BeginsBehindItsMarker) {
  GrammarState state(bound(compile(GrammarKind::kRegex, "ab"), {kByteMarker, 'x'}));
  std::vector<TokenId> tokens = bytes_of("free text");
  ASSERT_TRUE(state.follow({{}, tokens}));
  EXPECT_FALSE(state.is_bound());
  tokens.push_back(kByteMarker);
  ASSERT_TRUE(state.follow({{}, tokens}));
  EXPECT_FALSE(state.is_bound());
  tokens.push_back('x');
  ASSERT_TRUE(state.follow({{}, tokens}));
  EXPECT_TRUE(state.is_bound());
  tokens.push_back('c');
  EXPECT_FALSE(state.follow({{}, tokens}));
  tokens.back() = 'a';
  EXPECT_TRUE(state.follow({{}, tokens}));
  EXPECT_FALSE(state.is_completed());
  tokens.push_back('b');
  EXPECT_TRUE(state.follow({{}, tokens}));
  EXPECT_TRUE(state.is_completed());
  // Back behind its beginning.
  tokens.resize(4);
  EXPECT_TRUE(state.follow({{}, tokens}));
  EXPECT_FALSE(state.is_bound());
}

}  // namespace
}  // namespace sluice
