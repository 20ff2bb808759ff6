// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "quant/kv_code.h"
#include "quant/scheme.h"

namespace sluice {
namespace {

// The column of a word's 8 (with AWQ, the row of W) that nibble i holds.
constexpr int32_t kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};

constexpr std::array<int32_t, 8> awq_nibbles() {
  std::array<int32_t, 8> nibbles{};
  for (int32_t i = 0; i < 8; ++i) nibbles[static_cast<size_t>(kAwqOrder[i])] = i;
  return nibbles;
}

constexpr std::array<int32_t, 8> kAwqNibbles = awq_nibbles();  // the nibble of row i

uint32_t word_at(std::span<const std::byte> bytes, int64_t index) {
  uint32_t word = 0;
  std::memcpy(&word, bytes.data() + index * static_cast<int64_t>(sizeof(word)), sizeof(word));
  return word;
}

float e8m0_to_float(uint8_t code) { return code == 0xFF ? NAN : std::ldexp(1.0F, code - 127); }

float scale_at(const Companion& scales, int64_t index) {
  const int64_t bytes = element_info(scales.type).bytes;
  const std::byte* at = scales.bytes.data() + index * bytes;
  switch (scales.type) {
    case ElementType::kF32: {
      float value = 0;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    case ElementType::kF16:
    case ElementType::kBF16: {
      uint16_t half = 0;
      std::memcpy(&half, at, sizeof(half));
      return scales.type == ElementType::kF16 ? half_to_float(half) : bf16_to_float(half);
    }
    case ElementType::kE4M3:
      return e4m3_to_float(static_cast<uint8_t>(*at));
    default:
      return e8m0_to_float(static_cast<uint8_t>(*at));
  }
}

// Returns an unsigned code of 8 bits as two's complement, a code of 4 bits unchanged.
uint8_t from_stored(CodeKind code, uint32_t value) {
  return static_cast<uint8_t>(code == CodeKind::kInt8 ? value ^ 0x80U : value);
}

// Tests eight e4m3 codes at a time: only a NaN's magnitude plus one carries out of its 7 bits.
bool has_nan(const uint8_t* codes, int64_t count) {
  constexpr uint64_t kMagnitudes = 0x7F7F7F7F7F7F7F7FU;
  constexpr uint64_t kOnes = 0x0101010101010101U;
  uint64_t carries = 0;
  const int64_t whole = count / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, codes + i, sizeof(word));
    carries |= (word & kMagnitudes) + kOnes;
  }
  uint64_t rest = 0;
  std::memcpy(&rest, codes + whole, static_cast<size_t>(count - whole));
  carries |= (rest & kMagnitudes) + kOnes;
  return (carries & ~kMagnitudes) != 0;
}

}  // namespace

const PlainRows& PlainReader::read(int64_t first_row, int32_t num_rows) {
  CHECK_LE(first_row + num_rows, matrix_.n_);
  rows_ = {
      .code = matrix_.scheme_.code, .rows = num_rows, .k = matrix_.k_, .group = matrix_.group()};
  read_codes(first_row, num_rows);
  read_scales(first_row, num_rows);
  read_zeros(first_row, num_rows);
  if (!matrix_.group_of_.empty()) spread_groups(num_rows);
  if (matrix_.scheme_.second != SecondScale::kNone) {
    row_scales_.assign(static_cast<size_t>(num_rows), matrix_.second_);
    rows_.row_scales = row_scales_.data();
  }
  return rows_;
}

