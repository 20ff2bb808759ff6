// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/suffix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace sluice {
namespace {

using Tokens = std::vector<TokenId>;

struct Sequence {
  uint64_t salt = 0;
  Tokens tokens;
};

int32_t occurrences(const std::vector<Sequence>& all, uint64_t salt, const Tokens& wanted) {
  int32_t count = 0;
  for (const Sequence& one : all) {
    if (one.salt != salt) continue;
    for (size_t begin = 0; begin + wanted.size() <= one.tokens.size(); ++begin) {
      count +=
          std::equal(
              wanted.begin(), wanted.end(), one.tokens.begin() + static_cast<std::ptrdiff_t>(begin))
              ? 1
              : 0;
    }
  }
  return count;
}

// The tokens behind `before`, with their counts.
std::map<TokenId, int32_t> followers(const std::vector<Sequence>& all,
                                     uint64_t salt,
                                     const Tokens& before) {
  std::map<TokenId, int32_t> found;
  for (const Sequence& one : all) {
    if (one.salt != salt) continue;
    for (size_t begin = 0; begin + before.size() < one.tokens.size(); ++begin) {
      if (std::equal(before.begin(),
                     before.end(),
                     one.tokens.begin() + static_cast<std::ptrdiff_t>(begin))) {
        ++found[one.tokens[begin + before.size()]];
      }
    }
  }
  return found;
}

// Checks the count of every substring of at most `depth` tokens against a scan.
void expect_counts(const SuffixTree& tree, const std::vector<Sequence>& all, size_t depth) {
  for (const Sequence& one : all) {
    for (size_t begin = 0; begin < one.tokens.size(); ++begin) {
      for (size_t length = 1; length <= std::min(depth, one.tokens.size() - begin); ++length) {
        const Tokens part(one.tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                          one.tokens.begin() + static_cast<std::ptrdiff_t>(begin + length));
        for (const uint64_t salt : {uint64_t{0}, uint64_t{1}}) {
          ASSERT_EQ(tree.count(salt, part), occurrences(all, salt, part));
        }
      }
    }
  }
}

TEST(SuffixTree, CountsEverySubstringAsAScanDoes) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    const auto depth = static_cast<int32_t>(2 + random() % 7);
    const auto vocab_size = static_cast<TokenId>(1 + random() % 4);
    SuffixTree tree({.max_depth = depth, .max_nodes = 1 << 16, .max_sequences = 100});
    std::vector<Sequence> all;
    const auto num_sequences = 1 + random() % 4;
    for (size_t i = 0; i < num_sequences; ++i) {
      all.push_back({random() % 2, {}});
      tree.open(all.back().salt);
      const size_t length = random() % 30;
      for (size_t j = 0; j < length; ++j) {
        all.back().tokens.push_back(static_cast<TokenId>(random() % vocab_size));
        tree.append(all.back().tokens.back());
        if (random() % 4 == 0) expect_counts(tree, all, static_cast<size_t>(depth));
      }
    }
    tree.close();
    expect_counts(tree, all, static_cast<size_t>(depth));
  }
}

TEST(SuffixTree, OldestSequencesGoAndLeaveNoTrace) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 30; ++round) {
    const auto depth = static_cast<int32_t>(2 + random() % 6);
    const auto limit = static_cast<int32_t>(1 + random() % 4);
    SuffixTree tree({.max_depth = depth, .max_nodes = 1 << 16, .max_sequences = limit});
    std::vector<Sequence> all;
    for (int i = 0; i < 40; ++i) {
      all.push_back({random() % 2, Tokens(1 + random() % 20)});
      tree.open(all.back().salt);
      for (TokenId& token : all.back().tokens) {
        token = static_cast<TokenId>(random() % 3);
        tree.append(token);
      }
      tree.close();
      // Evicted sequences are removed while empty ones arrive.
      for (int j = 0; j < 10; ++j) {
        tree.open(7);
        tree.close();
      }
      if (static_cast<int32_t>(all.size()) > limit) all.erase(all.begin());
      ASSERT_LE(tree.num_sequences(), limit);
      ASSERT_EQ(tree.num_sequences(), static_cast<int32_t>(all.size()));
      expect_counts(tree, all, static_cast<size_t>(depth));
    }
  }
}

