// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

// One token per byte, with its value as the id, then the tokens named by the test.
std::unique_ptr<Tokenizer> byte_tokenizer(const std::vector<std::string>& more = {}) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(spell_byte(static_cast<uint8_t>(byte)));
  }
  vocabulary.token_types.assign(256, TokenType::kNormal);
  for (const std::string& name : more) {
    vocabulary.tokens.push_back(name);
    vocabulary.token_types.push_back(TokenType::kControl);
  }
  auto tokenizer = create_tokenizer(std::move(vocabulary));
  EXPECT_TRUE(tokenizer.has_value());
  return std::move(*tokenizer);
}

struct Streamed {
  std::string text;
  int matched_stop = -1;
  size_t num_bytes = 0;  // when the stop was found
};

Streamed stream(const Tokenizer& tokenizer, std::string_view bytes, const StopConfig& stop) {
  Detokenizer detokenizer(tokenizer, stop, /*skip_special_tokens=*/true);
  Streamed result;
  for (const char c : bytes) {
    auto [text, matched] = detokenizer.append(static_cast<uint8_t>(c));
    EXPECT_EQ(find_invalid_utf8(text, 0), text.size());
    result.text += text;
    if (result.matched_stop >= 0) {
      EXPECT_TRUE(text.empty() && matched == -1);
      continue;
    }
    ++result.num_bytes;
    result.matched_stop = matched;
  }
  result.text += detokenizer.finish();
  EXPECT_EQ(detokenizer.finish(), "");
  return result;
}

TEST(Detokenizer, BrokenBytesBecomeOneReplacementPerMaximalSubpart) {
  const auto tokenizer = byte_tokenizer();
  // Results as in Python's bytes.decode("utf-8", "replace"); R stands for U+FFFD.
  const std::pair<const char*, const char*> cases[] = {
      {"a\xE2\x82\xAC"
       "b",
       "a\xE2\x82\xAC"
       "b"},
      {"\xFF", "R"},
      {"\xC0\xAF", "RR"},
      {"\xE2\x82", "R"},
      {"\xE2\x82"
       "a",
       "Ra"},
      {"\xE2\xE2\x82\xAC", "R\xE2\x82\xAC"},
      {"\xF0\x9F\x92", "R"},
      {"\xF0\x9F\x92\xF0\x9F\x92\xA9", "R\xF0\x9F\x92\xA9"},
      {"\xED\xA0\x80", "RRR"},
      {"\xE0\x80\x80", "RRR"},
      {"\xF4\x90\x80\x80", "RRRR"},
      {"\xF0\x80\x80", "RRR"},
      {"\x80\xBF"
       "x",
       "RRx"},
      {"\xF1\x80\x80"
       "z\xC2",
       "RzR"},
  };
  for (const auto& [bytes, expected] : cases) {
    std::string want;
    for (const char* c = expected; *c != 0; ++c) {
      if (*c == 'R') {
        want += kReplacementCharacter;
      } else {
        want += *c;
      }
    }
    EXPECT_EQ(stream(*tokenizer, bytes, {}).text, want);
  }
}

TEST(Detokenizer, CharacterComesWithItsLastByteAndNotBefore) {
  const auto tokenizer = byte_tokenizer();
  Detokenizer detokenizer(*tokenizer, {}, true);
  EXPECT_EQ(detokenizer.append(0xF0).text, "");
  EXPECT_EQ(detokenizer.append(0x9F).text, "");
  EXPECT_EQ(detokenizer.append(0xA6).text, "");
  EXPECT_EQ(detokenizer.append(0x99).text, "\xF0\x9F\xA6\x99");
  EXPECT_EQ(detokenizer.append('a').text, "a");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, SpecialTokensAreHiddenOrNamed) {
  const auto tokenizer = byte_tokenizer({"<|im_end|>"});
  for (const bool skip : {false, true}) {
    Detokenizer detokenizer(*tokenizer, {}, skip);
    EXPECT_EQ(detokenizer.append('a').text, "a");
    EXPECT_EQ(detokenizer.append(256).text, skip ? "" : "<|im_end|>");
    EXPECT_EQ(detokenizer.append(-1).text, "");
    EXPECT_EQ(detokenizer.append(999).text, "");
  }
}

