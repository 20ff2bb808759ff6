// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/forced.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/sampling/grammar/grammar.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

using Tokens = std::vector<TokenId>;

constexpr TokenId kName = 259;    // "name"
constexpr TokenId kQuoted = 260;  // "name\":"

// The single bytes, and two longer tokens.
std::string_view text_of(TokenId token) {
  static const std::string bytes = [] {
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
    return all;
  }();
  if (token == kName) return "name";
  if (token == kQuoted) return "name\":";
  if (token >= 256) return {};
  return std::string_view(bytes).substr(static_cast<size_t>(token), 1);
}

std::shared_ptr<const Grammar> grammar_of(const GrammarSpec& spec) {
  GrammarVocabulary vocabulary = testing::byte_vocabulary();
  vocabulary.tokens.emplace_back(text_of(kName));
  vocabulary.tokens.emplace_back(text_of(kQuoted));
  const auto backend = create_grammar_backend(std::move(vocabulary), {});
  return *(*backend)->compile(spec);
}

std::shared_ptr<const Grammar> regex(const std::string& text) {
  GrammarSpec spec;
  spec.kind = GrammarKind::kRegex;
  spec.text = text;
  return grammar_of(spec);
}

Tokens bytes_of(std::string_view text) {
  Tokens tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// A proposer with one request whose prompt has one token.
class Follower {
 public:
  explicit Follower(std::shared_ptr<const Grammar> grammar,
                    const Tokens& begins_after = {},
                    TokenText text = text_of,
                    const Tokens& generated = {})
      : proposer_(make_forced_proposer(testing::kByteWidth, std::move(text))) {
    known_.insert(known_.end(), generated.begin(), generated.end());
    auto bound = std::make_shared<const BoundGrammar>(
        BoundGrammar{.grammar = std::move(grammar), .begins_after = begins_after});
    proposer_->begin(0, {.num_prompt_tokens = 1, .grammar = std::move(bound)});
  }

  Tokens guess(const Tokens& generated, int32_t max = 16) {
    known_.resize(1);
    known_.insert(known_.end(), generated.begin(), generated.end());
    proposer_->propose(0, known_, max, draft_);
    EXPECT_EQ(draft_.source, DraftSource::kForced);
    return {draft_.guessed().begin(), draft_.guessed().end()};
  }

  [[nodiscard]] const Draft& draft() const { return draft_; }

 private:
  std::unique_ptr<Proposer> proposer_;
  Tokens known_ = {65};
  Draft draft_;
};

TEST(Forced, ARunOfMasksOfOneTokenIsOneDraftUpToTheFirstChoice) {
  Follower follower(regex("xyz(1|2)www"));
  EXPECT_EQ(follower.guess({}), bytes_of("xyz"));
  EXPECT_EQ(follower.guess(bytes_of("xyz")), Tokens{});
  Tokens end = bytes_of("www");
  end.push_back(testing::kByteEnd);
  EXPECT_EQ(follower.guess(bytes_of("xyz1")), end);
  EXPECT_EQ(follower.guess(bytes_of("xyz2w"), 1), bytes_of("w"));
}

// The longest fitting token stands for a text with several spellings, in another bin.
TEST(Forced, OneTextInSeveralSpellingsIsItsLongestToken) {
  const std::shared_ptr<const Grammar> grammar = regex("\"name\":[0-9]");
  Follower follower(grammar);
  EXPECT_EQ(follower.guess({}), (Tokens{'"', kQuoted}));
  EXPECT_NE(follower.draft().bins[0], follower.draft().bins[1]);
  // The answer was spelled otherwise.
  EXPECT_EQ(follower.guess(bytes_of("\"n")), bytes_of("ame\":"));
  EXPECT_EQ(follower.guess({'"', kName}), bytes_of("\":"));
  Follower without_text(grammar, {}, nullptr);
  EXPECT_EQ(without_text.guess({}), Tokens{'"'});
}

TEST(Forced, TokensThatBeginSeveralTextsAreAChoice) {
  Follower follower(regex("(name|mode)"));
  EXPECT_EQ(follower.guess({}), Tokens{});  // "n", "name" and "m"
  EXPECT_EQ(follower.guess(bytes_of("mo")), (Tokens{'d', 'e', testing::kByteEnd}));
}

// Rejected drafts are rolled back, whatever the answer is.
TEST(Forced, FollowsTheAnswerWhereverItWent) {
  Follower follower(regex("(aaaa|abbb|acccc)*z"));
  EXPECT_EQ(follower.guess(bytes_of("aa")), bytes_of("aa"));
  EXPECT_EQ(follower.guess(bytes_of("ab")), bytes_of("bb"));
  EXPECT_EQ(follower.guess(bytes_of("aaaaac")), bytes_of("ccc"));
  EXPECT_EQ(follower.guess(bytes_of("q")), Tokens{});  // refused by the grammar
  EXPECT_EQ(follower.guess(bytes_of("ac")), bytes_of("ccc"));
}

TEST(Forced, BeginsBehindTheMarkerAndWithWhatAnotherWorkerGenerated) {
  const std::shared_ptr<const Grammar> grammar = regex("xy");
  Follower follower(grammar, {testing::kByteMarker});
  EXPECT_EQ(follower.guess(bytes_of("x")), Tokens{});
  Tokens expected = bytes_of("xy");
  expected.push_back(testing::kByteEnd);
  EXPECT_EQ(follower.guess({'x', testing::kByteMarker}), expected);
  Follower continued(grammar, {testing::kByteMarker}, text_of, {testing::kByteMarker});
  EXPECT_EQ(continued.guess({testing::kByteMarker}), expected);
}

// Matchers cost memory and time: a request has one here, and none before its answer is bound.
class CountedGrammar final : public Grammar {
 public:
  explicit CountedGrammar(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {}

  [[nodiscard]] std::unique_ptr<GrammarMatcher> match() const override {
    ++num_matchers;
    return grammar_->match();
  }

  [[nodiscard]] int64_t bytes() const override { return grammar_->bytes(); }

  mutable int num_matchers = 0;

 private:
  std::shared_ptr<const Grammar> grammar_;
};

TEST(Forced, HasOneMatcherOnceTheAnswerIsBound) {
  const auto grammar = std::make_shared<CountedGrammar>(regex("xyz"));
  Follower follower(grammar, {testing::kByteMarker});
  EXPECT_EQ(follower.guess({65}, 3), Tokens{});
  EXPECT_EQ(grammar->num_matchers, 0);
  EXPECT_EQ(follower.guess({65, testing::kByteMarker}, 3), bytes_of("xyz"));
  EXPECT_EQ(follower.guess({65, testing::kByteMarker, 'x'}, 2), bytes_of("yz"));
  EXPECT_EQ(grammar->num_matchers, 1);
}

TEST(Forced, WithoutAGrammarThereIsNoDraftNorOneOfTheRequestBefore) {
  const auto proposer = make_forced_proposer(testing::kByteWidth, text_of);
  const Tokens prompt = {65};
  Draft draft;
  const auto bound = std::make_shared<const BoundGrammar>(BoundGrammar{.grammar = regex("xyz")});
  proposer->begin(0, {.num_prompt_tokens = 1, .grammar = bound});
  proposer->propose(0, prompt, 4, draft);
  EXPECT_GT(draft.size, 0);
  EXPECT_LE(proposer->memory_bytes(), forced_max_bytes(1, 10));
  proposer->end(0, prompt);
  proposer->begin(0, {.num_prompt_tokens = 1});
  proposer->propose(0, prompt, 4, draft);
  EXPECT_EQ(draft.size, 0);
}

}  // namespace
}  // namespace sluice
