// SPDX-License-Identifier: Apache-2.0
// The sum by which a payload of KV is checked where it lands: of 64-bit little-endian words w[i],
// the last one filled up with zero bytes, and of the number of bytes n,
//     mix(n, 2^64 - 1) + sum over i of mix(w[i], i)   mod 2^64.
// mix() is a bijection of the word for every index, so one wrong word is always seen; which terms
// are added first makes no difference, so lanes of a vector and threads of a GPU may take them as
// they like. It is not cryptographic: it finds what networks, memories and wrong offsets do.
//
// mix(w, i), all numbers unsigned, lo and hi the halves of x, fold(p) = (p >> 32) ^ (p mod 2^32):
//     x  = w ^ ((i + 1) * kKvIndexFactor)   mod 2^64
//     hi = hi ^ fold(lo * kKvLowFactor)
//     lo = lo ^ fold(hi * kKvHighFactor)
// Two products of 32 bits, which CPUs have for every 64-bit lane and GPUs as one mul.wide.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::kernels {

inline constexpr uint64_t kKvIndexFactor = 0x9e3779b97f4a7c15;
inline constexpr uint64_t kKvLowFactor = 0x85ebca77;
inline constexpr uint64_t kKvHighFactor = 0xc2b2ae3d;

constexpr uint64_t mix_kv_word(uint64_t word, uint64_t index) {
  uint64_t x = word ^ ((index + 1) * kKvIndexFactor);
  const uint64_t low = (x & 0xffffffff) * kKvLowFactor;
  x ^= (low ^ (low << 32)) & 0xffffffff00000000;
  const uint64_t high = (x >> 32) * kKvHighFactor;
  return x ^ ((high ^ (high >> 32)) & 0xffffffff);
}

// The sum of what add() and copy() were given, one after the other. Any thread, one at a time.
class KvChecksum {
 public:
  void add(std::span<const std::byte> bytes);
  // Also writes the bytes to `out`, and sums what is there then: bytes that somebody else changes
  // meanwhile are summed as they were copied.
  void copy(std::span<const std::byte> bytes, std::byte* out);
  [[nodiscard]] uint64_t value() const;

 private:
  uint64_t sum_ = 0;
  uint64_t num_bytes_ = 0;
  std::array<std::byte, 8> rest_ = {};  // the num_bytes_ % 8 bytes behind the last whole word
};

uint64_t kv_checksum(std::span<const std::byte> bytes);

// The instruction sets of the sum of whole words, for tests: each gives the same value. Those that
// this machine has, the one in use last.
using KvWordSum = uint64_t (*)(const std::byte* words, uint64_t num_words, uint64_t first_index);
std::span<const KvWordSum> kv_word_sums();

}  // namespace sluice::kernels