TEST(Detokenizer, TextIsHeldOnlyAsFarAsItMayBeAStop) {
  const auto tokenizer = byte_tokenizer();
  Detokenizer detokenizer(*tokenizer, {{"###END"}}, true);
  EXPECT_EQ(detokenizer.append('x').text, "x");
  EXPECT_EQ(detokenizer.append('#').text, "");
  EXPECT_EQ(detokenizer.append('#').text, "");
  EXPECT_EQ(detokenizer.append('#').text, "");
  EXPECT_EQ(detokenizer.append('#').text, "#");
  EXPECT_EQ(detokenizer.append('E').text, "");
  EXPECT_EQ(detokenizer.append('x').text, "###Ex");
  EXPECT_EQ(detokenizer.append('#').text, "");
  EXPECT_EQ(detokenizer.finish(), "#");
  EXPECT_EQ(detokenizer.append('y').text, "");
}

TEST(Detokenizer, StopThatEndsFirstWinsThenTheLongestThenTheFirst) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_EQ(stream(*tokenizer, "xabcd", {{"abcd", "bc"}}).matched_stop, 1);
  EXPECT_EQ(stream(*tokenizer, "xabcd", {{"abcd", "bc"}}).text, "xa");
  EXPECT_EQ(stream(*tokenizer, "xabcd", {{"bc", "abc", "c"}}).matched_stop, 1);
  EXPECT_EQ(stream(*tokenizer, "xabcd", {{"bc", "abc", "c"}}).text, "x");
  EXPECT_EQ(stream(*tokenizer, "xabcd", {{"zz", "bc", "bc"}}).matched_stop, 1);
  EXPECT_EQ(stream(*tokenizer, "xabcd", {{"abc"}, true}).text, "xabc");
}

TEST(Detokenizer, NoStopEndsInTheTextOfTheFirstMinTokens) {
  const auto tokenizer = byte_tokenizer();
  const auto ended = [&](std::string_view bytes, int32_t min_tokens, bool included = false) {
    const Streamed found = stream(*tokenizer, bytes, {{"aba"}, included, min_tokens});
    return std::pair(found.text, found.num_bytes);
  };
  EXPECT_EQ(ended("xabay", 0), std::pair(std::string("x"), size_t{4}));
  EXPECT_EQ(ended("xabay", 3), std::pair(std::string("x"), size_t{4}));
  EXPECT_EQ(ended("xabay", 4), std::pair(std::string("xabay"), size_t{5}));
  // A match that begins before the limit and ends behind it counts, also as a failed one's rest.
  EXPECT_EQ(ended("xababay", 4), std::pair(std::string("xab"), size_t{6}));
  EXPECT_EQ(ended("xababay", 4, true), std::pair(std::string("xababa"), size_t{6}));
  EXPECT_EQ(ended("xabaababay", 9), std::pair(std::string("xabaababay"), size_t{10}));
  EXPECT_EQ(ended("abaabaaba", 7), std::pair(std::string("abaaba"), size_t{9}));
}

TEST(Detokenizer, TextOfAPassedStopIsNotHeld) {
  const auto tokenizer = byte_tokenizer();
  Detokenizer detokenizer(*tokenizer, {{"ab"}, false, 2}, true);
  EXPECT_EQ(detokenizer.append('a').text, "");
  EXPECT_EQ(detokenizer.append('b').text, "ab");
  EXPECT_EQ(detokenizer.append('a').text, "");
  EXPECT_EQ(detokenizer.append('b').matched_stop, 0);
}

TEST(Detokenizer, StopThatOnlyTheEndOfTheStreamCompletesWaitsForMinTokensToo) {
  const auto tokenizer = byte_tokenizer();
  const std::string stop = "b" + std::string(kReplacementCharacter);
  EXPECT_EQ(stream(*tokenizer, "ab\xE2\x82", {{stop}, false, 3}).text, "a");
  EXPECT_EQ(stream(*tokenizer, "ab\xE2\x82", {{stop}, false, 4}).text, "a" + stop);
}