TEST(SuffixTree, TextWithoutRepetitionsHasOneNodeAToken) {
  constexpr int32_t kNumTokens = 5000;
  for (const int32_t missing : {0, 1}) {
    SuffixTree tree({.max_depth = 24, .max_nodes = kNumTokens + 1 - missing});  // with the root
    tree.open(0);
    for (TokenId token = 0; token < kNumTokens; ++token) tree.append(token);
    EXPECT_EQ(tree.num_tokens(), kNumTokens - missing);
  }
}

TEST(SuffixTree, StaysWithinItsNodesAndForgetsTheOldestText) {
  std::mt19937_64 random(3);
  SuffixTree tree({.max_depth = 8, .max_nodes = 2000, .max_sequences = 1});
  tree.open(0);
  Tokens text;
  for (int i = 0; i < 50'000; ++i) {
    text.push_back(static_cast<TokenId>(random() % 50));
    tree.append(text.back());
  }
  EXPECT_LE(tree.memory_bytes(), 2100 * 56 + 40'000);
  // The newest part of the text remains, counted as by a scan.
  const Tokens last(text.end() - 8, text.end());
  EXPECT_EQ(tree.count(0, last), 1);
  for (const size_t length : {1, 2, 3}) {
    const Tokens part(text.end() - static_cast<std::ptrdiff_t>(length), text.end());
    const int32_t count = tree.count(0, part);
    size_t kept = text.size();
    for (int32_t seen = 0; kept > 0 && seen < count; --kept) {
      const auto begin = text.begin() + static_cast<std::ptrdiff_t>(kept - 1);
      if (kept - 1 + length <= text.size() && std::equal(part.begin(), part.end(), begin)) ++seen;
    }
    EXPECT_GT(count, 0);
    EXPECT_LT(text.size() - kept, 2000U) << "older than there are nodes";
  }
}

TEST(SuffixTree, TextThatIsAlwaysTheSameIsBoundedToo) {
  const SuffixTreeLimits limits = {
      .max_depth = 8, .max_nodes = 1000, .max_tokens = 5000, .max_sequences = 1000};
  SuffixTree tree(limits);
  for (int sequence = 0; sequence < 3000; ++sequence) {
    tree.open(sequence % 2);
    for (TokenId token = 0; token < 20; ++token) tree.append(token);
    ASSERT_LE(tree.num_tokens(), 5000);
    ASSERT_LE(tree.num_sequences(), 1000 + 64);
    ASSERT_LE(tree.memory_bytes(), SuffixTree::max_memory_bytes(limits));
  }
  EXPECT_GT(tree.num_tokens(), 4900);
}

TEST(SuffixTree, MemoryNeverExceedsWhatIsPlanned) {
  std::mt19937_64 random(6);
  for (const bool reserves : {false, true}) {
    for (const TokenId vocab_size : {1, 4, 60, 10'000}) {
      const SuffixTreeLimits limits = {.max_depth = 12,
                                       .max_nodes = 3000,
                                       .max_tokens = 8000,
                                       .max_sequences = 5,
                                       .reserves = reserves};
      SuffixTree tree(limits);
      for (int i = 0; i < 40'000; ++i) {
        if (i % 10'000 == 0 || random() % 500 == 0) tree.open(random());
        tree.append(static_cast<TokenId>(random() % static_cast<uint64_t>(vocab_size)));
        ASSERT_LE(tree.memory_bytes(), SuffixTree::max_memory_bytes(limits));
      }
    }
  }
}

// The guess for one match length, each token the most frequent one, from the description.
struct Oracle {
  const std::vector<Sequence>& all;
  uint64_t salt;
  SuffixTree::Rules rules;
  int32_t depth;

  [[nodiscard]] size_t most(size_t length) const {
    return std::min<size_t>(
        {static_cast<size_t>(rules.max_tokens),
         static_cast<size_t>(rules.max_spec_factor * static_cast<double>(length)),
         static_cast<size_t>(depth) - length});
  }

  // The least sum that following the most frequent tokens behind `sofar` gives, for any choice
  // among equals.
  [[nodiscard]] double least(const Tokens& sofar, double product, size_t left) const {
    const auto next = followers(all, salt, sofar);
    int32_t total = 0;
    int32_t best = 0;
    for (const auto& [token, count] : next) {
      total += count;
      best = std::max(best, count);
    }
    if (left == 0 || total == 0) return 0;
    const double reached = product * best / total;
    if (reached < rules.min_token_prob) return 0;
    double sum = 1e9;
    for (const auto& [token, count] : next) {
      if (count != best) continue;
      Tokens longer = sofar;
      longer.push_back(token);
      sum = std::min(sum, reached + least(longer, reached, left - 1));
    }
    return sum;
  }

  // Lower bound of the best match's sum.
  [[nodiscard]] double least_best(const Tokens& text) const {
    double best = 0;
    for (size_t length = 1; length <= std::min<size_t>(text.size(), depth - 1); ++length) {
      const Tokens match(text.end() - static_cast<std::ptrdiff_t>(length), text.end());
      best = std::max(best, least(match, 1, most(length)));
    }
    return best;
  }

  // The sum of probabilities of `draft` behind the last `length` tokens of `text`; -1: the draft
  // violates the rules.
  double score(const Tokens& text, size_t length, std::span<const TokenId> draft) const {
    Tokens sofar(text.end() - static_cast<std::ptrdiff_t>(length), text.end());
    double product = 1;
    double sum = 0;
    for (size_t j = 0;; ++j) {
      const auto next = followers(all, salt, sofar);
      int32_t total = 0;
      int32_t best = 0;
      for (const auto& [token, count] : next) {
        total += count;
        best = std::max(best, count);
      }
      const double probability = total > 0 ? static_cast<double>(best) / total : 0;
      const bool goes_on =
          j < most(length) && total > 0 && product * probability >= rules.min_token_prob;
      if (!goes_on) return j == draft.size() ? sum : -1;
      if (j == draft.size() || !next.contains(draft[j]) || next.at(draft[j]) != best) return -1;
      product *= probability;
      sum += product;
      sofar.push_back(draft[j]);
    }
  }
};

// Checks that the oracle allows what `tree` guesses behind `text`.
void expect_guess(const SuffixTree& tree, const Oracle& oracle, const Tokens& text) {
  Draft draft;
  const double score = tree.guess(oracle.salt, text, oracle.rules, draft);
  EXPECT_GE(score, oracle.least_best(text) - 1e-9);
  if (draft.size == 0) {
    EXPECT_EQ(score, 0);
    return;
  }
  bool is_one = false;
  for (size_t length = 1; length <= std::min<size_t>(text.size(), oracle.depth - 1); ++length) {
    is_one = is_one || std::abs(oracle.score(text, length, draft.guessed()) - score) < 1e-9;
  }
  EXPECT_TRUE(is_one);
}

SuffixTree::Rules random_rules(std::mt19937_64& random) {
  return {.max_tokens = static_cast<int32_t>(1 + random() % 8),
          .max_spec_factor = 0.5 * static_cast<double>(1 + random() % 4),
          .min_token_prob = 0.1 * static_cast<double>(random() % 6)};
}

TEST(SuffixTree, GuessIsTheBestOfTheMostFrequentContinuations) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 300; ++round) {
    const auto depth = static_cast<int32_t>(2 + random() % 8);
    const auto vocab_size = static_cast<TokenId>(1 + random() % 5);
    SuffixTree tree({.max_depth = depth, .max_nodes = 1 << 16, .max_sequences = 100});
    std::vector<Sequence> all;
    const auto num_sequences = 1 + random() % 3;
    for (size_t i = 0; i < num_sequences; ++i) {
      all.push_back({random() % 2, Tokens(1 + random() % 40)});
      tree.open(all.back().salt);
      for (TokenId& token : all.back().tokens) {
        token = static_cast<TokenId>(random() % vocab_size);
        tree.append(token);
      }
    }
    // The last sequence is still open.
    expect_guess(tree, {all, all.back().salt, random_rules(random), depth}, all.back().tokens);
  }
}

TEST(SuffixTree, GuessKnowsNothingOfWhatIsGone) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 40; ++round) {
    const auto depth = static_cast<int32_t>(2 + random() % 6);
    const auto vocab_size = static_cast<TokenId>(2 + random() % 4);
    SuffixTree tree({.max_depth = depth, .max_nodes = 1 << 16, .max_sequences = 3});
    std::vector<Sequence> all;
    for (int i = 0; i < 25; ++i) {
      all.push_back({0, Tokens(1 + random() % 25)});
      tree.open(0);
      for (TokenId& token : all.back().tokens) {
        token = static_cast<TokenId>(random() % vocab_size);
        tree.append(token);
      }
      tree.close();
      for (int j = 0; j < 10; ++j) {
        tree.open(7);
        tree.close();
      }
      if (all.size() > 3) all.erase(all.begin());
      Tokens text(1 + random() % 6);
      for (TokenId& token : text) token = static_cast<TokenId>(random() % vocab_size);
      expect_guess(tree, {all, 0, random_rules(random), depth}, text);
    }
  }
}

