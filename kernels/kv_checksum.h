// SPDX-License-Identifier: Apache-2.0
// The checksum by which a KV payload is checked where it arrives. Over 64-bit little-endian words
// w[i], the last one filled up with zero bytes, and the number of bytes n it is
//     mix(n, 2^64 - 1) + sum over i of mix(w[i], i)   mod 2^64.
// mix() is a bijection of the word for every index, so one wrong word is always found. The order of
// the terms makes no difference, so lanes of a vector and threads of a GPU may add them in any
// order. It is not cryptographic: it finds errors of networks, memories and offsets.
//
// mix(w, i), all numbers unsigned, lo and hi the halves of x, fold(p) = (p >> 32) ^ (p mod 2^32):
//     x  = w ^ ((i + 1) * kKvIndexFactor)   mod 2^64
//     hi = hi ^ fold(lo * kKvLowFactor)
//     lo = lo ^ fold(hi * kKvHighFactor)
// These are two products of 32 bits, which CPUs have for 64-bit lanes and GPUs as one mul.wide.
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

// The checksum of all bytes given to add() and copy(), in order. Any thread, one at a time.
class KvChecksum {
 public:
  void add(std::span<const std::byte> bytes);
  // Copies the bytes to `out` and adds the copy, so that bytes which another thread changes
  // meanwhile are summed as they were copied.
  void copy(std::span<const std::byte> bytes, std::byte* out);
  [[nodiscard]] uint64_t value() const;

 private:
  uint64_t sum_ = 0;
  uint64_t num_bytes_ = 0;
  std::array<std::byte, 8> rest_ = {};  // the num_bytes_ % 8 bytes after the last whole word
};

uint64_t kv_checksum(std::span<const std::byte> bytes);

// The implementations of the sum of whole words that this machine has, for tests: all give the same
// value. The last one is the one in use.
using KvWordSum = uint64_t (*)(const std::byte* words, uint64_t num_words, uint64_t first_index);
std::span<const KvWordSum> kv_word_sums();

}  // namespace sluice::kernels