void PlainReader::read_codes(int64_t first_row, int32_t num_rows) {
  const int64_t k = matrix_.k_;
  const int64_t n = matrix_.n_;
  const CodeKind kind = matrix_.scheme_.code;
  const std::span<const std::byte> bytes = matrix_.codes_.bytes;
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  if (matrix_.scheme_.packing == CodePacking::kBytes) {
    rows_.codes = data + first_row * k;
    return;
  }
  codes_.resize(static_cast<size_t>(num_rows * k));
  rows_.codes = codes_.data();
  const int32_t bits = code_bits(kind);
  const int32_t per_word = 32 / bits;
  const uint32_t mask = (1U << bits) - 1;
  // Codes and zero points of words share the order.
  const auto put = [&](int64_t r, int64_t column, uint32_t code) {
    codes_[static_cast<size_t>(r * k + column)] = from_stored(kind, code);
  };
  switch (matrix_.scheme_.packing) {
    case CodePacking::kBytes:
      return;
    case CodePacking::kNibbles:
    case CodePacking::kWords: {
      // Little-endian words are bytes in the order of their codes.
      const bool nibbles = bits == 4;
      const int64_t stride = matrix_.scheme_.packing == CodePacking::kNibbles
                                 ? k / 2
                                 : ceil_div(k, per_word) * int64_t{sizeof(uint32_t)};
      for (int64_t r = 0; r < num_rows; ++r) {
        const uint8_t* const row = data + (first_row + r) * stride;
        uint8_t* const out = codes_.data() + r * k;
        if (!nibbles) {
          for (int64_t i = 0; i < k; ++i) out[i] = from_stored(kind, row[i]);
          continue;
        }
        for (int64_t i = 0; i + 1 < k; i += 2) {
          out[i] = row[i / 2] & 15U;
          out[i + 1] = row[i / 2] >> 4;
        }
        if (k % 2 != 0) out[k - 1] = row[k / 2] & 15U;
      }
      return;
    }
    case CodePacking::kGptq:
      for (int64_t i = 0; i < k / per_word; ++i) {
        for (int64_t r = 0; r < num_rows; ++r) {
          uint32_t word = word_at(bytes, i * n + first_row + r);
          for (int64_t j = 0; j < per_word; ++j, word >>= bits)
            put(r, i * per_word + j, word & mask);
        }
      }
      return;
    case CodePacking::kAwq:
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t r = 0; r < num_rows; ++r) {
          const int64_t row = first_row + r;
          const uint32_t word = word_at(bytes, i * (n / 8) + row / 8);
          put(r, i, word >> 4 * kAwqNibbles[static_cast<size_t>(row % 8)] & mask);
        }
      }
      return;
  }
}

void PlainReader::read_scales(int64_t first_row, int32_t num_rows) {
  const Companion& scales = *matrix_.companion(CompanionRole::kScales);
  const int64_t groups = matrix_.num_groups();
  constexpr int64_t kBlock = 128;
  scales_.resize(static_cast<size_t>(num_rows * groups));
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t row = first_row + r;
    for (int64_t g = 0; g < groups; ++g) {
      int64_t index = 0;
      switch (matrix_.scheme_.place) {
        case ScalePlace::kMatrix:
          break;
        case ScalePlace::kRow:
          index = row;
          break;
        case ScalePlace::kGroup:
          index = matrix_.is_transposed() ? g * matrix_.n_ + row : row * groups + g;
          break;
        case ScalePlace::kBlock:
          index = row / kBlock * groups + g;
          break;
      }
      scales_[static_cast<size_t>(r * groups + g)] = scale_at(scales, index);
    }
  }
  rows_.scales = scales_.data();
}

