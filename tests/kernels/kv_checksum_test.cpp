// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <unordered_set>
#include <vector>

namespace sluice::kernels {
namespace {

std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Returns the sum by the header's definition, word by word and from the last to the first.
uint64_t defined_sum(const std::vector<std::byte>& bytes) {
  std::vector<std::byte> whole = bytes;
  whole.resize((bytes.size() + 7) / 8 * 8);
  uint64_t sum = mix_kv_word(bytes.size(), UINT64_MAX);
  for (size_t i = whole.size() / 8; i-- > 0;) {
    uint64_t word = 0;
    std::memcpy(&word, whole.data() + 8 * i, sizeof(word));
    sum += mix_kv_word(word, i);
  }
  return sum;
}

TEST(KvChecksum, MixesToWrittenDownValues) {
  // These values were computed from the definition with Python's integers.
  EXPECT_EQ(mix_kv_word(0, 0), 0x1d6eb6f8050624a6u);
  EXPECT_EQ(mix_kv_word(0x0123456789abcdef, 7), 0xe3765aa2b277ea17u);
  EXPECT_EQ(mix_kv_word(UINT64_MAX, UINT64_MAX), 0x00000000ffffffffu);
}

TEST(KvChecksum, IsWhatTheHeaderDefinesForEveryLength) {
  for (size_t count = 0; count < 700; ++count) {
    const auto bytes = random_bytes(count, count);
    EXPECT_EQ(kv_checksum(bytes), defined_sum(bytes)) << count;
  }
}

TEST(KvChecksum, EveryInstructionSetGivesTheSameValue) {
  const auto bytes = random_bytes(8 * 1000 + 8, 3);
  for (const size_t offset : {0, 1, 5}) {  // aligned or not
    for (uint64_t count = 0; count < 1000; count += count < 140 ? 1 : 61) {
      const uint64_t first = count * 0x100000001;
      const uint64_t expected = kv_word_sums().front()(bytes.data() + offset, count, first);
      for (const KvWordSum sum : kv_word_sums()) {
        EXPECT_EQ(sum(bytes.data() + offset, count, first), expected) << count;
      }
    }
  }
}

TEST(KvChecksum, PartsOfAnyLengthGiveTheSumOfTheWhole) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 300; ++round) {
    const auto bytes = random_bytes(random() % 3000, random());
    KvChecksum added;
    KvChecksum copied;
    std::vector<std::byte> copy(bytes.size());
    size_t at = 0;
    while (at < bytes.size()) {
      const size_t most = random() % 2 == 0 ? 12 : 1500;
      const size_t count = std::min<size_t>(random() % most, bytes.size() - at);
      const auto part = std::span(bytes).subspan(at, count);
      added.add(part);
      copied.copy(part, copy.data() + at);
      at += count;
    }
    EXPECT_EQ(added.value(), kv_checksum(bytes));
    EXPECT_EQ(copied.value(), kv_checksum(bytes));
    EXPECT_EQ(copy, bytes);
  }
}

// All payloads here differ: no two have the same sum.
TEST(KvChecksum, SeesEveryFlipOfOneOrTwoBits) {
  for (const bool is_zero : {false, true}) {
    std::vector<std::byte> bytes = is_zero ? std::vector<std::byte>(128) : random_bytes(128, 5);
    const auto flip = [&](size_t bit) { bytes[bit / 8] ^= std::byte{1} << (bit % 8); };
    const size_t num_bits = 8 * bytes.size();
    std::unordered_set<uint64_t> sums = {kv_checksum(bytes)};
    size_t expected = 1;
    for (size_t first = 0; first < num_bits; ++first) {
      flip(first);
      sums.insert(kv_checksum(bytes));
      ++expected;
      for (size_t second = first + 1; second < num_bits; ++second) {
        flip(second);
        sums.insert(kv_checksum(bytes));
        ++expected;
        flip(second);
      }
      flip(first);
    }
    EXPECT_EQ(sums.size(), expected);
  }
}

TEST(KvChecksum, SeesWordsThatChangedPlacesMovedOrWereLost) {
  const auto bytes = random_bytes(4096, 6);
  std::unordered_set<uint64_t> sums = {kv_checksum(bytes)};
  size_t expected = 1;
  const auto expect_new = [&](const std::vector<std::byte>& changed) {
    sums.insert(kv_checksum(changed));
    ++expected;
  };
  for (size_t a = 0; a < 4096; a += 64) {
    for (size_t b = a + 64; b < 4096; b += 64) {
      auto changed = bytes;
      std::swap_ranges(changed.begin() + static_cast<ptrdiff_t>(a),
                       changed.begin() + static_cast<ptrdiff_t>(a) + 64,
                       changed.begin() + static_cast<ptrdiff_t>(b));
      expect_new(changed);
    }
    auto cleared = bytes;
    std::fill_n(cleared.begin() + static_cast<ptrdiff_t>(a), 64, std::byte{});
    expect_new(cleared);
    auto shifted = bytes;
    std::ranges::rotate(shifted, shifted.begin() + static_cast<ptrdiff_t>(a) + 1);
    expect_new(shifted);
  }
  for (size_t count = 0; count < 4096; count += 8) {
    expect_new({bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count)});
    expect_new(std::vector<std::byte>(count + 1));  // zeros of different lengths
  }
  EXPECT_EQ(sums.size(), expected);
}

}  // namespace
}  // namespace sluice::kernels
