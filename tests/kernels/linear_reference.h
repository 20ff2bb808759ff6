// SPDX-License-Identifier: Apache-2.0
// The tree of kernels/gemm.h written as plain loops over checkpoint blocks, and its fp64 oracle:
// neither knows the kernel layout, instruction sets or tiles.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "kernels/gemm.h"
#include "quant/format.h"
#include "quant/repack.h"

namespace sluice::kernels::testing {

inline float reference_fma(float a, float b, float c) { return std::fma(a, b, c); }

// 64-byte aligned bytes, filled with a pattern.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t bytes)
      : data_(static_cast<std::byte*>(::operator new(size(bytes), std::align_val_t{64}))) {
    std::memset(data_.get(), 0xA5, size(bytes));
  }

  [[nodiscard]] std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }
  };

  static size_t size(int64_t bytes) {
    return static_cast<size_t>(align_up(std::max<int64_t>(bytes, 1), 64));
  }

  std::unique_ptr<std::byte, Free> data_;
};

enum class Values : uint8_t {
  kOrdinary,
  kExtreme,    // largest codes, alternating signs
  kDegenerate  // zero and subnormal fp16 scales
};

struct TestWeight {
  WeightFormat format;
  int64_t n;
  int64_t k;
  std::vector<std::byte> checkpoint;
  AlignedBuffer packed;
  PackedWeight view;
};

inline uint16_t random_scale(std::mt19937& rng, Values values, int64_t index) {
  if (values == Values::kDegenerate) {
    constexpr std::array<uint16_t, 4> kScales = {0x0000, 0x0001, 0x03FF, 0x8002};
    return kScales[static_cast<size_t>(index) % kScales.size()];
  }
  return float_to_half(std::uniform_real_distribution<float>(-0.05F, 0.05F)(rng));
}

inline void fill_row(
    WeightFormat format, int64_t k, Values values, std::mt19937& rng, std::byte* row) {
  std::uniform_int_distribution<int> byte(0, 255);
  std::normal_distribution<float> normal(0.0F, 0.05F);
  const bool extreme = values == Values::kExtreme;
  for (int64_t i = 0; i < k; ++i) {
    if (format == WeightFormat::kF32) {
      const float w = extreme ? (i % 2 != 0 ? -3e30F : 3e30F) : normal(rng);
      std::memcpy(row + i * 4, &w, 4);
    } else if (format == WeightFormat::kF16) {
      const uint16_t w = values == Values::kDegenerate ? static_cast<uint16_t>(i % 1024)
                         : extreme                     ? uint16_t{0xFBFF}
                                                       : float_to_half(normal(rng));
      std::memcpy(row + i * 2, &w, 2);
    } else if (format == WeightFormat::kQ4_1 && i % 32 == 0) {
      BlockQ4_1 block;
      block.scale = random_scale(rng, values, i / 32);
      block.min = random_scale(rng, values, i / 32 + 1);
      for (uint8_t& c : block.codes) c = static_cast<uint8_t>(extreme ? 255 : byte(rng));
      std::memcpy(row + i / 32 * 20, &block, sizeof(block));
    } else if (format == WeightFormat::kQ8_0 && i % 32 == 0) {
      BlockQ8_0 block;
      block.scale = random_scale(rng, values, i / 32);
      for (int8_t& c : block.codes) {
        c = static_cast<int8_t>(extreme ? (i % 64 == 0 ? -128 : 127) : byte(rng) - 128);
      }
      std::memcpy(row + i / 32 * 34, &block, sizeof(block));
    }
  }
}