void PlainReader::read_zeros(int64_t first_row, int32_t num_rows) {
  const ZeroPoints kind = matrix_.scheme_.zeros;
  if (kind == ZeroPoints::kNone) return;
  const Companion& zeros = *matrix_.companion(CompanionRole::kZeros);
  const CodeKind code = matrix_.scheme_.code;
  const int64_t groups = matrix_.num_groups();
  const int32_t bits = code_bits(code);
  const int32_t per_word = 32 / bits;
  const uint32_t mask = (1U << bits) - 1;
  const int64_t words_per_group = ceil_div(matrix_.n_, per_word);
  zeros_.resize(static_cast<size_t>(num_rows * groups));
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t row = first_row + r;
    const auto in_word = static_cast<int32_t>(row % per_word);
    for (int64_t g = 0; g < groups; ++g) {
      uint32_t zero = 0;
      const auto word = [&](int64_t index, int32_t place) {
        return word_at(zeros.bytes, index) >> (place * bits) & mask;
      };
      switch (kind) {
        case ZeroPoints::kNone:
          break;
        case ZeroPoints::kBytes:
          zero = static_cast<uint32_t>(zeros.bytes[static_cast<size_t>(
              matrix_.scheme_.place == ScalePlace::kMatrix ? 0 : row * groups + g)]);
          // Zero points of stored codes are moved up like the codes.
          zero = (zero + (1U << (bits - 1))) & 0xFFU;
          break;
        case ZeroPoints::kWords:
          zero = word(row / per_word * groups + g, in_word);
          break;
        case ZeroPoints::kGptqV1:
          zero = (word(g * words_per_group + row / per_word, in_word) + 1) & mask;
          break;
        case ZeroPoints::kGptqV2:
          zero = word(g * words_per_group + row / per_word, in_word);
          break;
        case ZeroPoints::kAwq:
          zero =
              word(g * words_per_group + row / per_word, kAwqNibbles[static_cast<size_t>(in_word)]);
          break;
      }
      zeros_[static_cast<size_t>(r * groups + g)] = from_stored(code, zero);
    }
  }
  rows_.zeros = zeros_.data();
}

// Gives each column its own scale, where columns of one group do not lie together.
void PlainReader::spread_groups(int32_t num_rows) {
  const int64_t k = matrix_.k_;
  const int64_t groups = matrix_.num_groups();
  std::vector<float> scales(static_cast<size_t>(num_rows * k));
  std::vector<uint8_t> zeros(rows_.zeros == nullptr ? 0 : scales.size());
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < k; ++i) {
      const auto from = static_cast<size_t>(r * groups + matrix_.group_of_[static_cast<size_t>(i)]);
      scales[static_cast<size_t>(r * k + i)] = scales_[from];
      if (!zeros.empty()) zeros[static_cast<size_t>(r * k + i)] = zeros_[from];
    }
  }
  scales_ = std::move(scales);
  rows_.scales = scales_.data();
  rows_.group = 1;
  if (rows_.zeros == nullptr) return;
  zeros_ = std::move(zeros);
  rows_.zeros = zeros_.data();
}

std::optional<BadValue> find_non_finite(const PlainRows& rows) {
  const int64_t per_row = rows.scales_per_row();
  for (int64_t r = 0; r < rows.rows; ++r) {
    for (int64_t g = 0; g < per_row; ++g) {
      if (std::isfinite(rows.scales[r * per_row + g])) continue;
      return BadValue{.row = r, .column = g * rows.group, .is_scale = true};
    }
    if (rows.code != CodeKind::kE4M3) continue;
    const uint8_t* const row = rows.codes + r * rows.k;
    if (!has_nan(row, rows.k)) continue;
    for (int64_t i = 0; i < rows.k; ++i) {
      if (has_nan(row + i, 1)) return BadValue{.row = r, .column = i, .is_scale = false};
    }
  }
  return std::nullopt;
}

double sum_of_squares(const PlainRows& rows, int32_t row) {
  const int64_t per_row = rows.scales_per_row();
  const int64_t width = rows.group == 0 ? rows.k : rows.group;
  const uint8_t usual_zero = rows.code == CodeKind::kInt4 ? 8 : 0;
  double sum = 0;
  for (int64_t g = 0; g < per_row; ++g) {
    const int64_t at = row * per_row + g;
    const uint8_t zero = rows.zeros == nullptr ? usual_zero : rows.zeros[at];
    double squares = 0;
    const int64_t end = std::min(rows.k, (g + 1) * width);
    for (int64_t i = g * width; i < end; ++i) {
      const double value = code_value(rows.code, rows.codes[row * rows.k + i], zero);
      squares += value * value;
    }
    const double scale = static_cast<double>(rows.scales[at]);
    sum += squares * scale * scale;
  }
  const double more = rows.row_scales == nullptr ? 1.0 : static_cast<double>(rows.row_scales[row]);
  return sum * more * more;
}

}  // namespace sluice