TEST(SuffixTree, LongerMatchThatIsSureWinsOverAShorterThatIsNot) {
  SuffixTree tree({.max_depth = 16, .max_nodes = 1 << 12});
  tree.open(0);
  const Tokens text = {1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 0, 9, 3, 0, 2, 3};
  for (const TokenId token : text) tree.append(token);
  Draft draft;
  // The continuations of 3 are 0 twice and 4 once; that of 2, 3 is 4.
  EXPECT_NEAR(tree.guess(0, text, {.max_tokens = 8}, draft), 2, 1e-9);
  EXPECT_EQ(Tokens(draft.guessed().begin(), draft.guessed().end()), (Tokens{4, 5}));
}

TEST(SuffixTree, SaltsShareNothing) {
  SuffixTree tree({.max_depth = 8, .max_nodes = 1 << 12, .max_sequences = 10});
  const Tokens secret = {1, 2, 3, 4, 5, 6, 7};
  tree.open(11);
  for (const TokenId token : secret) tree.append(token);
  tree.close();
  Draft draft;
  EXPECT_GT(tree.guess(11, std::span(secret).first(3), {.max_tokens = 4}, draft), 0);
  for (const uint64_t other : {0, 10, 12}) {
    draft.clear(DraftSource::kSuffix);
    EXPECT_EQ(tree.guess(other, std::span(secret).first(3), {.max_tokens = 4}, draft), 0);
    EXPECT_EQ(draft.size, 0);
    EXPECT_EQ(tree.count(other, secret), 0);
  }
}

TEST(SuffixTree, ClearedTreeIsAsNew) {
  std::mt19937_64 random(5);
  SuffixTree used({.max_depth = 6, .max_nodes = 1 << 12});
  used.open(3);
  for (int i = 0; i < 500; ++i) used.append(static_cast<TokenId>(random() % 4));
  used.clear();
  EXPECT_EQ(used.num_tokens(), 0);
  std::vector<Sequence> all = {{0, Tokens(40)}};
  used.open(0);
  for (TokenId& token : all[0].tokens) {
    token = static_cast<TokenId>(random() % 3);
    used.append(token);
  }
  expect_counts(used, all, 6);
}

}  // namespace
}  // namespace sluice
