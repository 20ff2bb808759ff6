// SPDX-License-Identifier: Apache-2.0
// The weights of --load-format dummy: numbers that depend only on a weight's name and the place in
// it, equal on every machine and for every sharing of a matrix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "quant/plain_rows.h"
#include "quant/repack.h"

namespace sluice {

// Numbers in [-1, 1) from splitmix64 seeded by an FNV-1a hash.
class NamedRandom {
 public:
  explicit NamedRandom(std::string_view name) {
    for (const char c : name) seed_ = (seed_ ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  }

  [[nodiscard]] float at(int64_t index) const {
    uint64_t x = seed_ + static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return static_cast<float>((x ^ (x >> 31)) >> 40) * 0x1p-23F - 1.0F;
  }

 private:
  uint64_t seed_ = 0xCBF29CE484222325U;
};

// Rows of a dummy matrix, one tile at a time: uniform with variance 1 / k, approximately for codes.
class RandomTile {
 public:
  // For BF16 or a format of plain rows. `first_tile`: the tile of the whole matrix that is tile 0
  // of `weight`.
  RandomTile(std::string_view name, const PackedWeight& weight, int64_t first_tile);

  // The largest magnitude in matrices of k columns.
  static float limit(int64_t k);

  // Makes tile `tile` and returns its number of rows; the functions below refer to it.
  int64_t make(int64_t tile);

  // The tile's rows: BF16, or one byte per code.
  [[nodiscard]] const std::byte* bytes() const {
    return codes_.empty() ? reinterpret_cast<const std::byte*>(floats_.data())
                          : reinterpret_cast<const std::byte*>(codes_.data());
  }

  // pack() writes the layout of kernels; copy_rows() writes rows, if the format has_rows().
  void pack(std::byte* to) const;
  void copy_rows(std::byte* to) const;

  // The scales that a device reads after `n` rows.
  [[nodiscard]] std::vector<float> row_scales(int64_t n) const;

 private:
  [[nodiscard]] PlainRows rows() const;

  const NamedRandom random_;
  const WeightFormat format_;
  const int64_t first_tile_;
  const int64_t n_;
  const int64_t k_;
  int32_t count_ = 0;
  std::vector<uint16_t> floats_;  // BF16
  std::vector<uint8_t> codes_;    // codes of other formats, all with the scales below
  std::vector<float> scales_;
  std::vector<float> second_scales_;
};

}  // namespace sluice
