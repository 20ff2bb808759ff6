// SPDX-License-Identifier: Apache-2.0
// The tree of kernels/gemm.h in plain loops over checkpoint blocks or plain rows, and its fp64
// oracle. Neither knows the kernel layout, instruction sets or tiles.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/gemm.h"
#include "quant/format.h"
#include "quant/kv_code.h"
#include "quant/repack.h"
#include "tests/support/plain_matrix.h"

namespace sluice::kernels::testing {

inline float reference_fma(float a, float b, float c) { return std::fma(a, b, c); }

// 64-byte aligned bytes, filled with a pattern.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t bytes)
      : data_(static_cast<std::byte*>(::operator new (size(bytes), std::align_val_t{64}))) {
    std::memset(data_.get(), 0xA5, size(bytes));
  }

  [[nodiscard]] std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };

  static size_t size(int64_t bytes) {
    return static_cast<size_t>(align_up(std::max<int64_t>(bytes, 1), 64));
  }

  std::unique_ptr<std::byte, Free> data_;
};

// Extreme values have extreme codes and sub-scales, degenerate ones degenerate scales.
using Values = ::sluice::test::PlainValues;

// Returns all formats except kInt8Channel, which linear_w8a8_test.cpp has.
inline std::vector<WeightFormat> tested_formats() {
  std::vector<WeightFormat> formats;
  for (int i = 0; i < kNumWeightFormats; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    if (format != WeightFormat::kInt8Channel) formats.push_back(format);
  }
  return formats;
}

