// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding in plain C++, which every kernel and every packed layout must match. Block
// layouts are ggml's.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/core/status.h"
#include "quant/format.h"

namespace sluice {
namespace {

// Rows start at any byte of a mapped file, so values are copied out instead of pointed at.
template <typename T>
T load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Reads codes 0 to 15 from low nibbles, 16 to 31 from high ones.
void read_split_nibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) codes[j] = bytes[j] & 15;
  for (int j = 0; j < 16; ++j) codes[j + 16] = bytes[j] >> 4;
}

// Reads bit 4 of code j from bit j of four bytes.
void add_fifth_bits(const uint8_t* bytes, uint8_t* codes) {
  const auto bits = load<uint32_t>(bytes);
  for (unsigned j = 0; j < 32; ++j) {
    codes[j] = static_cast<uint8_t>(codes[j] | ((bits >> j) & 1) << 4);
  }
}

// Adds to 32 codes the bits of `mask` from `shift` on, moved up by `up`, of one byte each.
void add_plane(const uint8_t* bytes, int shift, int mask, int up, uint8_t* codes) {
  for (int j = 0; j < 32; ++j) {
    codes[j] = static_cast<uint8_t>(codes[j] | ((bytes[j] >> shift) & mask) << up);
  }
}

// Reads from 8 scales and 8 minima of 6 bits in 12 bytes, for Q4_K and Q5_K.
void read_six_bit_pair(const uint8_t* bytes, int64_t i, QuantizedGroup& group) {
  const bool low = i < 4;
  const uint8_t last = low ? 0 : bytes[i + 4];
  const int scale = low ? bytes[i] & 63 : (last & 15) | (bytes[i - 4] >> 6) << 4;
  const int min = low ? bytes[i + 4] & 63 : last >> 4 | (bytes[i] >> 6) << 4;
  group.sub_scale[0] = group.sub_scale[1] = scale;
  group.sub_min[0] = group.sub_min[1] = min;
}

// Reads from 16 scales of 6 bits in 12 bytes, less 32, for Q3_K.
int six_bit_scale(const uint8_t* bytes, int64_t i) {
  const int low = i < 8 ? bytes[i] & 15 : bytes[i - 8] >> 4;
  const int high = (bytes[8 + i % 4] >> (2 * (i / 4))) & 3;
  return (low | high << 4) - 32;
}

// Reads codes and sub-scales of group g of a block of 256.
void read_group_of_256(WeightFormat format, const uint8_t* block, int64_t g, QuantizedGroup& out) {
  const int pair_shift = static_cast<int>(2 * (g % 4));
  switch (format) {
    case WeightFormat::kQ2_K:
      add_plane(block + 16 + g / 4 * 32, pair_shift, 3, 0, out.codes);
      for (int h = 0; h < 2; ++h) {
        out.sub_scale[h] = block[2 * g + h] & 15;
        out.sub_min[h] = block[2 * g + h] >> 4;
      }
      return;
    case WeightFormat::kQ3_K:
      add_plane(block + 32 + g / 4 * 32, pair_shift, 3, 0, out.codes);
      add_plane(block, static_cast<int>(g), 1, 2, out.codes);
      for (int h = 0; h < 2; ++h) out.sub_scale[h] = six_bit_scale(block + 96, 2 * g + h);
      return;
    case WeightFormat::kQ4_K:
      add_plane(block + 16 + g / 2 * 32, static_cast<int>(g % 2 * 4), 15, 0, out.codes);
      return read_six_bit_pair(block + 4, g, out);
    case WeightFormat::kQ5_K:
      add_plane(block + 48 + g / 2 * 32, static_cast<int>(g % 2 * 4), 15, 0, out.codes);
      add_plane(block + 16, static_cast<int>(g), 1, 4, out.codes);
      return read_six_bit_pair(block + 4, g, out);
    case WeightFormat::kQ6_K:
      add_plane(block + g / 4 * 64 + g % 2 * 32, static_cast<int>(g % 4 / 2 * 4), 15, 0, out.codes);
      add_plane(block + 128 + g / 4 * 32, pair_shift, 3, 4, out.codes);
      for (int h = 0; h < 2; ++h) {
        out.sub_scale[h] = static_cast<int8_t>(block[192 + 2 * g + h]);
      }
      return;
    default: {  // IQ4_XS
      read_split_nibbles(block + 8 + 16 * g, out.codes);
      const int low = (block[4 + g / 2] >> (g % 2 * 4)) & 15;
      const int high = (load<uint16_t>(block + 2) >> (2 * g)) & 3;
      out.sub_scale[0] = out.sub_scale[1] = (low | high << 4) - 32;
      return;
    }
  }
}

