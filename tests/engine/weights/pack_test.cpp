// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/pack.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace sluice {
namespace {

// Zero weights; the tests add bad scales.
std::vector<std::byte> zero_rows(WeightFormat format, int64_t n, int64_t k) {
  return std::vector<std::byte>(static_cast<size_t>(n * row_bytes(format, k)));
}

void put_half(std::vector<std::byte>& bytes, int64_t offset, uint16_t half) {
  std::memcpy(&bytes[static_cast<size_t>(offset)], &half, sizeof(half));
}

std::string message_of(WeightFormat format,
                       const std::vector<std::byte>& src,
                       int64_t n,
                       int64_t k) {
  std::vector<std::byte> dst(static_cast<size_t>(packed_bytes(format, n, k)));
  const Expected<uint64_t> packed =
      pack_checked("model.gguf: tensor blk.0.ffn_up.weight", format, src.data(), n, k, dst.data());
  return packed ? "" : packed.error().message;
}

TEST(PackChecked, GivesThePackedBytes) {
  for (const FormatInfo& info : format_table()) {
    // The largest case is packed by several threads.
    for (const int64_t n : {17, 4000}) {
      const int64_t k = n == 17 ? info.block_elements : int64_t{8} * 256;
      std::vector<std::byte> src = zero_rows(info.format, n, k);
      for (size_t i = 0; i < src.size(); ++i) src[i] = static_cast<std::byte>(i * 7 % 61);
      const auto bytes = static_cast<size_t>(packed_bytes(info.format, n, k));
      std::vector<std::byte> expected(bytes), packed(bytes, std::byte{1});
      pack_weight(info.format, src.data(), n, k, 0, (n + 15) / 16, expected.data());
      ASSERT_TRUE(pack_checked("", info.format, src.data(), n, k, packed.data())) << info.name;
      EXPECT_EQ(packed, expected) << info.name << " " << n;
    }
  }
}

TEST(PackChecked, TheHashIsThatOfEveryByteWhoeverPacksIt) {
  constexpr int64_t kRows = 4000;
  constexpr int64_t kColumns = 2048;  // packed by several threads
  auto rows = zero_rows(WeightFormat::kQ8_0, kRows, kColumns);
  std::vector<std::byte> dst(
      static_cast<size_t>(packed_bytes(WeightFormat::kQ8_0, kRows, kColumns)));
  const auto hash = [&] {
    return *pack_checked("", WeightFormat::kQ8_0, rows.data(), kRows, kColumns, dst.data());
  };
  const uint64_t zeros = hash();
  EXPECT_EQ(hash(), zeros);
  const auto bytes = static_cast<int64_t>(rows.size());
  for (const int64_t at : {int64_t{2}, bytes / 2 + 2, bytes - 1}) {
    rows[static_cast<size_t>(at)] ^= std::byte{1};
    EXPECT_NE(hash(), zeros) << at;
    rows[static_cast<size_t>(at)] ^= std::byte{1};
  }
  // An equal tile at another place is another matrix.
  const int64_t tile = 16 * row_bytes(WeightFormat::kQ8_0, kColumns);
  rows[2] = std::byte{7};
  const uint64_t first = hash();
  rows[2] = std::byte{0};
  rows[static_cast<size_t>(tile) + 2] = std::byte{7};
  EXPECT_NE(hash(), first);
}

TEST(PackChecked, RefusesTheFirstScaleThatIsNotFinite) {
  auto rows = zero_rows(WeightFormat::kQ4_1, 40, 128);
  const int64_t bytes = row_bytes(WeightFormat::kQ4_1, 128);
  put_half(rows, 39 * bytes, 0x7C00);
  put_half(rows, 37 * bytes + 3 * 20 + 2, 0x7E00);  // a bad minimum
  EXPECT_EQ(message_of(WeightFormat::kQ4_1, rows, 40, 128),
            "model.gguf: tensor blk.0.ffn_up.weight: row 37 block 3: found scale nan, expected "
            "finite scales");
}

TEST(PackChecked, RefusesInSuperBlocksExponentsAndFloats) {
  auto q6 = zero_rows(WeightFormat::kQ6_K, 3, 512);
  put_half(q6, 2 * 420 + 210 + 208, 0xFC00);
  EXPECT_NE(message_of(WeightFormat::kQ6_K, q6, 3, 512).find("row 2 block 1: found scale -inf"),
            std::string::npos);
  auto mx = zero_rows(WeightFormat::kMXFP4, 2, 64);
  mx[34 + 17] = std::byte{255};
  EXPECT_NE(message_of(WeightFormat::kMXFP4, mx, 2, 64).find("row 1 block 1: found scale nan"),
            std::string::npos);
  auto bf16 = zero_rows(WeightFormat::kBF16, 20, 5);
  put_half(bf16, (19 * 5 + 4) * 2, 0x7F80);
  EXPECT_NE(message_of(WeightFormat::kBF16, bf16, 20, 5)
                .find("row 19 column 4: found weight inf, expected finite weights"),
            std::string::npos);
}

TEST(PackChecked, ABadScaleInAnyThreadsPartIsFound) {
  constexpr int64_t kRows = 8000;
  for (const int64_t row : {int64_t{0}, kRows / 2 - 1, kRows / 2, kRows - 1}) {
    auto rows = zero_rows(WeightFormat::kQ8_0, kRows, 1024);
    put_half(rows, row * row_bytes(WeightFormat::kQ8_0, 1024), 0x7C00);
    EXPECT_NE(message_of(WeightFormat::kQ8_0, rows, kRows, 1024)
                  .find("row " + std::to_string(row) + " block 0"),
              std::string::npos);
  }
}

TEST(DecodeChecked, DecodesOrNamesTheColumn) {
  const float values[3] = {1, -2.5F, 3};
  const auto* bytes = reinterpret_cast<const std::byte*>(values);
  EXPECT_EQ(decode_checked("f: tensor x", WeightFormat::kF32, bytes, 3)->values,
            (std::vector<float>{1, -2.5F, 3}));
  const float bad[3] = {1, 2, std::numeric_limits<float>::quiet_NaN()};
  const auto refused =
      decode_checked("f: tensor x", WeightFormat::kF32, reinterpret_cast<const std::byte*>(bad), 3);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "f: tensor x: row 0 column 2: found weight nan, expected finite weights");
}

}  // namespace
}  // namespace sluice
