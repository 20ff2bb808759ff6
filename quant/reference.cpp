// SPDX-License-Identifier: Apache-2.0
// Encoding and decoding in plain C++: what every kernel and every repacked layout is held to.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/core/status.h"
#include "quant/format.h"

namespace sluice {
namespace {

// Rows start at any byte of a mapped file, so blocks are copied out instead of pointed at.
template <typename Block>
Block load_block(const std::byte* row, int64_t index) {
  Block block;
  std::memcpy(&block, row + index * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
  return block;
}

template <typename Block>
void store_block(const Block& block, std::byte* row, int64_t index) {
  std::memcpy(row + index * static_cast<int64_t>(sizeof(Block)), &block, sizeof(Block));
}

template <typename Real>
void decode_q4_1(const BlockQ4_1& block, Real* out) {
  const Real scale = half_to_float(block.scale);
  const Real min = half_to_float(block.min);
  for (int j = 0; j < 16; ++j) {
    const Real low = static_cast<Real>(block.codes[j] & 0xf) * scale;
    const Real high = static_cast<Real>(block.codes[j] >> 4) * scale;
    out[j] = low + min;
    out[j + 16] = high + min;
  }
}

template <typename Real>
void decode_q8_0(const BlockQ8_0& block, Real* out) {
  const Real scale = half_to_float(block.scale);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<Real>(block.codes[j]) * scale;
}

template <typename Real>
void decode_row(WeightFormat format, const std::byte* row, int64_t k, Real* out) {
  const FormatInfo& info = format_info(format);
  CHECK_EQ(k % info.block_elements, 0);
  const int64_t num_blocks = k / info.block_elements;
  for (int64_t i = 0; i < num_blocks; ++i) {
    Real* block_out = out + i * info.block_elements;
    switch (format) {
      case WeightFormat::kF32:
        *block_out = load_block<float>(row, i);
        break;
      case WeightFormat::kF16:
        *block_out = half_to_float(load_block<uint16_t>(row, i));
        break;
      case WeightFormat::kQ4_1:
        decode_q4_1(load_block<BlockQ4_1>(row, i), block_out);
        break;
      case WeightFormat::kQ8_0:
        decode_q8_0(load_block<BlockQ8_0>(row, i), block_out);
        break;
    }
  }
}

// Codes come from the float scale; the fp16 one is only stored. That is ggml's order of rounding,
// and what makes files agree byte for byte.
BlockQ4_1 encode_q4_1(const float* values) {
  const auto [min_it, max_it] = std::minmax_element(values, values + kQuantGroup);
  const float min = *min_it;
  const float scale = (*max_it - min) / 15.0F;
  const float inverse = scale != 0.0F ? 1.0F / scale : 0.0F;
  const auto code = [&](float value) {
    const float scaled = (value - min) * inverse;
    return static_cast<uint8_t>(std::clamp(scaled + 0.5F, 0.0F, 15.0F));
  };
  BlockQ4_1 block{.scale = float_to_half(scale), .min = float_to_half(min), .codes = {}};
  for (int j = 0; j < 16; ++j) {
    block.codes[j] = static_cast<uint8_t>(code(values[j]) | (code(values[j + 16]) << 4));
  }
  return block;
}

BlockQ8_0 encode_q8_0(const float* values) {
  float max = 0.0F;
  for (int j = 0; j < kQuantGroup; ++j) max = std::max(max, std::fabs(values[j]));
  const float scale = max / 127.0F;
  const float inverse = scale != 0.0F ? 1.0F / scale : 0.0F;
  BlockQ8_0 block{.scale = float_to_half(scale), .codes = {}};
  for (int j = 0; j < kQuantGroup; ++j) {
    block.codes[j] = static_cast<int8_t>(std::round(values[j] * inverse));  // halves away from zero
  }
  return block;
}

}  // namespace

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
    switch (format) {
      case WeightFormat::kF32:
        store_block(*values, out, i);
        break;
      case WeightFormat::kF16:
        store_block(float_to_half(*values), out, i);
        break;
      case WeightFormat::kQ4_1:
        store_block(encode_q4_1(values), out, i);
        break;
      case WeightFormat::kQ8_0:
        store_block(encode_q8_0(values), out, i);
        break;
    }
  }
}

}  // namespace sluice