// Reads the codes of a block of 32, which end it.
void read_codes_of_32(const FormatInfo& info, const uint8_t* block, uint8_t* codes) {
  const PackedLayout& layout = layout_of(info.format);
  const uint8_t* const low = block + info.block_bytes - layout.low_bits * kQuantGroup / 8;
  if (layout.low_bits == 8) {  // signed codes become stored ones by flipping the top bit
    for (int j = 0; j < kQuantGroup; ++j) codes[j] = low[j] ^ 0x80;
    return;
  }
  read_split_nibbles(low, codes);
  if (layout.high_bits == 1) add_fifth_bits(low - kQuantGroup / 8, codes);
}

// Returns half of 2^(exponent - 127), since the codebook is doubled.
float half_power_of_two(uint8_t exponent) {
  const uint32_t bits = exponent < 2 ? 0x00200000U << exponent : (exponent - 1U) << 23;
  return std::bit_cast<float>(bits);
}

template <typename Real>
void decode_integers(WeightFormat format, const std::byte* row, int64_t k, Real* out) {
  const PackedLayout& layout = layout_of(format);
  for (int64_t g = 0; g < k / kQuantGroup; ++g) {
    const QuantizedGroup group = read_group(format, row, g);
    for (int j = 0; j < kQuantGroup; ++j) {
      const int h = j / 16;
      const int value = layout.value_of(group.codes[j]);
      const Real scale = static_cast<Real>(group.scale) * static_cast<Real>(group.sub_scale[h]);
      Real weight = scale * static_cast<Real>(value);
      if (layout.has_min()) {
        weight += static_cast<Real>(group.min) * static_cast<Real>(group.sub_min[h]);
      }
      out[g * kQuantGroup + j] = weight;
    }
  }
}

float read_float(WeightFormat format, const std::byte* row, int64_t i) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  if (format == WeightFormat::kF32) return load<float>(bytes + 4 * i);
  const auto bits = load<uint16_t>(bytes + 2 * i);
  return format == WeightFormat::kF16 ? half_to_float(bits) : bf16_to_float(bits);
}

// Whether a float format's row has an exponent of all ones. Blocks of fixed length become vector
// code; loading checks every weight.
template <typename Bits>
bool any_non_finite(const uint8_t* row, int64_t k, Bits exponent) {
  constexpr int64_t kBlock = 64;
  int64_t i = 0;
  for (; i + kBlock <= k; i += kBlock) {
    Bits bits[kBlock];
    std::memcpy(bits, row + i * static_cast<int64_t>(sizeof(Bits)), sizeof(bits));
    Bits any = 0;
    for (const Bits b : bits) any |= static_cast<Bits>((b & exponent) == exponent);
    if (any != 0) return true;
  }
  for (; i < k; ++i) {
    const Bits b = load<Bits>(row + i * static_cast<int64_t>(sizeof(Bits)));
    if ((b & exponent) == exponent) return true;
  }
  return false;
}

bool any_non_finite(WeightFormat format, const uint8_t* row, int64_t k) {
  if (format == WeightFormat::kF32) return any_non_finite<uint32_t>(row, k, 0x7F800000U);
  return any_non_finite<uint16_t>(row, k, format == WeightFormat::kF16 ? 0x7C00 : 0x7F80);
}

template <typename Real>
void decode_row(WeightFormat format, const std::byte* row, int64_t k, Real* out) {
  CHECK_EQ(k % format_info(format).block_elements, 0);
  if (layout_of(format).is_integer()) return decode_integers(format, row, k, out);
  for (int64_t i = 0; i < k; ++i) out[i] = read_float(format, row, i);
}

void store_half(uint16_t half, std::byte* at) { std::memcpy(at, &half, sizeof(half)); }

// Codes come from the float scale; the fp16 scale is only stored. This is ggml's order of rounding,
// and makes files equal byte for byte.
void encode_q4_1(const float* values, std::byte* block) {
  const auto [min_it, max_it] = std::minmax_element(values, values + kQuantGroup);
  const float min = *min_it;
  const float scale = (*max_it - min) / 15.0F;
  const float inverse = scale != 0.0F ? 1.0F / scale : 0.0F;
  const auto code = [&](float value) {
    const float scaled = (value - min) * inverse;  // NaN: 0 times the inverse of next to nothing
    return static_cast<uint8_t>(scaled > 0 ? std::min(scaled + 0.5F, 15.0F) : 0.0F);
  };
  store_half(float_to_half(scale), block);
  store_half(float_to_half(min), block + 2);
  for (int j = 0; j < 16; ++j) {
    block[4 + j] = static_cast<std::byte>(code(values[j]) | (code(values[j + 16]) << 4));
  }
}

