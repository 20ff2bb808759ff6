// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/ngram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "engine/spec/ngram_index.h"

namespace sluice {
namespace {

using Tokens = std::vector<TokenId>;

Tokens random_text(std::mt19937_64& random, size_t length, int32_t vocab_size) {
  Tokens text(length);
  for (TokenId& token : text) token = static_cast<TokenId>(random() % vocab_size);
  // Copies parts, as in an answer that quotes.
  for (int copy = 0; copy < 3 && length > 40; ++copy) {
    const size_t from = random() % (length / 2);
    const size_t to = length / 2 + random() % (length / 4);
    std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(from),
                std::min<size_t>(30, length - to),
                text.begin() + static_cast<std::ptrdiff_t>(to));
  }
  return text;
}

// Finds the positions behind every earlier occurrence of the last n tokens by a full scan.
std::vector<size_t> scan(const Tokens& text, size_t n) {
  std::vector<size_t> found;
  for (size_t next = n; next < text.size(); ++next) {
    if (std::equal(text.end() - static_cast<std::ptrdiff_t>(n),
                   text.end(),
                   text.begin() + static_cast<std::ptrdiff_t>(next - n))) {
      found.push_back(next);
    }
  }
  return found;
}

// Prompt lookup's guess according to its description.
Tokens scanned_guess(const Tokens& text, int32_t min_n, int32_t max_n, int32_t max) {
  for (const int32_t n : {max_n, min_n}) {
    if (text.size() < static_cast<size_t>(n)) continue;
    const auto found = scan(text, static_cast<size_t>(n));
    if (found.empty()) continue;
    Tokens whole = text;
    for (int32_t j = 0; j < max; ++j) whole.push_back(whole[found.back() + static_cast<size_t>(j)]);
    return {whole.end() - max, whole.end()};
  }
  return {};
}

RequestRecord record_of(const Tokens& known) {
  return {.num_prompt_tokens = static_cast<int32_t>(known.size())};
}

TEST(NgramIndex, FindsTheLatestTwoOccurrencesAsAScanDoes) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const auto n = static_cast<int32_t>(1 + random() % 5);
    const Tokens text = random_text(random, 1 + random() % 300, 1 + random() % 6);
    NgramIndex index(n);
    Tokens known;
    for (const TokenId token : text) {
      known.push_back(token);
      ASSERT_TRUE(index.extend(known, known.size()));
      const NgramIndex::Match match = index.find(known);
      const auto found =
          known.size() >= static_cast<size_t>(n) ? scan(known, n) : std::vector<size_t>{};
      ASSERT_EQ(match.latest, found.empty() ? 0 : found.back());
      ASSERT_EQ(match.previous, found.size() < 2 ? 0 : found[found.size() - 2]);
    }
  }
}

TEST(NgramIndex, TextThatComesInPiecesIsTheSame) {
  std::mt19937_64 random(2);
  const Tokens text = random_text(random, 5000, 8);
  NgramIndex whole(3);
  ASSERT_TRUE(whole.extend(text, text.size()));
  NgramIndex pieces(3);
  int calls = 1;
  while (!pieces.extend(text, 64)) ++calls;
  EXPECT_EQ(calls, (5000 - 3 + 63) / 64);
  EXPECT_EQ(pieces.find(text).latest, whole.find(text).latest);
  EXPECT_EQ(pieces.find(text).previous, whole.find(text).previous);
}

TEST(NgramIndex, TokensThatShareAHashAreNoMatch) {
  // With 64 entries for 30 different pairs, hashes share places in the table.
  NgramIndex index(1);
  Tokens text(30);
  std::iota(text.begin(), text.end(), 0);
  ASSERT_TRUE(index.extend(text, text.size()));
  for (TokenId token = 0; token < 29; ++token) {
    Tokens asked = text;
    asked.push_back(token);
    ASSERT_TRUE(index.extend(asked, 1) && index.find(asked).latest == token + 1U) << token;
    index.clear();
    ASSERT_TRUE(index.extend(text, text.size()));
  }
}

