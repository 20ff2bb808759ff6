// SPDX-License-Identifier: Apache-2.0
// The definition of launch_linear_blocks_half (kernels/cuda/launch.h) in plain loops over decoded
// codes, without layouts and tiles.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/gemm.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::kernels::test {

// Rows of BF16 as Activations.
struct HalfRows {
  HalfRows(int32_t rows, int64_t k, uint64_t seed)
      : memory(activation_bytes(ActivationFormat::kBF16, rows, k)),
        view(carve_activations(ActivationFormat::kBF16, rows, k, memory.data())) {
    Random random(seed);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < align_up(k, kQuantGroup); ++i) {
        row(r)[i] = i < k ? float_to_bf16(random.normal()) : uint16_t{0};
      }
    }
  }

  [[nodiscard]] uint16_t* row(int64_t i) const {
    return static_cast<uint16_t*>(view.data) + i * align_up(view.k, kQuantGroup);
  }

  DeviceBytes memory;
  Activations view;
};

// Returns the chain over `count` products, 16 or 32 of them; null weights: ones.
inline float chain(
    const uint16_t* w, const uint16_t* x, int64_t count, float sum, simt::TensorCore core) {
  for (int64_t step = 0; step < count; step += 16) {
    uint16_t a[16];
    uint16_t b[16];
    for (int64_t i = 0; i < 16; ++i) {
      // On Hopper 16 products have no order; on sm_8x the even ones are the first step of 8.
      const int64_t k = step + i % 8 * 2 + i / 8;
      a[i] = w == nullptr ? float_to_bf16(1) : w[k];
      b[i] = x[k];
    }
    sum = simt::tensor_core_step(simt::Half::kBF16, a, b, sum, core);
  }
  return sum;
}

inline uint16_t exact_bf16(float value) {
  const uint16_t code = float_to_bf16(value);
  EXPECT_EQ(bf16_to_float(code), value);
  return code;
}

inline bool is_bf16(WeightFormat format) {
  return format == WeightFormat::kMXFP4 || format == WeightFormat::kNVFP4;
}

// Returns the sum of one segment; x: the first of its columns.
inline float segment_sum(WeightFormat format,
                         const testing::DecodedRow& w,
                         const uint16_t* x,
                         int64_t begin,
                         int64_t end,
                         simt::TensorCore core) {
  float acc = 0;
  const int64_t unit = w.halves ? 16 : 32;
  for (int64_t k = begin; k < end; k += unit, x += unit) {
    const float d = w.scale[static_cast<size_t>(k / 16)];
    std::array<uint16_t, 32> codes;
    for (int64_t i = 0; i < unit; ++i) {
      const auto code = static_cast<float>(w.codes[static_cast<size_t>(k + i)]);
      codes[static_cast<size_t>(i)] = exact_bf16(is_bf16(format) ? code * d : code);
    }
    if (is_bf16(format)) {
      acc = chain(codes.data(), x, unit, acc, core);
      continue;
    }
    acc = std::fma(chain(codes.data(), x, unit, 0, core), d, acc);
    if (!w.has_minimum) continue;
    acc = std::fma(w.minimum[static_cast<size_t>(k / 16)], chain(nullptr, x, unit, 0, core), acc);
  }
  return acc;
}

// Returns the output of a row of k weights; x: the first column of the segments.
inline float half_reference(WeightFormat format,
                            const testing::DecodedRow& w,
                            int64_t k,
                            const uint16_t* x,
                            Segments segments,
                            simt::TensorCore core) {
  std::array<float, 8> sums{};
  const int64_t first = segments.first_column(k);
  for (int32_t i = 0; i < segments.count; ++i) {
    const Segments own{segments.first + i, 1};
    const int64_t begin = own.first_column(k);
    const int64_t end = own.end_group(k) * kQuantGroup;
    sums[static_cast<size_t>(i)] = segment_sum(format, w, x + (begin - first), begin, end, core);
  }
  for (size_t width = 1; width < static_cast<size_t>(segments.count); width *= 2) {
    for (size_t i = 0; i < 8; i += 2 * width) sums[i] += sums[i + width];
  }
  return segments.are_all() ? sums[0] * w.row_scale : sums[0];
}

}  // namespace sluice::kernels::test