void encode_q8_0(const float* values, std::byte* block) {
  float max = 0.0F;
  for (int j = 0; j < kQuantGroup; ++j) max = std::max(max, std::fabs(values[j]));
  const float scale = max / 127.0F;
  const float inverse = scale != 0.0F ? 1.0F / scale : 0.0F;
  store_half(float_to_half(scale), block);
  for (int j = 0; j < kQuantGroup; ++j) {
    const float code = std::round(values[j] * inverse);  // halves away from 0
    block[2 + j] = static_cast<std::byte>(std::isfinite(code) ? static_cast<int8_t>(code) : 0);
  }
}

}  // namespace

QuantizedGroup read_group(WeightFormat format, const std::byte* row, int64_t group) {
  const FormatInfo& info = format_info(format);
  const PackedLayout& layout = layout_of(format);
  DCHECK(layout.is_integer() && info.ggml_type != kNoGgmlType);
  const int64_t per_block = info.block_elements / kQuantGroup;
  const auto* block = reinterpret_cast<const uint8_t*>(row) + group / per_block * info.block_bytes;
  QuantizedGroup out{};
  out.sub_scale[0] = out.sub_scale[1] = out.sub_min[0] = out.sub_min[1] = 1;
  if (per_block == 1) {
    read_codes_of_32(info, block, out.codes);
  } else {
    read_group_of_256(format, block, group % per_block, out);
  }
  if (layout.scales == ScaleLayout::kExponent) {
    out.scale_bits = block[0];
    out.scale = half_power_of_two(block[0]);
    return out;
  }
  out.scale_bits = load<uint16_t>(block + info.scale_offset);
  out.scale = half_to_float(out.scale_bits);
  if (layout.has_min()) {
    out.min_bits = load<uint16_t>(block + info.scale_offset + 2);
    const float min = half_to_float(out.min_bits);
    out.min = per_block == 1 ? min : -min;
  }
  return out;
}

void dequantize_row(WeightFormat format, const std::byte* row, int64_t k, float* out) {
  decode_row(format, row, k, out);
}

void dequantize_row_f64(WeightFormat format, const std::byte* row, int64_t k, double* out) {
  decode_row(format, row, k, out);
}

void quantize_row(WeightFormat format, const float* row, int64_t k, std::byte* out) {
  const FormatInfo& info = format_info(format);
  CHECK_EQ(k % info.block_elements, 0);
  const int64_t num_blocks = k / info.block_elements;
  for (int64_t i = 0; i < num_blocks; ++i) {
    const float* values = row + i * info.block_elements;
    std::byte* block = out + i * info.block_bytes;
    switch (format) {
      case WeightFormat::kF32:
        std::memcpy(block, values, sizeof(float));
        break;
      case WeightFormat::kF16:
        store_half(float_to_half(*values), block);
        break;
      case WeightFormat::kBF16:
        store_half(float_to_bf16(*values), block);
        break;
      case WeightFormat::kQ4_1:
        encode_q4_1(values, block);
        break;
      case WeightFormat::kQ8_0:
        encode_q8_0(values, block);
        break;
      default:
        SLUICE_UNREACHABLE("a format that this library does not encode");
    }
  }
}

std::optional<NonFinite> find_non_finite(WeightFormat format, const std::byte* row, int64_t k) {
  const FormatInfo& info = format_info(format);
  const PackedLayout& layout = layout_of(format);
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  if (!layout.is_integer()) {
    if (!any_non_finite(format, bytes, k)) return std::nullopt;
    for (int64_t i = 0; i < k; ++i) {
      const float value = read_float(format, row, i);
      if (!std::isfinite(value)) return NonFinite{.block = i, .value = value};
    }
    return std::nullopt;
  }
  for (int64_t i = 0; i < k / info.block_elements; ++i) {
    const uint8_t* block = bytes + i * info.block_bytes;
    if (layout.scales == ScaleLayout::kExponent && block[0] == 255) {
      return NonFinite{.block = i, .value = std::numeric_limits<float>::quiet_NaN()};
    }
    for (int s = 0; s < layout.num_half_scales(); ++s) {
      const auto half = load<uint16_t>(block + info.scale_offset + 2 * s);
      constexpr uint16_t kExponent = 0x7c00;
      if ((half & kExponent) == kExponent) {
        return NonFinite{.block = i, .value = half_to_float(half)};
      }
    }
  }
  return std::nullopt;
}

}  // namespace sluice