TEST(Detokenizer, NameOfAHiddenTokenEndsTheTextThere) {
  const auto tokenizer = byte_tokenizer({"<|im_end|>", "<|other|>"});
  constexpr TokenId kEnd = 256;
  constexpr TokenId kOther = 257;
  const StopConfig stop{{"zz", "<|im_end|>"}};
  for (const bool skip : {true, false}) {
    for (const bool included : {true, false}) {
      StopConfig config = stop;
      config.include_in_output = included;
      Detokenizer detokenizer(*tokenizer, config, skip);
      const std::string shown = skip ? "" : "<|other|>";
      EXPECT_EQ(detokenizer.append('a').text, "a");
      EXPECT_EQ(detokenizer.append(kOther).text, shown);
      EXPECT_EQ(detokenizer.append('z').text, "");  // held: may begin a stop
      EXPECT_EQ(detokenizer.append(0xE2).text, "");
      const auto result = detokenizer.append(kEnd);
      // Held text is released with the match, and an incomplete character is replaced.
      EXPECT_EQ(result.text,
                "z" + std::string(kReplacementCharacter) + (included ? "<|im_end|>" : ""));
      EXPECT_EQ(result.matched_stop, 1);
      EXPECT_EQ(detokenizer.append('b').text, "");
      EXPECT_EQ(detokenizer.finish(), "");
    }
  }
  // Hidden tokens count toward min_tokens, and end nothing before.
  StopConfig later = stop;
  later.min_tokens = 2;
  Detokenizer detokenizer(*tokenizer, later, true);
  EXPECT_EQ(detokenizer.append(kEnd).matched_stop, -1);
  EXPECT_EQ(detokenizer.append(kEnd).matched_stop, -1);
  EXPECT_EQ(detokenizer.append('a').text, "a");
  EXPECT_EQ(detokenizer.append(kEnd).matched_stop, 1);
  // A part of a name does not match.
  Detokenizer part(*tokenizer, {{"<|im", "im_end|>"}}, true);
  EXPECT_EQ(part.append(kEnd).matched_stop, -1);
  EXPECT_EQ(part.append('a').text, "a");
}

TEST(Detokenizer, StopStringsCrossTokensAndCharacters) {
  const auto tokenizer =
      byte_tokenizer({"ab\xE2\x82\xAC"
                      "c\xE2\x82\xAC"
                      "d"});
  Detokenizer detokenizer(*tokenizer,
                          {{"\xE2\x82\xAC"
                            "d"
                            "e"}},
                          false);
  auto result = detokenizer.append(256);
  EXPECT_EQ(result.text,
            "ab\xE2\x82\xAC"
            "c");
  result = detokenizer.append('e');
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.matched_stop, 0);
  EXPECT_EQ(detokenizer.append('f').text, "");
  EXPECT_EQ(detokenizer.append('f').matched_stop, -1);
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, StopMayContainTheReplacementCharacter) {
  const auto tokenizer = byte_tokenizer();
  const StopConfig stop{{"b" + std::string(kReplacementCharacter)}};
  EXPECT_EQ(stream(*tokenizer, "ab\xFFz", stop).text, "a");
  EXPECT_EQ(stream(*tokenizer, "ab\xE2\x82", stop).text, "a");  // undecided until the end
}

// The plain definition: replace invalid parts in all bytes, then search for stops.
std::string decode_all(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Part part = next_utf8_part(bytes, i);
    if (part.kind == Utf8Kind::kCharacter) {
      text += bytes.substr(i, part.length);
    } else {
      text += kReplacementCharacter;
    }
    i += part.length;
  }
  return text;
}

