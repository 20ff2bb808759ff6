// SPDX-License-Identifier: Apache-2.0
// Arithmetic on sizes that come from files: every operation reports overflow instead of wrapping.
#pragma once

#include <cstdint>
#include <optional>

namespace sluice {

[[nodiscard]] inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

[[nodiscard]] inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// Rounds up to a multiple of a power of two.
[[nodiscard]] inline std::optional<uint64_t> checked_align(uint64_t a, uint64_t alignment) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) return std::nullopt;
  const auto sum = checked_add(a, alignment - 1);
  if (!sum) return std::nullopt;
  return *sum & ~(alignment - 1);
}

}  // namespace sluice