TEST(NgramIndex, TakesAtMost32BytesAToken) {
  std::mt19937_64 random(3);
  NgramIndex index(5);
  const Tokens text = random_text(random, 40'000, 30'000);
  for (size_t length = 1000; length <= text.size(); length += 1000) {
    ASSERT_TRUE(index.extend(std::span(text).first(length), length));
    EXPECT_LE(index.memory_bytes(), 32 * static_cast<int64_t>(length));
  }
}

TEST(Ngram, GuessesAsAScanWouldAtEveryStep) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 100; ++round) {
    const auto min_n = static_cast<int32_t>(1 + random() % 3);
    const auto max_n = static_cast<int32_t>(min_n + random() % 3);
    const auto proposer = make_ngram_proposer(min_n, max_n);
    const Tokens text = random_text(random, 10 + random() % 200, 2 + random() % 6);
    Tokens known(text.begin(), text.begin() + 5);
    proposer->begin(0, record_of(known));
    for (size_t i = 5; i < text.size(); ++i) {
      const auto max = static_cast<int32_t>(1 + random() % 20);
      Draft draft;
      proposer->propose(0, known, max, draft);
      ASSERT_EQ(Tokens(draft.guessed().begin(), draft.guessed().end()),
                scanned_guess(known, min_n, max_n, max));
      known.push_back(text[i]);
    }
  }
}

TEST(Ngram, RepetitionGoesOnBeyondWhatIsKnown) {
  const auto proposer = make_ngram_proposer(2, 2);
  const Tokens known = {9, 1, 2, 3, 1, 2, 3, 1, 2};
  proposer->begin(0, record_of(known));
  Draft draft;
  proposer->propose(0, known, 8, draft);
  EXPECT_EQ(Tokens(draft.guessed().begin(), draft.guessed().end()),
            (Tokens{3, 1, 2, 3, 1, 2, 3, 1}));
}

TEST(Ngram, LongerMatchesAndThoseThatAgreeAreInBinsOfTheirOwn) {
  const auto proposer = make_ngram_proposer(2, 2);
  Draft draft;
  const auto bin_of = [&](const Tokens& known) {
    proposer->begin(0, record_of(known));
    proposer->propose(0, known, 1, draft);
    EXPECT_EQ(draft.size, 1);
    return draft.bins[0];
  };
  const uint8_t once = bin_of({1, 2, 3, 1, 2});
  const uint8_t agrees = bin_of({1, 2, 3, 1, 2, 3, 9, 1, 2});
  const uint8_t disagrees = bin_of({1, 2, 4, 1, 2, 3, 9, 1, 2});
  const uint8_t longer = bin_of({5, 6, 7, 1, 2, 3, 9, 5, 6, 7, 1, 2});
  EXPECT_EQ(
      (std::vector<uint8_t>{once, agrees, disagrees, longer}),
      (std::vector<uint8_t>{
          confidence_bin(2, 0), confidence_bin(2, 1), confidence_bin(2, 2), confidence_bin(5, 0)}));
}

TEST(Ngram, LongPromptIsTakenInOverSeveralStepsAndThenGuessed) {
  std::mt19937_64 random(5);
  Tokens known = random_text(random, 20'000, 1000);
  std::copy_n(known.begin() + 100, 10, known.end() - 10);
  const auto proposer = make_ngram_proposer(5, 5);
  proposer->begin(0, record_of(known));
  Draft draft;
  int calls = 1;
  for (proposer->propose(0, known, 4, draft); draft.size == 0 && calls < 10; ++calls) {
    proposer->propose(0, known, 4, draft);
  }
  EXPECT_EQ(calls, 5);  // 4096 tokens per call
  EXPECT_EQ(draft.tokens[0], known[110]);
}

TEST(Ngram, SlotThatIsUsedAgainKnowsNothingOfTheRequestBefore) {
  const auto proposer = make_ngram_proposer(2, 2);
  const Tokens first = {1, 2, 3, 4, 1, 2};
  const Tokens second = {7, 8, 1, 2};
  Draft draft;
  proposer->begin(0, record_of(first));
  proposer->propose(0, first, 4, draft);
  EXPECT_GT(draft.size, 0);
  proposer->end(0, first);
  proposer->begin(0, record_of(second));
  proposer->propose(0, second, 4, draft);
  EXPECT_EQ(draft.size, 0);
}

}  // namespace
}  // namespace sluice
