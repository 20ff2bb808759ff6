// SPDX-License-Identifier: Apache-2.0
// The header of a file of packed weights: whatever it holds, it is refused, or its parts are inside
// of the file. The first bytes choose the key that is asked for, so that sizes that agree are
// tried.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "engine/weights/packed_cache.h"
#include "tests/fuzz/target.h"

using namespace sluice;

namespace {

bool is_inside(std::span<const std::byte> part, std::span<const std::byte> file) {
  return part.data() >= file.data() && part.data() + part.size() <= file.data() + file.size();
}

}  // namespace

static int packed_cache_input(const uint8_t* data, size_t size) {
  uint64_t numbers[5] = {};
  if (size < sizeof(numbers)) return 0;
  std::memcpy(numbers, data, sizeof(numbers));
  const PackedKey key{
      .build = numbers[0],
      .source = numbers[1],
      .layout = {.hash = numbers[2], .num_matrices = numbers[3], .bytes = numbers[4]}};
  const auto file = std::as_bytes(std::span(data, size)).subspan(sizeof(numbers));
  const Expected<PackedParts> parts = parse_packed_cache(file, key);
  if (!parts) {
    CHECK(!parts.error().message.empty());
    return 0;
  }
  CHECK(is_inside(parts->hashes, file) && is_inside(parts->checksums, file));
  CHECK(is_inside(parts->arena, file));
  CHECK_EQ(parts->hashes.size() / sizeof(uint64_t), key.layout.num_matrices);
  CHECK_EQ(parts->arena.size(), key.layout.bytes);
  return 0;
}

const sluice::fuzz::Target packed_cache_target("packed_cache_fuzz", packed_cache_input);
