// SPDX-License-Identifier: Apache-2.0
// Little-endian 8-byte fields at any offset of a file; the host is little-endian too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace sluice {

inline void put_u64(std::span<std::byte> file, size_t at, uint64_t value) {
  std::memcpy(file.data() + at, &value, sizeof(value));
}

inline uint64_t get_u64(std::span<const std::byte> file, size_t at) {
  uint64_t value = 0;
  std::memcpy(&value, file.data() + at, sizeof(value));
  return value;
}

}  // namespace sluice
