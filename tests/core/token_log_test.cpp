// SPDX-License-Identifier: Apache-2.0
#include "engine/core/token_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

namespace sluice {
namespace {

std::vector<TokenId> counted(size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(TokenLog, TokensStayWhereTheyAreWhileOthersRead) {
  constexpr size_t kPrompt = 10;
  constexpr size_t kAll = 20'000;
  const std::vector<TokenId> all = counted(kAll);
  TokenLog log(counted(kPrompt), kAll);
  const std::span<const TokenId> prompt = log.tokens();
  std::thread reader([&] {
    size_t seen = 0;
    while (seen < kAll) {
      const std::span<const TokenId> now = log.tokens();
      EXPECT_GE(now.size(), seen);
      EXPECT_EQ(now.data(), prompt.data());
      EXPECT_EQ(now.back(), static_cast<TokenId>(now.size()) - 1);
      seen = now.size();
    }
  });
  for (size_t at = kPrompt; at < kAll; at += 5) log.append(std::span(all).subspan(at, 5));
  reader.join();
  EXPECT_TRUE(std::ranges::equal(log.tokens(), all));
}

std::vector<TokenId> copy_of(const TokenSequence& sequence) {
  std::vector<TokenId> tokens(sequence.size());
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = sequence[i];
  return tokens;
}

TEST(TokenSequence, EveryCutGivesTheSameTokens) {
  const std::vector<TokenId> all = {3, 1, 2, 1, 2, 4, 5};
  const auto part = [&](size_t begin, size_t end) {
    return std::vector<TokenId>(all.begin() + static_cast<ptrdiff_t>(begin),
                                all.begin() + static_cast<ptrdiff_t>(end));
  };
  for (size_t cut = 0; cut <= all.size(); ++cut) {
    const TokenSequence sequence = {std::span(all).first(cut), std::span(all).subspan(cut)};
    EXPECT_EQ(copy_of(sequence), all);
    for (size_t at = 0; at <= all.size(); ++at) {
      EXPECT_EQ(copy_of(sequence.from(at)), part(at, all.size()));
      EXPECT_EQ(copy_of(sequence.first(at)), part(0, at));
      EXPECT_TRUE(sequence.ends_with(part(at, all.size())));
      EXPECT_EQ(sequence.ends_with(part(0, at)), at == 0 || at == all.size());
      EXPECT_EQ(sequence.first(at).find(part(0, all.size())).has_value(), at == all.size());
    }
    EXPECT_EQ(sequence.find(part(1, 3)), 1U);  // the first of two
    EXPECT_EQ(sequence.find(part(3, 6)), 3U);
    EXPECT_EQ(sequence.find({}), 0U);
    EXPECT_FALSE(sequence.find(std::vector<TokenId>{1, 4}));
  }
  EXPECT_TRUE(TokenSequence{}.empty());
}

}  // namespace
}  // namespace sluice
