// SPDX-License-Identifier: Apache-2.0
// Matrices of the formats without blocks, with any valid codes and scales.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "engine/core/types.h"
#include "quant/kv_code.h"
#include "quant/plain_rows.h"

namespace sluice::test {

enum class PlainValues : uint8_t {
  kOrdinary,
  kExtreme,    // smallest and largest codes and zero points
  kDegenerate  // zero and subnormal scales or codes
};

// Some rows of a matrix, with memory of their own.
class PlainMatrix {
 public:
  PlainMatrix(
      CodeKind code, int32_t group, int64_t n, int64_t k, PlainValues values, std::mt19937& rng)
      : code_(code), group_(group), n_(n), k_(k), codes_(static_cast<size_t>(n * k)) {
    for (uint8_t& c : codes_) c = random_code(values, rng);
    const auto count = static_cast<size_t>(n * scales_per_row());
    for (size_t i = 0; i < count; ++i) {
      scales_.push_back(random_scale(values, rng));
      zeros_.push_back(random_zero(values, rng));
    }
    std::uniform_real_distribution<float> row_scale(0.001F, 0.02F);
    for (int64_t r = 0; r < n; ++r) row_scales_.push_back(row_scale(rng));
  }

  // Returns a matrix of a packed format, with the format's group, and zero points if it has them.
  static PlainMatrix of(
      WeightFormat format, int64_t n, int64_t k, PlainValues values, std::mt19937& rng) {
    return {*plain_code(format), layout_of(format).columns_per_scale(), n, k, values, rng};
  }

  [[nodiscard]] int64_t scales_per_row() const { return group_ == 0 ? 1 : ceil_div(k_, group_); }

  // Returns `count` rows from `first` on.
  [[nodiscard]] PlainRows rows(int64_t first, int64_t count) const {
    const int64_t scale = first * scales_per_row();
    const bool has_zeros = code_ == CodeKind::kInt4 || code_ == CodeKind::kInt8;
    const bool has_row_scales = code_ == CodeKind::kE2M1 && group_ == 16;
    return {.code = code_,
            .rows = static_cast<int32_t>(count),
            .k = k_,
            .codes = codes_.data() + first * k_,
            .group = group_,
            .scales = scales_.data() + scale,
            .zeros = has_zeros ? zeros_.data() + scale : nullptr,
            .row_scales = has_row_scales ? row_scales_.data() + first : nullptr};
  }

  // Packs all tiles.
  void pack(WeightFormat format, std::byte* dst) const {
    for (int64_t first = 0; first < n_; first += kRowTile) {
      pack_plain(format,
                 rows(first, std::min<int64_t>(kRowTile, n_ - first)),
                 dst + first / kRowTile * packed_tile_bytes(format, k_));
    }
  }

 private:
  [[nodiscard]] bool is_nibble() const {
    return code_ == CodeKind::kInt4 || code_ == CodeKind::kE2M1;
  }

  uint8_t random_code(PlainValues values, std::mt19937& rng) const {
    const uint32_t any = rng();
    if (values == PlainValues::kExtreme) {
      constexpr std::array<uint8_t, 4> kBytes = {0x7F, 0x80, 0x7F, 0x7F};
      constexpr std::array<uint8_t, 4> kNibbles = {15, 0, 15, 7};
      if (code_ == CodeKind::kE4M3) return any % 2 == 0 ? 0x7E : 0xFE;
      return is_nibble() ? kNibbles[any % 4] : kBytes[any % 4];
    }
    if (is_nibble()) return static_cast<uint8_t>(any & 15);
    const auto byte = static_cast<uint8_t>(any & 255);
    if (code_ != CodeKind::kE4M3) return byte;
    if (values == PlainValues::kDegenerate) return byte & 0x87;
    return (byte & 0x7F) == 0x7F ? static_cast<uint8_t>(byte & 0x80) : byte;
  }

  float random_scale(PlainValues values, std::mt19937& rng) const {
    const uint32_t any = rng();
    const bool degenerate = values == PlainValues::kDegenerate;
    if (code_ == CodeKind::kE2M1 && group_ == 16) {
      return e4m3_to_float(static_cast<uint8_t>(degenerate ? any & 7 : any % 0x7F));
    }
    if (code_ == CodeKind::kE2M1) return std::ldexp(1.0F, static_cast<int>(any % 9) - 10);
    if (degenerate) return static_cast<float>(any % 3) * 0x1p-149F;
    return std::uniform_real_distribution<float>(-0.05F, 0.05F)(rng);
  }

  uint8_t random_zero(PlainValues values, std::mt19937& rng) const {
    const uint32_t any = rng();
    if (values == PlainValues::kExtreme) {
      constexpr std::array<uint8_t, 4> kOfBytes = {0x80, 0x7F, 0, 0xFF};
      constexpr std::array<uint8_t, 4> kOfNibbles = {0, 255, 16, 15};
      return code_ == CodeKind::kInt8 ? kOfBytes[any % 4] : kOfNibbles[any % 4];
    }
    return static_cast<uint8_t>(code_ == CodeKind::kInt8 ? any & 255 : any % 17);
  }

  CodeKind code_;
  int32_t group_;
  int64_t n_;
  int64_t k_;
  std::vector<uint8_t> codes_, zeros_;
  std::vector<float> scales_, row_scales_;
};

// Packs int8 codes [n][k] with a scale per row.
inline void pack_int8_rows(
    const int8_t* codes, const float* scales, int64_t n, int64_t k, std::byte* dst) {
  constexpr WeightFormat kFormat = WeightFormat::kInt8Channel;
  for (int64_t first = 0; first < n; first += kRowTile) {
    const PlainRows rows = {.code = CodeKind::kInt8,
                            .rows = static_cast<int32_t>(std::min<int64_t>(kRowTile, n - first)),
                            .k = k,
                            .codes = reinterpret_cast<const uint8_t*>(codes + first * k),
                            .scales = scales + first};
    pack_plain(kFormat, rows, dst + first / kRowTile * packed_tile_bytes(kFormat, k));
  }
}

}  // namespace sluice::test
