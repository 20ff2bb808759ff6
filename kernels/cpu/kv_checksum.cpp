// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_checksum.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace sluice::kernels {
namespace {

// A transport's thread has no ExecContext, and each loop is a few lines: instruction sets are
// attributes of functions here, not files of the table (kernels/cpu/isa/simd.h).

uint64_t sum_scalar(const std::byte* words, uint64_t num_words, uint64_t first_index) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < num_words; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, words + 8 * i, sizeof(word));
    sum += mix_kv_word(word, first_index + i);
  }
  return sum;
}

constexpr uint64_t kAtOnce = 4;  // vectors side by side

// Returns what each lane of the first vectors is combined with.
template <uint64_t kLanes>
std::array<uint64_t, kAtOnce * kLanes> first_keys(uint64_t first_index) {
  std::array<uint64_t, kAtOnce * kLanes> keys;
  for (uint64_t i = 0; i < keys.size(); ++i) keys[i] = (first_index + i + 1) * kKvIndexFactor;
  return keys;
}

constexpr int64_t as_signed(uint64_t value) { return static_cast<int64_t>(value); }

[[gnu::target("avx2")]] inline __m256i mix_avx2(__m256i word, __m256i key) {
  const __m256i low_factor = _mm256_set1_epi64x(as_signed(kKvLowFactor));
  const __m256i high_factor = _mm256_set1_epi64x(as_signed(kKvHighFactor));
  __m256i x = _mm256_xor_si256(word, key);
  const __m256i low = _mm256_mul_epu32(x, low_factor);
  // Zeros in the odd halves of the blend leave the other half of x unchanged.
  x = _mm256_xor_si256(
      x,
      _mm256_blend_epi32(
          _mm256_setzero_si256(), _mm256_xor_si256(low, _mm256_slli_epi64(low, 32)), 0xaa));
  const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), high_factor);
  return _mm256_xor_si256(
      x,
      _mm256_blend_epi32(
          _mm256_setzero_si256(), _mm256_xor_si256(high, _mm256_srli_epi64(high, 32)), 0x55));
}

[[gnu::target("avx2")]] uint64_t sum_avx2(const std::byte* words,
                                          uint64_t num_words,
                                          uint64_t first_index) {
  constexpr uint64_t kLanes = 4;
  const auto start = first_keys<kLanes>(first_index);
  __m256i keys[kAtOnce];
  __m256i sums[kAtOnce];
  for (uint64_t i = 0; i < kAtOnce; ++i) {
    keys[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(&start[kLanes * i]));
    sums[i] = _mm256_setzero_si256();
  }
  const __m256i step = _mm256_set1_epi64x(as_signed(kAtOnce * kLanes * kKvIndexFactor));
  const uint64_t num_rounds = num_words / (kAtOnce * kLanes);
  for (uint64_t round = 0; round < num_rounds; ++round) {
    const std::byte* at = words + 8 * kAtOnce * kLanes * round;
#pragma GCC unroll 4
    for (uint64_t i = 0; i < kAtOnce; ++i) {
      const __m256i word =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 8 * kLanes * i));
      sums[i] = _mm256_add_epi64(sums[i], mix_avx2(word, keys[i]));
      keys[i] = _mm256_add_epi64(keys[i], step);
    }
  }
  const __m256i both =
      _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
  std::array<uint64_t, kLanes> lanes;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes.data()), both);
  const uint64_t done = num_rounds * kAtOnce * kLanes;
  return lanes[0] + lanes[1] + lanes[2] + lanes[3] +
         sum_scalar(words + 8 * done, num_words - done, first_index + done);
}

// Xors three values in one half of each lane; the halves are swapped on a port that products leave
// free.
[[gnu::target("avx512f")]] inline __m512i mix_avx512(__m512i word, __m512i key) {
  constexpr int kThreeWayXor = 0x96;
  const __m512i low_factor = _mm512_set1_epi64(as_signed(kKvLowFactor));
  const __m512i high_factor = _mm512_set1_epi64(as_signed(kKvHighFactor));
  __m512i x = _mm512_xor_si512(word, key);
  const __m512i low = _mm512_mul_epu32(x, low_factor);
  x = _mm512_mask_ternarylogic_epi32(
      x, 0xaaaa, low, _mm512_shuffle_epi32(low, _MM_PERM_CDAB), kThreeWayXor);
  const __m512i high = _mm512_mul_epu32(_mm512_shuffle_epi32(x, _MM_PERM_CDAB), high_factor);
  return _mm512_mask_ternarylogic_epi32(
      x, 0x5555, high, _mm512_shuffle_epi32(high, _MM_PERM_CDAB), kThreeWayXor);
}