Streamed decode_then_find(const Tokenizer& tokenizer,
                          std::string_view bytes,
                          const StopConfig& stop) {
  const std::string text = decode_all(bytes);
  // The text after min_tokens tokens, or all of it if there are no more.
  const auto min_tokens = static_cast<size_t>(stop.min_tokens);
  size_t before = 0;
  Detokenizer plain(tokenizer, {}, true);
  for (size_t i = 0; i < std::min(bytes.size(), min_tokens); ++i) {
    before += plain.append(static_cast<uint8_t>(bytes[i])).text.size();
  }
  if (bytes.size() <= min_tokens) before = text.size();
  Streamed best{text, -1};
  size_t best_end = std::string::npos;
  for (size_t i = 0; i < stop.strings.size(); ++i) {
    const std::string& pattern = stop.strings[i];
    // The first match that ends behind `before`.
    const size_t from = before < pattern.size() ? 0 : before + 1 - pattern.size();
    const size_t begin = text.find(pattern, from);
    if (begin == std::string::npos) continue;
    const size_t end = begin + pattern.size();
    const bool longer =
        best.matched_stop >= 0 && pattern.size() > stop.strings[best.matched_stop].size();
    if (end > best_end || (end == best_end && !longer)) continue;
    best_end = end;
    best.matched_stop = static_cast<int>(i);
    best.text = text.substr(0, stop.include_in_output ? end : begin);
  }
  return best;
}

TEST(Detokenizer, RandomStreamsEqualDecodingEverythingFirst) {
  const auto tokenizer = byte_tokenizer();
  const std::string pieces[] = {"a", "b", "ab", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\xA6\x99"};
  std::mt19937 random(11);
  int num_matches = 0;
  for (int round = 0; round < 20000; ++round) {
    StopConfig stop;
    stop.include_in_output = random() % 2 == 0;
    if (random() % 2 == 0) stop.min_tokens = static_cast<int32_t>(random() % 30);
    for (size_t i = random() % 4; i > 0; --i) {
      std::string pattern;
      for (size_t j = 1 + random() % 5; j > 0; --j) pattern += pieces[random() % 6];
      stop.strings.push_back(pattern);
    }
    std::string bytes;
    for (size_t j = random() % 30; j > 0; --j) {
      std::string piece = pieces[random() % 6];
      if (random() % 8 == 0) piece.pop_back();
      if (random() % 16 == 0) piece += static_cast<char>(random());
      bytes += piece;
    }
    const Streamed expected = decode_then_find(*tokenizer, bytes, stop);
    const Streamed found = stream(*tokenizer, bytes, stop);
    ASSERT_EQ(found.text, expected.text) << "round " << round;
    // A match completed only by the end of the stream has no token to be reported with.
    if (found.matched_stop >= 0 || expected.matched_stop < 0) {
      ASSERT_EQ(found.matched_stop, expected.matched_stop) << "round " << round;
    }
    num_matches += found.matched_stop >= 0 ? 1 : 0;
  }
  EXPECT_GT(num_matches, 1000);
}

TEST(Detokenizer, EverySplitIntoTokensGivesTheSameText) {
  const std::string bytes =
      "\xE2\x82\xAC\xF0\x9F\xA6\x99\xFF"
      "stop";
  for (uint32_t cuts = 0; cuts < (1U << (bytes.size() - 1)); ++cuts) {
    std::vector<std::string> tokens(1);
    for (size_t i = 0; i < bytes.size(); ++i) {
      tokens.back() += bytes[i];
      if ((cuts >> i) & 1U) tokens.emplace_back();
    }
    Vocabulary vocabulary;
    vocabulary.model = "gpt2";
    vocabulary.pre = "gpt-2";
    for (const std::string& token : tokens) {
      std::string spelled;
      for (const char c : token) spelled += spell_byte(static_cast<uint8_t>(c));
      vocabulary.tokens.push_back(spelled);
    }
    auto tokenizer = create_tokenizer(std::move(vocabulary));
    ASSERT_TRUE(tokenizer.has_value());
    Detokenizer detokenizer(**tokenizer, {{"sto"}}, true);
    std::string text;
    int matched = -1;
    for (TokenId id = 0; id < (*tokenizer)->vocab_size(); ++id) {
      const auto result = detokenizer.append(id);
      text += result.text;
      matched = std::max(matched, result.matched_stop);
    }
    ASSERT_EQ(text + detokenizer.finish(), "\xE2\x82\xAC\xF0\x9F\xA6\x99\xEF\xBF\xBD") << cuts;
    ASSERT_EQ(matched, 0);
  }
}

}  // namespace
}  // namespace sluice
