// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/forced.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampling/grammar/grammar_state.h"
#include "tests/support/byte_grammar.h"

namespace sluice {
namespace {

using Tokens = std::vector<TokenId>;

constexpr TokenId kName = 259;    // "name"
constexpr TokenId kQuoted = 260;  // "name\":"

// The bytes, and two tokens of several.
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

// A proposer with one request, whose prompt has one token.
class Follower {
 public:
  explicit Follower(const GrammarState& state,
                    TokenText text = text_of,
                    const Tokens& generated = {})
      : proposer_(make_forced_proposer(testing::kByteWidth, std::move(text))) {
    known_.insert(known_.end(), generated.begin(), generated.end());
    proposer_->begin(0, {.known = known_, .num_prompt_tokens = 1, .grammar = &state});
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
  const GrammarState state(regex("xyz(1|2)www"), {});
  Follower follower(state);
  EXPECT_EQ(follower.guess({}), bytes_of("xyz"));
  EXPECT_EQ(follower.guess(bytes_of("xyz")), Tokens{});
  Tokens end = bytes_of("www");
  end.push_back(testing::kByteEnd);
  EXPECT_EQ(follower.guess(bytes_of("xyz1")), end);
  EXPECT_EQ(follower.guess(bytes_of("xyz2w"), 1), bytes_of("w"));
}

// The longest token that fits stands for a text with several spellings; it is another bin.
TEST(Forced, OneTextInSeveralSpellingsIsItsLongestToken) {
  const GrammarState state(regex("\"name\":[0-9]"), {});
  Follower follower(state);
  EXPECT_EQ(follower.guess({}), (Tokens{'"', kQuoted}));
  EXPECT_NE(follower.draft().bins[0], follower.draft().bins[1]);
  // The answer was spelled otherwise.
  EXPECT_EQ(follower.guess(bytes_of("\"n")), bytes_of("ame\":"));
  EXPECT_EQ(follower.guess({'"', kName}), bytes_of("\":"));
  Follower without_text(state, nullptr);
  EXPECT_EQ(without_text.guess({}), Tokens{'"'});
}

TEST(Forced, TokensThatBeginSeveralTextsAreAChoice) {
  const GrammarState state(regex("(name|mode)"), {});
  Follower follower(state);
  EXPECT_EQ(follower.guess({}), Tokens{});  // "n", "name" and "m"
  EXPECT_EQ(follower.guess(bytes_of("mo")), (Tokens{'d', 'e', testing::kByteEnd}));
}

// Drafts that were not accepted are taken back, wherever the answer went.
TEST(Forced, FollowsTheAnswerWhereverItWent) {
  const GrammarState state(regex("(aaaa|abbb|acccc)*z"), {});
  Follower follower(state);
  EXPECT_EQ(follower.guess(bytes_of("aa")), bytes_of("aa"));
  EXPECT_EQ(follower.guess(bytes_of("ab")), bytes_of("bb"));
  EXPECT_EQ(follower.guess(bytes_of("aaaaac")), bytes_of("ccc"));
  EXPECT_EQ(follower.guess(bytes_of("q")), Tokens{});  // what the grammar refuses
  EXPECT_EQ(follower.guess(bytes_of("ac")), bytes_of("ccc"));
}

TEST(Forced, BeginsBehindTheMarkerAndWithWhatAnotherWorkerGenerated) {
  const GrammarState state(regex("xy"), {testing::kByteMarker});
  Follower follower(state);
  EXPECT_EQ(follower.guess(bytes_of("x")), Tokens{});
  Tokens expected = bytes_of("xy");
  expected.push_back(testing::kByteEnd);
  EXPECT_EQ(follower.guess({'x', testing::kByteMarker}), expected);
  EXPECT_EQ(Follower(state, text_of, {testing::kByteMarker}).guess({testing::kByteMarker}),
            expected);
}

// The state that it was told of is somebody else's to move.
TEST(Forced, LeavesTheStateOfTheSamplerAlone) {
  GrammarState state(regex("xyz"), {});
  ASSERT_TRUE(state.follow(bytes_of("xy")));
  Follower follower(state);
  EXPECT_EQ(follower.guess({}, 3), bytes_of("xyz"));
  EXPECT_TRUE(state.accept('z'));
}

TEST(Forced, WithoutAGrammarThereIsNoDraftNorOneOfTheRequestBefore) {
  const GrammarState state(regex("xyz"), {});
  const auto proposer = make_forced_proposer(testing::kByteWidth, text_of);
  const Tokens prompt = {65};
  Draft draft;
  proposer->begin(0, {.known = prompt, .num_prompt_tokens = 1, .grammar = &state});
  proposer->propose(0, prompt, 4, draft);
  EXPECT_GT(draft.size, 0);
  EXPECT_LE(proposer->memory_bytes(), forced_max_bytes(1, 10));
  proposer->end(0, prompt);
  proposer->begin(0, {.known = prompt, .num_prompt_tokens = 1});
  proposer->propose(0, prompt, 4, draft);
  EXPECT_EQ(draft.size, 0);
}

}  // namespace
}  // namespace sluice
