// SPDX-License-Identifier: Apache-2.0
#include "engine/core/hex.h"

#include <gtest/gtest.h>

#include <array>

namespace sluice {
namespace {

TEST(Hex, BytesComeBack) {
  const std::array<uint8_t, 4> bytes = {0x00, 0x0f, 0xa5, 0xff};
  EXPECT_EQ(to_hex(bytes), "000fa5ff");
  std::array<uint8_t, 4> read{};
  ASSERT_TRUE(from_hex("000fa5ff", read));
  EXPECT_EQ(read, bytes);
  ASSERT_TRUE(from_hex("000FA5fF", read));
  EXPECT_EQ(read, bytes);
}

TEST(Hex, OtherTextsAreRefused) {
  std::array<uint8_t, 2> bytes{};
  for (const char* bad : {"", "00", "00000", "000000", "000g", "g000", "0x00", "-001", " 001"}) {
    EXPECT_FALSE(from_hex(bad, bytes)) << bad;
  }
}

TEST(Hex, DigitsAreThoseThatAreWritten) {
  EXPECT_TRUE(is_hex(""));
  EXPECT_TRUE(is_hex("0189af"));
  for (const char* bad : {"A", "g", "0x", "/", ":", "`"}) EXPECT_FALSE(is_hex(bad)) << bad;
  EXPECT_EQ(hex_digit('9'), 9);
  EXPECT_EQ(hex_digit('a'), 10);
  EXPECT_EQ(hex_digit('F'), 15);
  for (const char bad : {'g', 'G', '/', ':', '@', '`'}) EXPECT_EQ(hex_digit(bad), -1) << bad;
}

TEST(Hex, PercentEscapesAreDecodedOnce) {
  EXPECT_EQ(percent_decoded("org%2Fname%2f"), "org/name/");
  EXPECT_EQ(percent_decoded("%252F"), "%2F");
  EXPECT_EQ(percent_decoded("%"), "%");
  EXPECT_EQ(percent_decoded("%4"), "%4");
  EXPECT_EQ(percent_decoded("%4g%41"), "%4gA");
}

}  // namespace
}  // namespace sluice