[[gnu::target("avx512f")]] uint64_t sum_avx512(const std::byte* words,
                                               uint64_t num_words,
                                               uint64_t first_index) {
  constexpr uint64_t kLanes = 8;
  const auto start = first_keys<kLanes>(first_index);
  __m512i keys[kAtOnce];
  __m512i sums[kAtOnce];
  for (uint64_t i = 0; i < kAtOnce; ++i) {
    keys[i] = _mm512_loadu_si512(&start[kLanes * i]);
    sums[i] = _mm512_setzero_si512();
  }
  const __m512i step = _mm512_set1_epi64(as_signed(kAtOnce * kLanes * kKvIndexFactor));
  const uint64_t num_rounds = num_words / (kAtOnce * kLanes);
  for (uint64_t round = 0; round < num_rounds; ++round) {
    const std::byte* at = words + 8 * kAtOnce * kLanes * round;
#pragma GCC unroll 4
    for (uint64_t i = 0; i < kAtOnce; ++i) {
      const __m512i word = _mm512_loadu_si512(at + 8 * kLanes * i);
      sums[i] = _mm512_add_epi64(sums[i], mix_avx512(word, keys[i]));
      keys[i] = _mm512_add_epi64(keys[i], step);
    }
  }
  const __m512i all =
      _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
  std::array<uint64_t, kLanes> lanes;
  _mm512_storeu_si512(lanes.data(), all);
  const uint64_t done = num_rounds * kAtOnce * kLanes;
  uint64_t sum = sum_scalar(words + 8 * done, num_words - done, first_index + done);
  for (const uint64_t lane : lanes) sum += lane;
  return sum;
}

constexpr std::array<KvWordSum, 3> kSums = {sum_scalar, sum_avx2, sum_avx512};

size_t count_sums() {
  if (__builtin_cpu_supports("avx2") == 0) return 1;
  return __builtin_cpu_supports("avx512f") == 0 ? 2 : 3;
}

uint64_t sum_words(const std::byte* words, uint64_t num_words, uint64_t first_index) {
  static const KvWordSum best = kv_word_sums().back();
  return best(words, num_words, first_index);
}

// Bytes copied at a time: they are summed while L1 has them, which takes no longer than the copy
// alone (with 16 KiB a fifth longer).
constexpr size_t kCopyBytes = 4096;

}  // namespace

std::span<const KvWordSum> kv_word_sums() { return std::span(kSums).first(count_sums()); }

void KvChecksum::add(std::span<const std::byte> bytes) {
  const size_t has = num_bytes_ % 8;
  if (has != 0) {
    const size_t missing = std::min(8 - has, bytes.size());
    std::ranges::copy(bytes.first(missing), rest_.begin() + static_cast<ptrdiff_t>(has));
    num_bytes_ += missing;
    bytes = bytes.subspan(missing);
    if (num_bytes_ % 8 != 0) return;
    sum_ += sum_scalar(rest_.data(), 1, num_bytes_ / 8 - 1);
  }
  const size_t num_words = bytes.size() / 8;
  sum_ += sum_words(bytes.data(), num_words, num_bytes_ / 8);
  num_bytes_ += bytes.size();
  rest_ = {};
  std::ranges::copy(bytes.subspan(8 * num_words), rest_.begin());
}

void KvChecksum::copy(std::span<const std::byte> bytes, std::byte* out) {
  while (!bytes.empty()) {
    const size_t count = std::min(kCopyBytes, bytes.size());
    std::memcpy(out, bytes.data(), count);
    add({out, count});
    bytes = bytes.subspan(count);
    out += count;
  }
}

uint64_t KvChecksum::value() const {
  uint64_t sum = sum_ + mix_kv_word(num_bytes_, UINT64_MAX);
  if (num_bytes_ % 8 != 0) sum += sum_scalar(rest_.data(), 1, num_bytes_ / 8);
  return sum;
}

uint64_t kv_checksum(std::span<const std::byte> bytes) {
  KvChecksum sum;
  sum.add(bytes);
  return sum.value();
}

}  // namespace sluice::kernels