// Returns the letters, digits and underscores of a format's name.
inline std::string test_name(WeightFormat format) {
  std::string name(format_info(format).name);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

struct TestWeight {
  WeightFormat format;
  int64_t n;
  int64_t k;
  std::vector<std::byte> checkpoint;
  AlignedBuffer packed;
  PackedWeight view;
  std::optional<::sluice::test::PlainMatrix> plain =
      std::nullopt;  // replaces the checkpoint's blocks

  // Decodes row r of the checkpoint, unrounded.
  void decode(int64_t r, double* out) const {
    if (!plain) {
      return dequantize_row_f64(format, checkpoint.data() + r * row_bytes(format, k), k, out);
    }
    for (int64_t i = 0; i < k; ++i) out[i] = plain_value(plain->rows(r, 1), 0, i);
  }
};

inline uint16_t random_scale(std::mt19937& rng, Values values, int64_t index) {
  if (values == Values::kDegenerate) {
    constexpr std::array<uint16_t, 4> kScales = {0x0000, 0x0001, 0x03FF, 0x8002};
    return kScales[static_cast<size_t>(index) % kScales.size()];
  }
  return float_to_half(std::uniform_real_distribution<float>(-0.05F, 0.05F)(rng));
}

inline void fill_float_row(
    WeightFormat format, int64_t k, Values values, std::mt19937& rng, std::byte* row) {
  std::normal_distribution<float> normal(0.0F, 0.05F);
  const bool extreme = values == Values::kExtreme;
  for (int64_t i = 0; i < k; ++i) {
    if (format == WeightFormat::kF32) {
      const float w = extreme ? (i % 2 != 0 ? -3e30F : 3e30F) : normal(rng);
      std::memcpy(row + i * 4, &w, 4);
      continue;
    }
    const bool half = format == WeightFormat::kF16;
    const float ordinary = normal(rng);
    const uint16_t w = values == Values::kDegenerate
                           ? static_cast<uint16_t>(i % (half ? 1024 : 128))
                       : extreme ? uint16_t{0xF2FF}
                       : half    ? float_to_half(ordinary)
                                 : float_to_bf16(ordinary);
    std::memcpy(row + i * 2, &w, 2);
  }
}

// Fills a row: any bytes are valid blocks, except for their scales.
inline void fill_row(
    WeightFormat format, int64_t k, Values values, std::mt19937& rng, std::byte* row) {
  const FormatInfo& info = format_info(format);
  if (!layout_of(format).is_integer()) return fill_float_row(format, k, values, rng, row);
  constexpr std::array<uint8_t, 4> kExtremeBytes = {0xFF, 0x00, 0x80, 0x7F};
  std::uniform_int_distribution<int> byte(0, 255);
  for (int64_t b = 0; b < k / info.block_elements; ++b) {
    std::byte* const block = row + b * info.block_bytes;
    for (int32_t i = 0; i < info.block_bytes; ++i) {
      const int any = byte(rng);
      const int value =
          values == Values::kExtreme ? kExtremeBytes[static_cast<size_t>(b) % 4] : any;
      block[i] = static_cast<std::byte>(value);
    }
    for (int32_t i = 0; i < layout_of(format).num_half_scales(); ++i) {
      const uint16_t scale = random_scale(rng, values, b + i);
      std::memcpy(block + info.scale_offset + 2 * i, &scale, sizeof(scale));
    }
    if (format == WeightFormat::kMXFP4) {
      block[0] = static_cast<std::byte>(values == Values::kDegenerate ? b % 4 : 118 + b % 9);
    }
  }
}

inline bool is_plain(WeightFormat format) {
  return format_info(format).ggml_type == kNoGgmlType;
}

inline TestWeight make_plain_weight(
    WeightFormat format, int64_t n, int64_t k, Values values, std::mt19937& rng) {
  TestWeight w{.format = format,
               .n = n,
               .k = k,
               .checkpoint = {},
               .packed = AlignedBuffer(packed_bytes(format, n, k)),
               .view = {},
               .plain = ::sluice::test::PlainMatrix::of(format, n, k, values, rng)};
  w.plain->pack(format, w.packed.data());
  w.view = {.format = format,
            .n = static_cast<int32_t>(n),
            .k = static_cast<int32_t>(k),
            .data = w.packed.data()};
  return w;
}

inline TestWeight make_weight(
    WeightFormat format, int64_t n, int64_t k, Values values, std::mt19937& rng) {
  if (is_plain(format)) return make_plain_weight(format, n, k, values, rng);
  TestWeight w{.format = format,
               .n = n,
               .k = k,
               .checkpoint = std::vector<std::byte>(static_cast<size_t>(n * row_bytes(format, k))),
               .packed = AlignedBuffer(packed_bytes(format, n, k)),
               .view = {}};
  for (int64_t r = 0; r < n; ++r) {
    fill_row(format, k, values, rng, w.checkpoint.data() + r * row_bytes(format, k));
  }
  pack_weight(format, w.checkpoint.data(), n, k, 0, ceil_div(n, kRowTile), w.packed.data());
  w.view = {.format = format,
            .n = static_cast<int32_t>(n),
            .k = static_cast<int32_t>(k),
            .data = w.packed.data()};
  return w;
}

// One decoded row of a weight: integer codes (zero point off) with scale and minimum of each 16, or
// plain floats.
struct DecodedRow {
  std::vector<int32_t> codes;
  std::vector<float> scale, minimum;  // per 16
  std::vector<float> weights;
  bool has_minimum = false;
  bool halves = false;        // two terms per group
  bool is_block = false;      // kE4M3Block: `scale` is d_w; with float rows `weights` include it
  std::vector<float> values;  // values of e4m3 codes
  float row_scale = 1;        // multiplies the folded sum
};

inline float plain_scale(const PlainRows& rows, int64_t k) {
  return rows.scales[rows.group == 0 ? 0 : k / rows.group];
}

inline DecodedRow decode_plain_row(const TestWeight& w, int64_t n) {
  const PlainRows rows = w.plain->rows(n, 1);
  DecodedRow d;
  d.halves = w.format == WeightFormat::kNVFP4;
  d.is_block = w.format == WeightFormat::kE4M3Block;
  if (w.format == WeightFormat::kE4M3Channel) d.row_scale = rows.scales[0];
  if (rows.row_scales != nullptr) d.row_scale = rows.row_scales[0];
  for (int64_t i = 0; i < align_up(w.k, 32); ++i) {
    const bool inside = i < w.k;
    const uint8_t code = inside ? rows.codes[i] : 0;
    const float scale = plain_scale(rows, std::min(i, w.k - 1));
    if (rows.code == CodeKind::kE4M3) {
      const float value = e4m3_to_float(code);
      d.values.push_back(value);
      d.weights.push_back(d.is_block ? value * scale : value);
      if (i % 16 == 0) d.scale.push_back(scale);
      continue;
    }
    const int64_t zero_at = rows.group == 0 ? 0 : i / rows.group;
    int32_t number = 0;
    float d_w = scale;
    if (rows.code == CodeKind::kE2M1) {
      number = kE2M1Codebook[code];
      d_w = scale / 2;
    } else if (rows.code == CodeKind::kInt4 && inside) {
      number = code - rows.zeros[zero_at];
    } else if (inside) {
      number = static_cast<int8_t>(code) - static_cast<int8_t>(rows.zeros[zero_at]);
    }
    if (i % 16 == 0) {
      d.scale.push_back(d_w);
      d.minimum.push_back(0.0F);
    }
    d.codes.push_back(number);
    d.weights.push_back(reference_fma(static_cast<float>(number), d_w, 0.0F));
  }
  return d;
}

inline DecodedRow decode_row(const TestWeight& w, int64_t n) {
  if (w.plain) return decode_plain_row(w, n);
  const std::byte* row = w.checkpoint.data() + n * row_bytes(w.format, w.k);
  const PackedLayout& layout = layout_of(w.format);
  DecodedRow d;
  d.has_minimum = layout.has_min();
  d.halves = w.format == WeightFormat::kQ2_K || w.format == WeightFormat::kQ3_K ||
             w.format == WeightFormat::kQ6_K;
  d.weights.assign(static_cast<size_t>(align_up(w.k, 32)), 0.0F);
  if (!layout.is_integer()) {
    dequantize_row(w.format, row, w.k, d.weights.data());
    return d;
  }
  for (int64_t g = 0; g < w.k / 32; ++g) {
    const QuantizedGroup group = read_group(w.format, row, g);
    for (const int h : {0, 1}) {
      d.scale.push_back(group.scale * static_cast<float>(group.sub_scale[h]));
      d.minimum.push_back(d.has_minimum ? group.min * static_cast<float>(group.sub_min[h]) : 0.0F);
    }
    for (const uint8_t code : group.codes) {
      const size_t i = d.codes.size();
      d.codes.push_back(layout.value_of(code));
      d.weights[i] =
          reference_fma(static_cast<float>(d.codes[i]), d.scale[i / 16], d.minimum[i / 16]);
    }
  }
  return d;
}

// Rows of activations with their own memory.
struct TestActivations {
  AlignedBuffer buffer;
  Activations view;

  [[nodiscard]] int32_t code(int64_t row, int64_t k) const {
    return code_at(activation_group(view, row, k / 32), k % 32);
  }

  [[nodiscard]] int32_t code_at(const ActivationGroup& group, int64_t i) const {
    return view.format == ActivationFormat::kInt8 ? static_cast<const int8_t*>(group.codes)[i]
                                                  : static_cast<const int16_t*>(group.codes)[i];
  }

  [[nodiscard]] float e4m3(int64_t row, int64_t k) const {
    return e4m3_to_float(
        static_cast<const uint8_t*>(activation_group(view, row, k / 32).codes)[k % 32]);
  }

  [[nodiscard]] float value(int64_t row, int64_t k) const {
    return static_cast<const float*>(view.data)[row * align_up(view.k, 32) + k];
  }
};

inline void fill_e4m3(const Activations& view, Values values, std::mt19937& rng) {
  std::uniform_real_distribution<float> scale(0.0F, 0.01F);
  for (int64_t row = 0; row < view.num_rows; ++row) {
    for (int64_t i = 0; i < e4m3_row_bytes(view.k); ++i) {
      const auto byte = static_cast<uint8_t>(rng() & 255);
      const uint8_t any = (byte & 0x7F) == 0x7F ? byte & 0x80 : byte;
      const uint8_t largest = row % 2 == 0 ? 0x7E : 0xFE;
      const ActivationGroup group = activation_group(view, row, i / 32);
      static_cast<uint8_t*>(group.codes)[i % 32] = i >= view.k                  ? 0
                                                   : values == Values::kExtreme ? largest
                                                                                : any;
      const bool first = view.format == ActivationFormat::kE4M3Token ? i == 0 : i % 128 == 0;
      if (first) *group.scale = scale(rng);
    }
  }
}

inline TestActivations make_activations(
    ActivationFormat format, int64_t rows, int64_t k, Values values, std::mt19937& rng) {
  TestActivations a{.buffer = AlignedBuffer(activation_bytes(format, rows, k)), .view = {}};
  a.view = carve_activations(format, rows, k, a.buffer.data());
  if (is_e4m3(format)) {
    fill_e4m3(a.view, values, rng);
    return a;
  }
  const int64_t padded = align_up(k, 32);
  const int32_t limit = format == ActivationFormat::kInt8 ? 127 : 32767;
  std::uniform_int_distribution<int32_t> code(-limit, limit);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  const bool extreme = values == Values::kExtreme;
  for (int64_t row = 0; row < rows; ++row) {
    int32_t sum = 0;
    for (int64_t i = 0; i < padded; ++i) {
      const int32_t c = i >= k ? 0 : extreme ? (row % 2 == 0 ? -limit - 1 : limit) : code(rng);
      if (format == ActivationFormat::kFloat) {
        static_cast<float*>(a.view.data)[row * padded + i] = i >= k ? 0.0F : normal(rng);
        continue;
      }
      const ActivationGroup group = activation_group(a.view, row, i / 32);
      if (format == ActivationFormat::kInt8) {
        static_cast<int8_t*>(group.codes)[i % 32] = static_cast<int8_t>(c);
      } else {
        static_cast<int16_t*>(group.codes)[i % 32] = static_cast<int16_t>(c);
      }
      sum = i % 32 == 0 ? c : sum + c;
      *group.scale = std::abs(normal(rng)) / static_cast<float>(limit);
      *group.code_sum = sum;
      if (i % 32 < 16) *group.half_sum = sum;
      *group.sum = static_cast<float>(sum) * *group.scale;
    }
  }
  return a;
}

struct ReferenceOutput {
  float tree = 0;        // by the tree, in fp32
  double exact = 0;      // likewise in fp64
  double magnitude = 0;  // sum of the absolute terms
};

// Adds a group of e4m3 codes times e4m3 codes.
inline float add_e4m3_group(const DecodedRow& w,
                            const TestActivations& x,
                            int64_t row,
                            int64_t g,
                            float acc,
                            ReferenceOutput& result) {
  float p = 0;
  const float of_x = *activation_group(x.view, row, g).scale;
  const float scale = w.is_block ? w.scale[static_cast<size_t>(2 * g)] * of_x : 1.0F;
  for (int64_t k = g * 32; k < g * 32 + 32; k += 2) {
    const auto at = static_cast<size_t>(k);
    p = reference_fma(w.values[at + 1], x.e4m3(row, k + 1), p);
    p = reference_fma(w.values[at], x.e4m3(row, k), p);
    for (const size_t i : {at, at + 1}) {
      const double term = double{w.values[i]} * x.e4m3(row, static_cast<int64_t>(i)) * scale;
      result.exact += term;
      result.magnitude += std::abs(term);
    }
  }
  return w.is_block ? reference_fma(p, scale, acc) : acc + p;
}

inline ReferenceOutput reference_output(const DecodedRow& w,
                                        const TestActivations& x,
                                        int64_t row) {
  const int64_t groups = ceil_div(x.view.k, 32);
  const bool integer = x.view.format != ActivationFormat::kFloat;
  ReferenceOutput result;
  std::array<float, 8> segment{};
  for (int64_t s = 0; s < 8; ++s) {
    float acc = 0;
    for (int64_t g = s * groups / 8; g < (s + 1) * groups / 8; ++g) {
      if (!integer) {
        for (int64_t k = g * 32; k < g * 32 + 32; ++k) {
          const float weight = w.weights[static_cast<size_t>(k)];
          acc = reference_fma(weight, x.value(row, k), acc);
          const double term = static_cast<double>(weight) * x.value(row, k);
          result.exact += term;
          result.magnitude += std::abs(term);
        }
        continue;
      }
      if (is_e4m3(x.view.format)) {
        acc = add_e4m3_group(w, x, row, g, acc, result);
        continue;
      }
      const float scale = *activation_group(x.view, row, g).scale;
      const int64_t step = w.halves ? 16 : 32;
      for (int64_t begin = g * 32; begin < g * 32 + 32; begin += step) {
        int32_t isum = 0;
        int32_t code_sum = 0;
        for (int64_t k = begin; k < begin + step; ++k) {
          isum += w.codes[static_cast<size_t>(k)] * x.code(row, k);
          code_sum += x.code(row, k);
        }
        const float d = w.scale[static_cast<size_t>(begin / 16)];
        const float m = w.minimum[static_cast<size_t>(begin / 16)];
        acc = reference_fma(static_cast<float>(isum), d * scale, acc);
        if (w.has_minimum) acc = reference_fma(m, static_cast<float>(code_sum) * scale, acc);
        const double a = static_cast<double>(isum) * d * scale;
        const double b = static_cast<double>(m) * code_sum * scale;
        result.exact += a + b;
        result.magnitude += std::abs(a) + std::abs(b);
      }
    }
    segment[static_cast<size_t>(s)] = acc;
  }
  result.tree = ((segment[0] + segment[1]) + (segment[2] + segment[3])) +
                ((segment[4] + segment[5]) + (segment[6] + segment[7]));
  const float of_row = x.view.format == ActivationFormat::kE4M3Token
                           ? *activation_group(x.view, row, 0).scale
                           : 1.0F;
  result.tree = (result.tree * of_row) * w.row_scale;
  const double scale = double{of_row} * w.row_scale;
  result.exact *= scale;
  result.magnitude *= std::abs(scale);
  return result;
}

}  // namespace sluice::kernels::testing
