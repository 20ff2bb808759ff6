// SPDX-License-Identifier: Apache-2.0
// What a checkpoint of --load-format dummy has: numbers by the name of a weight and their place in
// it, the same on every machine and however a matrix is shared out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "quant/plain_rows.h"
#include "quant/repack.h"

namespace sluice {

// Numbers in [-1, 1), by splitmix64 of an FNV-1a hash.
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

// Rows of a dummy matrix, a tile at a time: uniform with the variance 1 / k, of codes nearly.
class RandomTile {
 public:
  // BF16 or a format of plain rows; `first_tile`: that of the whole matrix which is tile 0 of
  // `weight`.
  RandomTile(std::string_view name, const PackedWeight& weight, int64_t first_tile);

  // Of matrices of k columns: no number is larger.
  static float limit(int64_t k);

  // How many rows tile `tile` has; what follows is about them until the next call.
  int64_t make(int64_t tile);

  // BF16, or a byte a code.
  [[nodiscard]] const std::byte* bytes() const {
    return codes_.empty() ? reinterpret_cast<const std::byte*>(floats_.data())
                          : reinterpret_cast<const std::byte*>(codes_.data());
  }

  // In the layout of kernels, or as rows where the format has_rows().
  void pack(std::byte* to) const;
  void copy_rows(std::byte* to) const;

  // What a device reads behind `n` rows.
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
  std::vector<uint8_t> codes_;    // of other formats, with these scales, all of them the same
  std::vector<float> scales_;
  std::vector<float> second_scales_;
};

}  // namespace sluice
