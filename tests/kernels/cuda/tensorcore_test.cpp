// SPDX-License-Identifier: Apache-2.0
// The models of tensor cores, compared with an H200's answers: FP8 by wgmma and by mma.sync, BF16
// and F16 by wgmma with infinities, NaN, subnormals and sums that are too large.
#include "tests/support/simt/tensorcore.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "tests/support/golden_folder.h"

namespace sluice::simt {
namespace {

struct Recorded {
  std::string how;    // wgmma or mma
  std::string types;  // bf16, f16, or A's and B's: e4m3e5m2
  uint8_t a[32];
  uint8_t b[32];
  uint32_t c;
  uint32_t d;
};

bool parse_bytes(const std::string& hex, uint8_t (&bytes)[32]) {
  if (hex.size() != 64) return false;
  for (size_t i = 0; i < 32; ++i) {
    bytes[i] = static_cast<uint8_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  }
  return true;
}

bool parse(const std::string& line, Recorded& out) {
  std::istringstream words(line);
  std::string a;
  std::string b;
  words >> out.how >> out.types >> a >> b >> std::hex >> out.c >> out.d;
  return !words.fail() && parse_bytes(a, out.a) && parse_bytes(b, out.b);
}

Float8 float8_of(const std::string& type) { return type == "e4m3" ? Float8::kE4M3 : Float8::kE5M2; }

float answer(const Recorded& line) {
  const auto c = std::bit_cast<float>(line.c);
  if (line.types == "bf16" || line.types == "f16") {
    uint16_t a[16];
    uint16_t b[16];
    std::memcpy(a, line.a, sizeof(a));
    std::memcpy(b, line.b, sizeof(b));
    return tensor_core_step(line.types == "bf16" ? Half::kBF16 : Half::kF16, a, b, c);
  }
  const auto step = line.how == "mma" ? mma_float8_step : wgmma_float8_step;
  return step(
      float8_of(line.types.substr(0, 4)), line.a, float8_of(line.types.substr(4)), line.b, c);
}

TEST(TensorCore, StepsHaveTheBitsThatAnH200Gave) {
  std::ifstream file(golden_folder() + "/tensorcore/h200.txt");
  ASSERT_TRUE(file.is_open());
  std::map<std::string, int> count;
  int special = 0;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.starts_with('#')) continue;
    Recorded recorded;
    ASSERT_TRUE(parse(line, recorded)) << number;
    EXPECT_EQ(std::bit_cast<uint32_t>(answer(recorded)), recorded.d) << number << ": " << line;
    ++count[recorded.how + " " + recorded.types];
    if ((recorded.d & 0x7F800000U) == 0x7F800000U) ++special;
  }
  EXPECT_EQ(count.size(), 10U);
  for (const auto& [kind, lines] : count) EXPECT_GE(lines, 30) << kind;
  EXPECT_GE(special, 30);  // infinities and NaN
}

TEST(TensorCore, StepHasTheBitsThatAnH100Gave) {
  std::ifstream file(golden_folder() + "/tensorcore/h100.txt");
  ASSERT_TRUE(file.is_open());
  std::string line;
  int count = 0;
  for (; std::getline(file, line); ++count) {
    std::istringstream words(line);
    std::string kind;
    words >> kind >> std::hex;
    uint16_t a[16];
    uint16_t b[16];
    uint32_t c = 0;
    uint32_t d = 0;
    for (uint16_t& x : a) words >> x;
    for (uint16_t& x : b) words >> x;
    words >> c >> d;
    ASSERT_FALSE(words.fail()) << line;
    const auto type = kind == "bf16" ? Half::kBF16 : Half::kF16;
    ASSERT_EQ(std::bit_cast<uint32_t>(tensor_core_step(type, a, b, std::bit_cast<float>(c))),
              d)
        << "line " << count;
  }
  EXPECT_EQ(count, 250);
}

// This follows publications and is not recorded here: sums of 8 products with 24 bits after the
// point, the second 8 after the first.
TEST(TensorCore, AmperesStepIsTwoOfEightProductsWithABitLess) {
  constexpr uint16_t kOne = 0x3F80;
  constexpr uint16_t kMinusOne = 0xBF80;
  const auto power = [](int exponent) { return static_cast<uint16_t>((127 + exponent) << 7); };
  const auto sum = [&](int minus_one_at, int small_at, int exponent, TensorCore core) {
    const uint16_t ones[16] = {kOne, kOne, kOne, kOne, kOne, kOne, kOne, kOne,
                               kOne, kOne, kOne, kOne, kOne, kOne, kOne, kOne};
    uint16_t a[16] = {kOne};
    a[minus_one_at] = kMinusOne;
    a[small_at] = power(exponent);
    return tensor_core_step(Half::kBF16, a, ones, 0.0F, core);
  };
  EXPECT_EQ(sum(1, 2, -24, kAmpereCore), 0x1p-24F);
  EXPECT_EQ(sum(1, 2, -25, kAmpereCore), 0.0F);
  EXPECT_EQ(sum(1, 2, -25, kHopperCore), 0x1p-25F);
  EXPECT_EQ(sum(1, 8, -30, kAmpereCore), 0x1p-30F);  // 1 and -1 are gone by then
  EXPECT_EQ(sum(8, 9, -30, kAmpereCore), 0.0F);
  EXPECT_EQ(sum(1, 8, -30, kHopperCore), 0.0F);
}

}  // namespace
}  // namespace sluice::simt