inline TestWeight make_weight(
    WeightFormat format, int64_t n, int64_t k, Values values, std::mt19937& rng) {
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

// One row of a weight, decoded: integer codes (zero point off) with scale and minimum per group, or
// plain floats.
struct DecodedRow {
  std::vector<int32_t> codes;
  std::vector<float> scale, minimum;  // per group
  std::vector<float> weights;
  bool has_minimum = false;
};

inline DecodedRow decode_row(const TestWeight& w, int64_t n) {
  const std::byte* row = w.checkpoint.data() + n * row_bytes(w.format, w.k);
  const int64_t padded = align_up(w.k, 32);
  DecodedRow d;
  d.has_minimum = w.format == WeightFormat::kQ4_1;
  d.weights.assign(static_cast<size_t>(padded), 0.0F);
  for (int64_t i = 0; i < w.k; ++i) {
    const auto at = static_cast<size_t>(i);
    if (w.format == WeightFormat::kF32) {
      std::memcpy(&d.weights[at], row + i * 4, 4);
    } else if (w.format == WeightFormat::kF16) {
      uint16_t h = 0;
      std::memcpy(&h, row + i * 2, 2);
      d.weights[at] = half_to_float(h);
    } else {
      if (w.format == WeightFormat::kQ4_1) {
        BlockQ4_1 block;
        std::memcpy(&block, row + i / 32 * 20, sizeof(block));
        const auto j = static_cast<size_t>(i % 16);
        d.codes.push_back(i % 32 < 16 ? block.codes[j] & 15 : block.codes[j] >> 4);
        if (i % 32 == 0) {
          d.scale.push_back(half_to_float(block.scale));
          d.minimum.push_back(half_to_float(block.min));
        }
      } else {
        BlockQ8_0 block;
        std::memcpy(&block, row + i / 32 * 34, sizeof(block));
        d.codes.push_back(block.codes[static_cast<size_t>(i % 32)]);
        if (i % 32 == 0) {
          d.scale.push_back(half_to_float(block.scale));
          d.minimum.push_back(0.0F);
        }
      }
      d.weights[at] =
          reference_fma(static_cast<float>(d.codes.back()), d.scale.back(), d.minimum.back());
    }
  }
  return d;
}

// Rows of activations with what an Activations points to.
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

  [[nodiscard]] float value(int64_t row, int64_t k) const {
    return static_cast<const float*>(view.data)[row * align_up(view.k, 32) + k];
  }
};

inline TestActivations make_activations(
    ActivationFormat format, int64_t rows, int64_t k, Values values, std::mt19937& rng) {
  TestActivations a{.buffer = AlignedBuffer(activation_bytes(format, rows, k)), .view = {}};
  a.view = carve_activations(format, rows, k, a.buffer.data());
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
      *group.sum = static_cast<float>(sum) * *group.scale;
    }
  }
  return a;
}

struct ReferenceOutput {
  float tree = 0;        // by the tree, in fp32
  double exact = 0;      // the same operands in fp64
  double magnitude = 0;  // sum of the absolute terms
};

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
      int32_t isum = 0;
      int32_t code_sum = 0;
      for (int64_t k = g * 32; k < g * 32 + 32; ++k) {
        isum += w.codes[static_cast<size_t>(k)] * x.code(row, k);
        code_sum += x.code(row, k);
      }
      const float scale = *activation_group(x.view, row, g).scale;
      const float d = w.scale[static_cast<size_t>(g)];
      const float m = w.minimum[static_cast<size_t>(g)];
      acc = reference_fma(static_cast<float>(isum), d * scale, acc);
      if (w.has_minimum) {
        acc = reference_fma(m, static_cast<float>(code_sum) * scale, acc);
      }
      const double a = static_cast<double>(isum) * d * scale;
      const double b = static_cast<double>(m) * code_sum * scale;
      result.exact += a + b;
      result.magnitude += std::abs(a) + std::abs(b);
    }
    segment[static_cast<size_t>(s)] = acc;
  }
  result.tree = ((segment[0] + segment[1]) + (segment[2] + segment[3])) +
                ((segment[4] + segment[5]) + (segment[6] + segment[7]));
  return result;
}

}  // namespace sluice::kernels::testing
