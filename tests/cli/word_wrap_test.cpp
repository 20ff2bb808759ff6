// SPDX-License-Identifier: Apache-2.0
// How answers of `sluice chat` are broken into lines.
#include "server/cli/word_wrap.h"

#include <gtest/gtest.h>

#include <clocale>
#include <string>
#include <string_view>

namespace sluice {
namespace {

// What is shown of `text` that comes in pieces of `piece` bytes.
std::string wrapped(std::string_view text, size_t width, size_t piece = 1) {
  std::string shown;
  WordWrap wrap(width, [&shown](std::string_view part) { shown += part; });
  for (size_t at = 0; at < text.size(); at += piece) wrap.add(text.substr(at, piece));
  wrap.finish();
  return shown;
}

TEST(WordWrap, BreaksAtSpaces) {
  for (const size_t piece : {1U, 3U, 100U}) {
    EXPECT_EQ(wrapped("one two three four", 9, piece), "one two\nthree\nfour");
    EXPECT_EQ(wrapped("one two\nthree  four \n", 20, piece), "one two\nthree  four \n");
    EXPECT_EQ(wrapped("exactly ten", 11, piece), "exactly ten");
    EXPECT_EQ(wrapped("exactly ten", 10, piece), "exactly\nten");
  }
  EXPECT_EQ(wrapped("as it is, however long", 0), "as it is, however long");
}

TEST(WordWrap, LosesNothingOfWordsLongerThanALine) {
  EXPECT_EQ(wrapped("a abcdefghij b", 4), "a\nabcd\nefgh\nij b");
}

TEST(WordWrap, CountsColumnsAndNotBytes) {
  std::setlocale(LC_CTYPE, "C.UTF-8");
  EXPECT_EQ(wrapped("Köln über", 9), "Köln über");
  EXPECT_EQ(wrapped("Köln über", 8), "Köln\nüber");
  EXPECT_EQ(wrapped("漢字漢字", 6), "漢字漢\n字");  // no spaces, two columns each
  EXPECT_EQ(wrapped("\xff\xff", 8), "\xff\xff");
}

TEST(WordWrap, LeavesCodeAsItIs) {
  const std::string code = "see\n```py\nreturn a + b + c + d\n```\n";
  EXPECT_EQ(wrapped(code + "one two three", 9), code + "one two\nthree");
}

}  // namespace
}  // namespace sluice
